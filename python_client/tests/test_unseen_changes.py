"""Weights that change where no step is seen: by torch.autograd.grad, torch.func, an
average, or by hand where they are frozen. Masks hold, or it is said."""

from __future__ import annotations

import copy

import pytest
import torch
from fake_native import activate
from small_nets import outside, pruned, small_net
from test_alone import one_process
from test_enforced_weights import ByHand

import pactrain
from pactrain.alone import alone
from pactrain.masks import registry

__all__ = ["one_process"]
pytestmark = pytest.mark.filterwarnings("ignore:.*nothing to exchange")
worlds = pytest.mark.parametrize("one", [False, True], ids=["ranks", "one process"])
NOT_ZERO = "weights outside the masks are not zero"
BY_HAND = "frozen weights of 2.weight were changed by hand"


def begun(request, one, model):
    """Its session, what calls it, and its masks are in force."""
    if one:
        return pactrain.attach(model), model
    attached = request.getfixturevalue("attach")(model)
    activate(attached)
    attached.step()
    attached.session.apply_masks()
    return attached.session, attached.ddp


def batch(step):
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(step))


def by_autograd(model, forward, step):
    parameters = list(model.parameters())
    loss = forward(batch(step)).square().mean()
    for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        p.data.sub_(0.1 * g)


def by_func(model, forward, step):
    def loss(weights):
        return (
            torch.func.functional_call(model, weights, (batch(step),)).square().mean()
        )

    named = {n: p.detach() for n, p in model.named_parameters()}
    grads = torch.func.grad(loss)(named)
    for name, p in model.named_parameters():
        p.data.sub_(0.1 * grads[name])


def by_reptile(model, forward, step):
    inner = copy.deepcopy(model)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
    inner(batch(step)).square().mean().backward()
    optimizer.step()
    for p, q in zip(model.parameters(), inner.parameters(), strict=True):
        p.data.lerp_(q.data + 0.01, 0.5)


@worlds
def test_weights_stepped_by_autograd_grad_are_masked(request, one, caplog):
    model = pruned()
    session, forward = begun(request, one, model)
    seen = []
    model[2].register_forward_pre_hook(lambda *_: seen.append(outside(model)))
    for step in range(8):
        by_autograd(model, forward, step)
    assert not any(seen[2:])
    session.close()
    assert outside(model) == 0
    assert "not reached" not in caplog.text


@worlds
@pytest.mark.parametrize("change", [by_func, by_reptile])
def test_what_is_stepped_unseen_is_told_of(request, one, change, caplog):
    model = pruned()
    session, forward = begun(request, one, model)
    assert session.stats()["pactrain/masks_active"] == 1
    for step in range(3):
        change(model, forward, step)
    assert outside(model) > 0
    assert session.stats()["pactrain/masks_active"] == 0
    session.close()
    assert f"{NOT_ZERO}" in caplog.text
    assert "call session.apply_masks() after each" in caplog.text


@worlds
def test_the_advice_helps(request, one, caplog):
    model = pruned()
    session, forward = begun(request, one, model)
    for step in range(3):
        by_reptile(model, forward, step)
        session.apply_masks()
        assert outside(model) == 0
        assert session.stats()["pactrain/masks_active"] == 1
    session.close()
    assert NOT_ZERO not in caplog.text


def test_before_the_first_step_it_is_told_at_the_end(attach, caplog):
    model = pruned()
    attached = attach(model)
    by_func(model, None, 0)
    attached.session.close()
    assert NOT_ZERO in caplog.text


def test_a_session_of_one_process_is_closed_at_exit(caplog):
    model = pruned()
    pactrain.attach(model)
    by_func(model, None, 0)
    pactrain.alone._close_all()
    assert not alone
    assert NOT_ZERO in caplog.text


def frozen():
    model = small_net()
    pactrain.prune(model, 0.5, kind="freeze")
    return model


def is_where_it_was(model, before):
    dropped = ~registry.get(model[2].weight)
    return torch.equal(model[2].weight[dropped], before[dropped])


def noisy(model, forward, optimizer, steps, after=lambda: None):
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        optimizer.zero_grad()
        forward(batch(step)).square().mean().backward()
        optimizer.step()
        for p in model.parameters():
            p.data.add_(0.1 * torch.randn(p.shape, generator=generator))
        after()


@worlds
@pytest.mark.parametrize("script", ["optimizer", "by hand"])
def test_frozen_weights_that_walk_by_hand_are_told_of(request, one, script, caplog):
    model = frozen()
    session, forward = begun(request, one, model)
    optimizer = (
        ByHand(model)
        if script == "by hand"
        else torch.optim.SGD(model.parameters(), lr=1e-3)
    )
    noisy(model, forward, optimizer, 6)
    assert caplog.text.count(BY_HAND) == 1
    session.close()
    assert f"not reached: {BY_HAND}" in caplog.text


@worlds
def test_the_advice_keeps_them_where_they_were(request, one, caplog):
    model = frozen()
    before = model[2].weight.detach().clone()
    session, forward = begun(request, one, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    noisy(model, forward, optimizer, 6, session.apply_masks)
    assert is_where_it_was(model, before)
    assert caplog.text.count("2.weight: frozen weights were changed by hand") == 1
    session.close()
    assert "not reached" not in caplog.text


@worlds
def test_one_copy_of_frozen_weights_is_not_told_of(request, one, caplog):
    model = frozen()
    session, forward = begun(request, one, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    noisy(model, forward, optimizer, 1)
    for step in range(4):
        optimizer.zero_grad()
        forward(batch(step)).square().mean().backward()
        optimizer.step()
    session.close()
    assert BY_HAND not in caplog.text


@worlds
def test_frozen_weights_that_are_stepped_unseen_are_told_of(request, one, caplog):
    model = frozen()
    session, forward = begun(request, one, model)
    for step in range(3):
        by_reptile(model, forward, step)
    session.close()
    assert "not reached" in caplog.text
    assert "2.weight" in caplog.text
