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


def begun(attach, model, **how):
    """What trains it; torch has pruned it in mid-run, and its masks are in force."""
    attached = attach(model, **how) if attach is not None else None
    session = pactrain.attach(model, **how) if attached is None else attached.session
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


@pytest.mark.parametrize("again", [False, True])
def test_masks_that_stay_are_no_change_that_was_not_reached(attach, caplog, again):
    model = small_net()
    session, train = begun(attach, model)
    torch_prune.remove(model[2], "weight")
    train(1)
    if again:
        torch_prune.l1_unstructured(model[2], "weight", 0.5)
        train(1)
    assert session.masks_settled
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


@pytest.mark.parametrize("one", [False, True], ids=["ranks", "one process"])
@pytest.mark.parametrize("gse", [True, False])
def test_torch_may_prune_again_what_it_had_pruned(request, one, gse):
    model = small_net()
    attach = None if one else request.getfixturevalue("attach")
    session, train = begun(attach, model, gse=gse)
    for amount in (0.6, 0.7):
        torch_prune.remove(model[2], "weight")
        train(2)
        torch_prune.l1_unstructured(model[2], "weight", amount)
        train(2)
        pruned = int((model[2].weight_mask == 0).sum())
        assert session.state_dict()["masks"].keys() == {"2.weight"}
        assert pactrain.sparsity(model).pruned == pruned == round(amount * 64)
    session.close()
    torch_prune.remove(model[2], "weight")
    torch_prune.l1_unstructured(model[2], "weight", 0.8)
    assert pactrain.sparsity(model).pruned == 51


def test_masks_that_the_script_declares_after_it_are_not_torchs_to_replace():
    model = small_net()
    _, train = begun(None, model)
    torch_prune.remove(model[2], "weight")
    train(1)
    pactrain.prune(model, 0.75)
    torch_prune.l1_unstructured(model[2], "weight", 0.8)
    with pytest.raises(pactrain.InvalidArgument, match="with one of the two only"):
        train(1)


@pytest.mark.parametrize(
    ("one", "how"),
    [(False, {"gse": False}), (True, {"gse": False}), (True, {"masks": "track"})],
)
def test_where_nothing_keeps_its_zeros_that_is_said(request, one, how, caplog):
    model = small_net()
    attach = None if one else request.getfixturevalue("attach")
    session, train = begun(attach, model, **how)
    torch_prune.remove(model[2], "weight")
    train(5)
    assert int((model[2].weight == 0).sum()) < 32
    assert caplog.text.count(SAID) == 1
    assert "zeros come back" in caplog.text
    assert "its masks stay" not in caplog.text
    assert session.stats()["pactrain/keep"] == 1
