"""Masks in force hold for the weights, whoever changes them."""

from __future__ import annotations

import copy

import pytest
import torch
from fake_native import activate
from small_nets import outside, pruned
from torch import nn

import pactrain
from pactrain import storage
from pactrain.masks import registry


class ByHand:
    """pytorch/examples word_language_model; with momentum if asked for."""

    def __init__(self, model, momentum=0.0, decay=0.0):
        self.model, self.momentum, self.decay = model, momentum, decay
        self.buffers = [torch.zeros_like(p) for p in model.parameters()]

    def zero_grad(self):
        self.model.zero_grad()

    def step(self):
        for p, buffer in zip(self.model.parameters(), self.buffers, strict=True):
            buffer.mul_(self.momentum).add_(p.grad + self.decay * p.data)
            p.data.add_(buffer, alpha=-0.1)


def run(attached, optimizer, steps):
    for _ in range(steps):
        attached.step(optimizer=optimizer)


def in_force(attach, make, steps=1, **options):
    """A session whose masks have been in force for so many steps; its model, and the
    optimizer that `make` makes of it."""
    model = pruned()
    attached = attach(model, **options)
    optimizer = make(model)
    run(attached, optimizer, 3)
    activate(attached)
    run(attached, optimizer, steps)
    return attached, model, optimizer


def sgd(model, momentum=0.0):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)


def sees(attached):
    """What is not zero outside the masks in each forward pass."""
    seen = []
    model = attached.ddp.module
    model[2].register_forward_pre_hook(lambda *_: seen.append(outside(model)))
    return seen


@pytest.mark.parametrize("wrapper", ["attach", "wrap"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_script_without_an_optimizer_has_its_weights_masked(
    request, wrapper, momentum
):
    model = pruned()
    attached = request.getfixturevalue(wrapper)(model)
    script = ByHand(model, momentum)
    run(attached, script, 3)
    assert outside(model) > 0  # Not agreed on yet.
    activate(attached)
    run(attached, script, 2)
    seen = sees(attached)
    run(attached, script, 20)
    assert not any(seen)
    attached.session.close()
    assert outside(model) == 0
    assert pactrain.sparsity(model).outside == 0


def test_an_optimizer_of_one_part_does_not_vouch_for_the_rest(attach):
    model = pruned()
    attached = attach(model)
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    script = ByHand(model, 0.9)
    for _ in range(3):
        run(attached, script, 1)
    activate(attached)
    run(attached, script, 2)
    seen = sees(attached)
    for _ in range(5):
        run(attached, script, 1)
        optimizer.step()
    assert not any(seen)


def test_with_an_optimizer_of_torch_nothing_is_hooked(attach):
    _, model, _ = in_force(attach, lambda m: sgd(m, 0.9), 20)
    assert not model._forward_pre_hooks
    assert outside(model) == 0


def test_several_backwards_for_each_optimizer_step_hook_nothing_once_masked(attach):
    """As a GAN's discriminator."""
    attached, model, optimizer = in_force(attach, sgd)
    for _ in range(20):
        attached.step()
        attached.step()
        optimizer.step()
    assert not model._forward_pre_hooks


def test_a_graph_that_is_kept_can_be_gone_through_again(attach):
    attached, model, script = in_force(attach, ByHand, 3)
    loss = model(torch.ones(4, 6)).square().mean()
    run(attached, script, 0)
    loss.backward(retain_graph=True)
    attached.ddp(torch.ones(4, 6))
    loss.backward()


def revive(module, *_):
    module.weight.data.add_(0.01)


def test_weights_that_are_changed_in_the_pass_are_a_typed_error(attach):
    attached, model, optimizer = in_force(attach, sgd)
    model[2].register_forward_pre_hook(revive)
    with (
        pytest.raises(
            pactrain.PacTrainError,
            match=r"2\.weight has weights .*\nCall session\.apply_masks\(\) after each",
        ),
        attached.session.guard(),
    ):
        run(attached, optimizer, 40)


def test_an_optimizer_of_its_own_may_say_that_it_has_stepped(attach):
    attached, model, script = in_force(attach, lambda m: ByHand(m, 0.9))
    for _ in range(10):
        attached.session.apply_masks()
        assert outside(model) == 0
        run(attached, script, 1)
    assert not model._forward_pre_hooks


def test_frozen_weights_are_put_back_for_scripts_without_an_optimizer(attach):
    model = pruned(0.0)
    pactrain.prune(model, 0.5, kind="freeze")
    before = model[2].weight.detach().clone()
    dropped = ~registry.get(model[2].weight)
    attached = attach(model)
    script = ByHand(model, 0.9, decay=0.1)
    run(attached, script, 3)
    activate(attached)
    run(attached, script, 5)
    attached.session.close()
    assert torch.equal(model[2].weight[dropped], before[dropped])


def test_gse_off_hooks_nothing(attach):
    _, model, _ = in_force(attach, lambda m: ByHand(m, 0.9), 20, gse=False)
    assert not model._forward_pre_hooks
    assert outside(model) > 0


def test_a_state_does_not_call_masks_active_that_are_not_in_the_weights(attach):
    attached, model, _ = in_force(attach, ByHand)
    assert outside(model) > 0
    state = attached.session.state_dict()
    assert not state["masks_active"]
    attached.session.close()
    again = attach(copy.deepcopy(model), state=state)
    assert outside(again.ddp.module) == 0


def test_what_is_changed_after_the_last_step_is_said_at_the_end(attach, caplog):
    attached, model, _ = in_force(attach, sgd)
    with torch.no_grad():
        model[2].weight.fill_(1)
    attached.session.close()
    assert "32 weights outside the masks are not zero" in caplog.text


def test_a_copy_of_a_hooked_model_trains_by_itself(attach):
    attached, model, _ = in_force(attach, lambda m: ByHand(m, 0.9), 3)
    assert model._forward_pre_hooks
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[2].weight.fill_(1)
    other(torch.ones(1, 6))
    assert bool((other[2].weight == 1).all())
    attached.session.close()
    assert not model._forward_pre_hooks


def test_sparsity_counts_weights_and_not_masks(attach):
    model = pruned()
    with torch.no_grad():
        model[0].weight[0] = 0
    attached = attach(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run(attached, optimizer, 1)
    report = pactrain.sparsity(model)
    assert report.outside == outside(model) > 0
    layers = {name: kept for name, _, kept in report.layers}
    assert layers["2.weight"] == int((model[2].weight != 0).sum())
    assert layers["0.weight"] == int((model[0].weight != 0).sum())
    assert f"{report.outside} weights outside the masks are not zero" in str(report)


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.filterwarnings("ignore:.*nothing to exchange")
def test_what_is_merged_into_a_pruned_layer_that_rests_is_said(attach, caplog, wrapped):
    model = pruned()
    model[2].requires_grad_(False)
    session = attach(model).session if wrapped else pactrain.attach(model)
    with torch.no_grad():
        model[2].weight += 1  # LoRA's B A.
    session.close()
    assert (
        "not reached: 32 weights outside the masks are not zero where masks do not "
        "act, since no gradient is needed: 2.weight. pactrain.apply_masks(model) sets"
    ) in caplog.text
    report = pactrain.sparsity(model)
    assert ("2.weight", 64, 64) in report.layers
    assert report.outside == 32
    pactrain.apply_masks(model)
    assert pactrain.sparsity(model).outside == outside(model) == 0


def test_sparsity_of_a_model_without_masks_is_that_of_its_weights():
    model = nn.Linear(4, 4)
    with torch.no_grad():
        model.weight[:3] = 0
    assert pactrain.sparsity(model).sparsity == 12 / 20


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_no_number_is_zero_outside_as_well(attach, bad):
    _, model, optimizer = in_force(attach, lambda net: sgd(net, momentum=0.9))
    outside_mask = model[2].weight == 0
    with torch.no_grad():
        model[2].weight.fill_(bad)
    optimizer.step()
    assert bool((model[2].weight[outside_mask] == 0).all())
    assert not model[2].weight[~outside_mask].isfinite().any()


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16]
)
def test_zeros_are_written_in_any_type_and_order(dtype):
    values = torch.randn(4, 3, 2, 2, dtype=torch.float64).to(dtype)
    values[0] = torch.nan
    values[1] = -torch.inf
    values = values.to(memory_format=torch.channels_last)
    mask = torch.rand(values.shape) < 0.5
    before = values.clone()
    storage.zero_outside(values, mask)
    assert torch.equal(values[mask].nan_to_num(9), before[mask].nan_to_num(9))
    assert bool((values[~mask] == 0).all())


def test_state_of_the_optimizer_that_is_no_number_is_zero_outside(attach):
    model = pruned()
    attached = attach(model)
    optimizer = sgd(model, momentum=0.9)
    run(attached, optimizer, 2)
    mask = registry.get(model[2].weight)
    optimizer.state[model[2].weight]["momentum_buffer"].fill_(torch.nan)
    activate(attached)
    run(attached, optimizer, 2)
    state = optimizer.state[model[2].weight]["momentum_buffer"]
    assert bool((state[~mask] == 0).all())


def test_a_state_that_the_optimizer_loads_later_is_masked_as_well(attach):
    model = pruned()
    dense = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(4, 6)).square().mean().backward()
    dense.step()  # Nobody has masked this momentum.
    old = copy.deepcopy(dense.state_dict())
    pactrain.apply_masks(model)
    attached = attach(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    attached.step(optimizer=optimizer)
    activate(attached)
    attached.step(optimizer=optimizer)
    mask = registry.get(model[2].weight)
    optimizer.load_state_dict(old)
    assert optimizer.state[model[2].weight]["momentum_buffer"][~mask].any()
    attached.step(optimizer=optimizer)
    assert not optimizer.state[model[2].weight]["momentum_buffer"][~mask].any()


def test_a_checkpoint_of_weights_that_are_moved_by_hand_is_masked(attach):
    _, model, _ = in_force(attach, ByHand)
    assert outside(model) > 0
    mask = registry.get(model[2].weight)
    assert not model[2].state_dict()["weight"][~mask].any()
    assert outside(model) == 0
