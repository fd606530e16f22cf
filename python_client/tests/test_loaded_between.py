"""Weights that come between a backward pass and the step of an optimizer, and those
that an optimizer moves itself between two passes of one step."""

from __future__ import annotations

import copy

import pytest
import torch
from small_nets import outside, pruned, small_net
from test_alone import one_process
from test_copied_weights import by_data, net_of
from test_loaded_masks import LAYER, dense, kept, trained

import pactrain
from pactrain.masks import registry

__all__ = ["one_process"]
pytestmark = pytest.mark.filterwarnings("ignore:.*nothing to exchange")
worlds = pytest.mark.parametrize("one", [False, True], ids=["ranks", "one process"])


def by_load(model, state):
    model.load_state_dict(state)


def more():
    """Of the same beginning as the model, pruned by more."""
    model = pruned()
    pactrain.prune(model, 0.75)
    return copy.deepcopy(model.state_dict())


def before_a_step(attach, one, kind="zero"):
    """A model with gradients, and its optimizer; masks are in force."""
    model, backward = net_of(attach, one, kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        backward()
        optimizer.step()
    optimizer.zero_grad()
    backward()
    return model, backward, optimizer


@worlds
@pytest.mark.parametrize(
    ("bring", "state"), [(by_load, more()), (by_load, trained()), (by_data, trained())]
)
def test_masks_are_those_of_the_checkpoint_and_not_of_a_stale_step(
    attach, one, bring, state
):
    model, backward, optimizer = before_a_step(attach, one)
    bring(model, state)
    optimizer.step()
    assert torch.equal(kept(model), state[LAYER] != 0)
    optimizer.zero_grad()
    backward()
    optimizer.step()
    assert torch.equal(kept(model), state[LAYER] != 0)


@worlds
def test_what_fits_no_masks_is_refused_before_a_stale_step_moves_it(attach, one):
    model, _, optimizer = before_a_step(attach, one)
    model.load_state_dict(dense())
    with pytest.raises(pactrain.PacTrainError, match="weights were loaded after prune"):
        optimizer.step()
    assert torch.equal(model[2].weight, dense()[LAYER])


@worlds
def test_frozen_weights_that_are_loaded_are_moved_by_no_stale_step(attach, one):
    model, _, optimizer = before_a_step(attach, one, "freeze")
    model.load_state_dict(dense())
    optimizer.step()
    dropped = ~kept(model)
    assert torch.equal(model[2].weight[dropped], dense()[LAYER][dropped])


def test_ranks_are_compared_after_a_copy_before_a_step(attach):
    model = pruned()
    attached = attach(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for _ in range(3):
        attached.step(optimizer=optimizer)
    attached.step()
    by_data(model, trained())
    optimizer.step()
    attached.step()
    assert attached.native.submits[-1][2] is not None


@worlds
@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_what_an_optimizer_moves_between_its_passes_is_no_copy(attach, one, search):
    """LBFGS, whose steps are of any size, while masks are not in force."""
    model = small_net()
    if one:
        pactrain.attach(model)
        forward = model
    else:
        forward = attach(model).ddp
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(32, 6, generator=generator)
    target = torch.randn(32, 3, generator=generator)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1, line_search_fn=search)

    def closure():
        optimizer.zero_grad()
        loss = (forward(inputs) - target).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    pactrain.prune(model, 0.5)
    for keyword in (False, True):
        optimizer.step(closure=closure) if keyword else optimizer.step(closure)
    if one:
        assert outside(model) == 0
    by_data(model, {n: 9 * v for n, v in dense().items()})
    with pytest.raises(pactrain.PacTrainError, match="by hand"):
        optimizer.step(closure)
    assert registry.of(model[2].weight).loaded


def in_two_steps(attach, one):
    """A model that was pruned in mid-run, after its last step; and what trains it."""
    model = small_net()
    attached = None if one else attach(model)
    session = pactrain.attach(model) if one else attached.session
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def train():
        optimizer.zero_grad()
        (model if one else attached.ddp)(torch.ones(4, 6)).square().mean().backward()
        optimizer.step()

    train()
    train()
    pactrain.prune(model, 0.5)
    return model, session, train


@worlds
@pytest.mark.parametrize("after", [0, 1])
def test_weights_that_go_away_and_come_back_are_no_load(request, one, after):
    attach = None if one else request.getfixturevalue("attach")
    model, session, train = in_two_steps(attach, one)
    mask = registry.get(model[2].weight)
    for _ in range(after):
        train()
    before = copy.deepcopy(model.state_dict())
    model.load_state_dict(dense())  # An average's, to evaluate it.
    model.load_state_dict(before)
    train()
    assert registry.get(model[2].weight) is mask
    assert session.stats()["pactrain/keep"] < 1


@worlds
def test_weights_that_do_not_come_back_are_refused(request, one):
    attach = None if one else request.getfixturevalue("attach")
    model, _, train = in_two_steps(attach, one)
    model.load_state_dict(small_net(3).state_dict())
    model.load_state_dict(dense())
    with pytest.raises((pactrain.PacTrainError, RuntimeError), match="after prune"):
        train()
    assert torch.equal(model[2].weight, dense()[LAYER])
