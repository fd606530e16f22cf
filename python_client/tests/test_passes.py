"""Which backward passes are steps of our own DistributedDataParallel."""

from __future__ import annotations

import copy

import pytest
import torch
from fake_native import submitted
from small_nets import gradients
from torch import nn
from torch.utils.checkpoint import checkpoint

import pactrain


def test_no_sync_adds_up_and_sends_once(wrap, net):
    plain = copy.deepcopy(net)
    wrapped = wrap(net)
    for _ in range(3):
        plain(torch.ones(4, 6)).square().mean().backward()
    with wrapped.ddp.no_sync():
        for _ in range(2):
            wrapped.step()
    assert submitted(wrapped.native) == 0
    wrapped.step()
    assert wrapped.session.stats()["pactrain/steps"] == 1
    for ours, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


def test_the_forward_pass_decides_whether_its_backward_pass_is_a_step(wrap, net):
    wrapped = wrap(net)
    with wrapped.ddp.no_sync():
        inside = wrapped.ddp(torch.ones(4, 6)).mean()
    with torch.no_grad():
        wrapped.ddp(torch.ones(4, 6))  # Is not followed by a backward pass.
    inside.backward()
    assert submitted(wrapped.native) == 0
    outside = wrapped.ddp(torch.ones(4, 6)).mean()
    with wrapped.ddp.no_sync():
        outside.backward()
    assert submitted(wrapped.native) == 1


class BrokenOff(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs):
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise KeyError("mine")


def test_a_pass_that_broke_off_before_its_first_bucket_can_be_done_again(wrap, net):
    wrapped = wrap(net)  # One bucket.
    wrapped.ddp.module.insert(3, Through())
    with pytest.raises(KeyError, match="mine"):
        wrapped.step()
    del wrapped.ddp.module[3]
    wrapped.ddp.zero_grad()
    wrapped.step()
    assert wrapped.session.stats()["pactrain/steps"] == 1


class Through(nn.Module):
    def forward(self, inputs):
        return BrokenOff.apply(inputs)


def test_a_pass_that_broke_off_in_its_step_ends_the_session(wrap, net):
    wrapped = wrap(net, bucket_cap_mb=0.0001)
    wrapped.ddp.module.insert(3, Through())
    with pytest.raises(KeyError, match="mine"):
        wrapped.step()
    del wrapped.ddp.module[3]
    for _ in range(2):
        with pytest.raises(pactrain.PacTrainError, match="broke off") as raised:
            wrapped.step()
        assert raised.value.final


class Checkpointed(nn.Module):
    """The middle runs in reentrant checkpoints, `times` times."""

    def __init__(self, times=1, first=True, last=True):
        super().__init__()
        self.first, self.middle, self.last = (nn.Linear(6, 6) for _ in range(3))
        self.first.requires_grad_(first)
        self.last.requires_grad_(last)
        self.times = times

    def forward(self, inputs):
        hidden = self.first(inputs.requires_grad_())
        for _ in range(self.times):
            hidden = checkpoint(self.middle, hidden, use_reentrant=True)
        return self.last(hidden)


def test_reentrant_checkpoints_are_one_step(wrap):
    model = Checkpointed()
    plain = copy.deepcopy(model)
    wrapped = wrap(model, bucket_cap_mb=0.0001)
    wrapped.step()
    plain(torch.ones(4, 6)).square().mean().backward()
    assert wrapped.session.stats()["pactrain/steps"] == 1
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


def test_a_weight_in_two_reentrant_checkpoints_is_refused(wrap):
    wrapped = wrap(Checkpointed(times=2))
    with pytest.raises(
        pactrain.RefusedError, match=r"middle\.\w+ got its gradient twice"
    ):
        wrapped.step()
    assert gradients(wrapped.ddp) == [None] * 6


def test_a_pass_whose_end_cannot_be_seen_is_refused(wrap):
    wrapped = wrap(Checkpointed(last=False))
    with pytest.raises(pactrain.RefusedError, match="use_reentrant=False"):
        wrapped.step()


def test_two_forward_passes_may_share_a_backward_pass(wrap, net):
    plain = copy.deepcopy(net)
    wrapped = wrap(net)
    pair = torch.ones(4, 6), torch.full((4, 6), 2.0)
    sum(wrapped.ddp(inputs).mean() for inputs in pair).backward()
    sum(plain(inputs).mean() for inputs in pair).backward()
    assert wrapped.session.stats()["pactrain/steps"] == 1
    for ours, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


def two_passes(ddp, first_under_no_sync):
    """A forward pass under no_sync() and one that is not, in either order."""
    inside = outside = None
    if first_under_no_sync:
        with ddp.no_sync():
            inside = ddp(torch.ones(4, 6)).mean()
    outside = ddp(torch.full((4, 6), 2.0)).mean()
    if inside is None:
        with ddp.no_sync():
            inside = ddp(torch.ones(4, 6)).mean()
    return inside, outside


@pytest.mark.parametrize("first_under_no_sync", [False, True])
def test_a_pass_is_a_step_if_the_forward_pass_that_it_goes_through_says_so(
    wrap, net, first_under_no_sync
):
    wrapped = wrap(net)
    for order in ((0, 1), (1, 0)):
        passes = two_passes(wrapped.ddp, first_under_no_sync)
        for index in order:
            before = submitted(wrapped.native)
            passes[index].backward()
            assert submitted(wrapped.native) - before == index
    sum(two_passes(wrapped.ddp, first_under_no_sync)).backward()
    assert wrapped.session.stats()["pactrain/steps"] == 3


class Opaque:
    def __init__(self, value):
        self.value = value


class Hidden(nn.Linear):
    """Returns what no tensor can be found in."""

    def forward(self, inputs):
        return Opaque(super().forward(inputs).mean())


def test_a_pass_that_cannot_be_told_is_refused_where_it_matters(wrap):
    wrapped = wrap(Hidden(6, 6))
    with wrapped.ddp.no_sync():
        wrapped.ddp(torch.ones(4, 6)).value.backward()
    assert submitted(wrapped.native) == 0
    wrapped.ddp(torch.ones(4, 6)).value.backward()
    assert submitted(wrapped.native) == 1
    outside = wrapped.ddp(torch.ones(4, 6)).value
    with wrapped.ddp.no_sync():
        wrapped.ddp(torch.ones(4, 6))
    with pytest.raises(pactrain.RefusedError, match="some were under no_sync"):
        outside.backward()


def test_an_evaluation_with_gradients_enabled_makes_no_step_of_what_follows(wrap, net):
    wrapped = wrap(net)
    wrapped.ddp.eval()
    wrapped.ddp(torch.ones(4, 6))
    wrapped.ddp.train()
    with wrapped.ddp.no_sync():
        wrapped.step()
    assert submitted(wrapped.native) == 0
    wrapped.step()
    assert submitted(wrapped.native) == 1


def test_a_pass_through_the_model_inside_is_no_step(wrap, net):
    wrapped = wrap(net)
    inner = wrapped.ddp.module
    inner(torch.ones(4, 6)).mean().backward()  # Before any forward pass of the wrapper.
    wrapped.ddp.zero_grad()
    for _ in range(2):
        wrapped.step()
        before = net[4].bias.grad.clone()
        inner(torch.ones(4, 6)).sum().backward()
        assert torch.equal(net[4].bias.grad, before + 4)
    assert wrapped.session.stats()["pactrain/steps"] == 2


def test_a_pass_beside_a_forward_pass_that_waits_for_one_is_its_step(wrap, net):
    wrapped = wrap(net)
    wrapped.ddp(torch.ones(4, 6))
    for _ in range(2):  # As in torch, which cannot tell them apart either.
        wrapped.ddp.module(torch.ones(4, 6)).mean().backward()
    assert wrapped.session.stats()["pactrain/steps"] == 1


def test_a_forward_pass_that_failed_waits_for_no_backward_pass(wrap, net):
    wrapped = wrap(net)
    with pytest.raises(RuntimeError):
        wrapped.ddp(torch.ones(4, 7))
    wrapped.ddp.module(torch.ones(4, 6)).mean().backward()
    assert submitted(wrapped.native) == 0


def test_a_gradient_of_an_input_uses_up_no_step(wrap):
    wrapped = wrap(Hidden(6, 6))
    inputs = torch.ones(4, 6, requires_grad=True)
    (slope,) = torch.autograd.grad(wrapped.ddp(inputs).value, inputs, create_graph=True)
    slope.square().sum().backward()
    assert wrapped.session.stats()["pactrain/steps"] == 1


def test_an_interrupt_during_the_wait_ends_the_session(wrap, net, monkeypatch):
    wrapped = wrap(net)
    wrapped.step()
    wait = wrapped.native.wait

    def interrupted():
        wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(wrapped.native, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        wrapped.step()
    monkeypatch.undo()
    for _ in range(2):
        with pytest.raises(pactrain.PacTrainError, match="interrupt"):
            wrapped.step()


def test_a_pass_that_broke_off_after_its_last_bucket_is_a_step(wrap, net):
    wrapped = wrap(net)
    first_layer = next(iter(wrapped.ddp.module.parameters()))
    node = first_layer.expand_as(first_layer).grad_fn.next_functions[0][0]
    handle = node.register_hook(_broken_off)  # After the exchange's own.
    with pytest.raises(KeyError, match="mine"):
        wrapped.step()
    handle.remove()
    wrapped.ddp.zero_grad()
    wrapped.step()
    assert wrapped.session.stats()["pactrain/steps"] == 2


def _broken_off(*_):
    raise KeyError("mine")
