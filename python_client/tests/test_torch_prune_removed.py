"""torch.nn.utils.prune.remove() in mid-run: zeros that it leaves stay zero, and it is
said."""

from __future__ import annotations

import pytest
import torch
from fake_native import activate
from small_nets import small_net
from test_alone import one_process
from torch.nn.utils import prune as torch_prune

import pactrain

__all__ = ["one_process"]
pytestmark = pytest.mark.filterwarnings("ignore:.*nothing to exchange")
SAID = "torch.nn.utils.prune was removed from 2.weight"


def begun(attach, model):
    """What trains it; torch has pruned it in mid-run, and its masks are in force."""
    attached = attach(model) if attach is not None else None
    session = pactrain.attach(model) if attached is None else attached.session
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2
    )

    def train(steps):
        for _ in range(steps):
            optimizer.zero_grad()
            forward = model if attached is None else attached.ddp
            forward(torch.ones(4, 6)).square().mean().backward()
            optimizer.step()

    train(3)
    torch_prune.l1_unstructured(model[2], "weight", 0.5)
    train(2)
    if attached is not None:
        activate(attached)
    train(3)
    return session, train


@pytest.mark.parametrize("one", [False, True], ids=["ranks", "one process"])
def test_its_masks_stay_and_are_enforced(request, one, caplog):
    model = small_net()
    session, train = begun(None if one else request.getfixturevalue("attach"), model)
    torch_prune.remove(model[2], "weight")
    zero = model[2].weight == 0
    train(10)
    assert torch.equal(model[2].weight == 0, zero)
    assert int(zero.sum()) == 32
    assert session.stats()["pactrain/active_keep"] < 1
    assert caplog.text.count(SAID) == 1
    session.close()
    assert "not reached" not in caplog.text


def test_the_way_out_that_is_told_is_one(caplog):
    model = small_net()
    session, train = begun(None, model)
    torch_prune.remove(model[2], "weight")
    train(1)
    session.set_masks({})
    train(10)
    assert int((model[2].weight == 0).sum()) < 32
    assert not session.stats()["pactrain/masks_active"]


def test_the_way_out_works_before_the_next_step_too(caplog):
    model = small_net()
    session, train = begun(None, model)
    torch_prune.remove(model[2], "weight")
    session.set_masks({})
    train(10)
    assert int((model[2].weight == 0).sum()) < 32
    assert SAID not in caplog.text


def test_they_stay_where_parameters_are_taken_anew_before_the_next_step(caplog):
    model = small_net()
    model[4].weight.requires_grad_(False)
    _, train = begun(None, model)
    torch_prune.remove(model[2], "weight")
    zero = model[2].weight == 0
    model[4].weight.requires_grad_(True)
    train(10)
    assert torch.equal(model[2].weight == 0, zero)
    assert int(zero.sum()) == 32
    assert caplog.text.count(SAID) == 1


def test_it_is_said_where_masks_are_synchronised_before_the_next_step(attach, caplog):
    model = small_net()
    session, train = begun(attach, model)
    torch_prune.remove(model[2], "weight")
    session.sync_masks()
    train(2)
    assert caplog.text.count(SAID) == 1
    assert int((model[2].weight == 0).sum()) == 32


def test_weights_that_came_since_are_no_zeros_of_torchs(caplog):
    model = small_net()
    _, train = begun(None, model)
    torch_prune.remove(model[2], "weight")
    model.load_state_dict(small_net(5).state_dict())
    train(3)
    assert SAID not in caplog.text
    assert model[2].weight.all()
