"""Steps of our own DistributedDataParallel, over the fake library."""

from __future__ import annotations

import copy

import pytest
import torch
from fake_native import activate, submitted
from small_nets import gradients, small_net
from torch import Tensor, nn

import pactrain
from pactrain.types import Op


class Branches(nn.Module):
    """`use` says which of the layers a forward pass goes through."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)

    def forward(self, inputs, use=("first", "second")):
        for name in use:
            inputs = getattr(self, name)(inputs)
        return inputs


def test_gradients_are_those_of_the_plain_model(wrap, net):
    plain = copy.deepcopy(net)
    wrapped = wrap(net, bucket_cap_mb=0.0001)
    for _ in range(3):
        plain.zero_grad()
        plain(torch.ones(4, 6)).square().mean().backward()
        wrapped.ddp.zero_grad()
        wrapped.step()
        for ours, theirs in zip(net.parameters(), plain.parameters(), strict=True):
            assert torch.equal(ours.grad, theirs.grad)


def test_gradients_kept_and_added_to_are_those_of_the_plain_model(wrap, net):
    plain = copy.deepcopy(net)
    wrapped = wrap(net)
    for _ in range(3):  # No zero_grad(): each pass adds to the gradients.
        plain(torch.ones(4, 6)).square().mean().backward()
        wrapped.step()
    wrapped.ddp.zero_grad(set_to_none=False)
    plain.zero_grad(set_to_none=False)
    plain(torch.ones(4, 6)).square().mean().backward()
    wrapped.step()
    for ours, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


@pytest.mark.parametrize("keep", [lambda g: g, Tensor.detach, lambda g: g.view(-1)])
def test_gradients_that_a_script_keeps_stay_as_they_were(wrap, net, keep):
    plain = copy.deepcopy(net)
    wrapped = wrap(net)
    kept = {wrapped.ddp: [], plain: []}
    for model, lists in kept.items():
        for step in range(3):
            model.zero_grad()
            model(torch.full((4, 6), step + 1.0)).square().mean().backward()
            lists.append([keep(p.grad) for p in model.parameters()])
    for ours, theirs in zip(kept[wrapped.ddp], kept[plain], strict=True):
        assert all(map(torch.equal, ours, theirs))


def test_buckets_get_no_other_memory_where_no_gradient_was_kept(wrap, net):
    wrapped = wrap(net)
    places = set()
    for step in range(4):
        wrapped.ddp.zero_grad(set_to_none=step % 2 == 0)
        wrapped.step()
        places.add(net[0].weight.grad.data_ptr())
    assert len(places) == 1


@pytest.mark.parametrize("set_to_none", [False, True])
def test_a_script_may_give_a_gradient_other_memory(wrap, net, set_to_none):
    plain = copy.deepcopy(net)
    wrapped = wrap(net)
    for scale in (1, 2, 3):
        inputs = torch.full((4, 6), float(scale))
        wrapped.ddp.zero_grad(set_to_none)
        plain.zero_grad(set_to_none)
        plain(inputs).square().mean().backward()
        wrapped.step(inputs)
        for ours, theirs in zip(net.parameters(), plain.parameters(), strict=True):
            assert torch.equal(ours.grad, theirs.grad)
            ours.grad.data = ours.grad.data.clamp(-1, 1)
            theirs.grad.data = theirs.grad.data.clamp(-1, 1)


def test_hooks_that_a_script_registers_later_come_before_the_exchange(wrap, net):
    wrapped = wrap(net)

    def zero(parameter):
        parameter.grad.zero_()

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(zero)
    wrapped.step()
    assert not any(parameter.grad.any() for parameter in net.parameters())


def test_buckets_are_submitted_while_backward_runs(wrap, net):
    wrapped = wrap(net, bucket_cap_mb=0.0001)  # A bucket per layer or less.
    seen = {}
    for number in (0, 4):
        net[number].weight.register_hook(
            lambda _, number=number: seen.__setitem__(number, submitted(wrapped.native))
        )
    wrapped.step()
    # The last layers' were on their way before the first layer had a gradient.
    assert seen[4] + 2 <= seen[0] < submitted(wrapped.native)


def test_the_layout_never_changes(wrap):
    model = small_net()
    pactrain.prune(model, 0.5)
    wrapped = wrap(model)
    for _ in range(3):
        wrapped.step()
    layouts = {layout for op, layout, _ in wrapped.native.submits if op == Op.SUM}
    assert len(layouts) == 1
    assert wrapped.native.votes[0]["unchanged"] == 1
    assert len(wrapped.native.votes) == 1


def test_parameters_are_compared_after_a_load(wrap, net):
    wrapped = wrap(net)
    for _ in range(2):
        wrapped.step()
    wrapped.ddp.load_state_dict(wrapped.ddp.state_dict())
    wrapped.step()
    checked = [
        digest is not None for op, _, digest in wrapped.native.submits if op == Op.SUM
    ]
    assert checked == [True, False, True]


def test_an_unused_parameter_counts_as_zero(wrap):
    model = Branches()
    wrapped = wrap(model, bucket_cap_mb=0.0001)
    wrapped.ddp(torch.ones(2, 6)).mean().backward()
    wrapped.ddp.zero_grad()
    wrapped.ddp(torch.ones(2, 6), use=["second"]).mean().backward()
    assert wrapped.session.stats()["pactrain/steps"] == 2
    assert not model.first.weight.grad.any()  # Nothing of the step before.
    assert model.second.weight.grad.any()


def test_what_was_added_up_is_sent_also_if_the_last_pass_does_not_reach_it(wrap):
    model = Branches()
    wrapped = wrap(model)
    with wrapped.ddp.no_sync():
        wrapped.ddp(torch.ones(2, 6), use=["first"]).mean().backward()
    expected = model.first.weight.grad.clone()
    wrapped.ddp(torch.ones(2, 6), use=["second"]).mean().backward()
    assert torch.equal(model.first.weight.grad, expected)
    sent = wrapped.job.contributions[0][0]
    assert abs(sent).sum() > abs(model.second.weight.grad).sum().item()


def test_a_frozen_parameter_gets_no_gradient(wrap):
    model = Branches()
    wrapped = wrap(model)
    model.first.requires_grad_(False)
    wrapped.ddp(torch.ones(2, 6)).mean().backward()
    assert model.first.weight.grad is None
    assert model.second.weight.grad is not None


def test_backward_raises_the_typed_error_itself(wrap, net):
    wrapped = wrap(net)
    error = pactrain.StepNotAppliedError("step 0: layouts differ.\nMake them equal.")
    wrapped.native.fail_next = error
    with pytest.raises(pactrain.StepNotAppliedError) as raised:
        wrapped.step()
    assert raised.value is error
    assert not error.final
    assert gradients(net) == [None] * 6
    wrapped.step()  # The session lives.
    assert wrapped.session.stats()["pactrain/failed_steps"] == 1


def test_what_a_failed_step_brought_is_not_sent_by_a_later_one(wrap):
    model = Branches()
    wrapped = wrap(model)
    wrapped.native.fail_next = pactrain.StepNotAppliedError("no.\nRedo.")
    with pytest.raises(pactrain.StepNotAppliedError):
        wrapped.ddp(torch.ones(2, 6)).mean().backward()
    wrapped.ddp(torch.ones(2, 6), use=["second"]).mean().backward()
    assert not model.first.weight.grad.any()
    assert model.second.weight.grad.any()


def test_a_gradient_that_torch_negates_later_is_sent_as_it_counts(wrap):
    class Complex(nn.Module):
        def __init__(self):
            super().__init__()
            self.p = nn.Parameter(torch.ones(()))

        def forward(self):
            return (torch.complex(torch.ones(()), self.p).conj() * (1 + 2j)).real

    wrapped = wrap(Complex())
    wrapped.ddp().backward()
    assert wrapped.ddp.module.p.grad.item() == 2.0


def test_a_parameter_frozen_with_a_gradient_gets_the_mean_of_it(wrap):
    model = Branches()
    wrapped = wrap(model)
    with wrapped.ddp.no_sync():
        wrapped.ddp(torch.ones(2, 6)).mean().backward()
    own = model.first.weight.grad
    model.first.requires_grad_(False)
    wrapped.ddp(torch.ones(2, 6)).mean().backward()
    assert model.first.weight.grad is not own


def test_after_a_final_error_every_step_fails_with_it(wrap, net):
    wrapped = wrap(net)
    wrapped.native.fail_next = pactrain.ResyncRequiredError("gone.\nReload.")
    wrapped.native.is_final = True
    for _ in range(2):
        with pytest.raises(pactrain.ResyncRequiredError, match="gone") as raised:
            wrapped.step()
        assert raised.value.final
    assert submitted(wrapped.native) == 1


def test_channels_last_gradients_come_in_the_order_of_their_parameters(wrap):
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Conv2d(5, 4, 3))
    model = model.to(memory_format=torch.channels_last)
    plain = copy.deepcopy(model)
    images = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    wrapped = wrap(model)
    wrapped.step(images)
    plain(images).square().mean().backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
        assert ours.grad.stride() == ours.stride()


def test_bfloat16_and_float32_travel_in_buckets_of_their_own(wrap, net):
    net[2].bfloat16()
    plain = copy.deepcopy(net)

    def loss(model, call):
        hidden = call(0)(torch.ones(4, 6))
        return call(4)(call(2)(hidden.bfloat16()).float()).square().mean()

    class Mixed(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self):
            return loss(self.inner, lambda number: self.inner[number])

    wrapped = wrap(Mixed(net))
    wrapped.ddp().backward()
    loss(plain, lambda number: plain[number]).backward()
    assert net[2].weight.grad.dtype == torch.bfloat16
    for ours, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
    kinds = [bucket.buffer().dtype for bucket in wrapped.ddp._buckets.buckets]
    assert sorted(map(str, kinds)) == ["torch.bfloat16", "torch.float32"]


def test_buffers_go_through_the_agents_or_stay_apart(wrap):
    def run(**options):
        model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
        wrapped = wrap(model, buffer_sync_interval=2, **options)
        for _ in range(4):
            wrapped.step()
        return wrapped.session.stats()["pactrain/buffer_syncs"]

    assert run() == 2
    assert run(broadcast_buffers=False) == 0


@pytest.mark.parametrize("before", [True, False])
def test_pruning_works_before_and_after(wrap, before):
    model = small_net()
    if before:
        pactrain.prune(model, 0.5)
    wrapped = wrap(model)
    if not before:
        pactrain.prune(wrapped.ddp, 0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        wrapped.step(optimizer=optimizer)
    activate(wrapped)
    for _ in range(2):
        wrapped.step(optimizer=optimizer)
    mask = pactrain.masks.registry.get(model[2].weight)
    assert not model[2].weight[~mask].any()
    assert not model[2].weight.grad[~mask].any()
    assert wrapped.session.stats()["pactrain/masks_active"] == 1


def test_grasp_is_no_step(wrap, net):
    wrapped = wrap(net)
    batch = (torch.randn(8, 6), torch.randint(3, (8,)))
    pactrain.prune(
        wrapped.ddp, 0.3, method="grasp", batch=batch, loss=nn.functional.cross_entropy
    )
    assert submitted(wrapped.native) == 0
    wrapped.step()
    assert submitted(wrapped.native) == 1


def test_a_state_resumes_masks_and_step(wrap):
    model = small_net()
    pactrain.prune(model, 0.5)
    first = wrap(model)
    for _ in range(3):
        first.step()
    second = wrap(copy.deepcopy(model), state=first.session.state_dict())
    assert second.native.options.resume_step == first.session.next_step
    assert second.session.state_dict()["masks"].keys() == {"2.weight"}


def test_init_says_that_the_job_is_replaced(wrap, monkeypatch):
    monkeypatch.setattr(pactrain.world, "_replace", None)
    pactrain.init(replace=True)
    assert wrap(small_net()).native.options.replace


def test_a_sparse_gradient_is_refused(wrap):
    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(5, 3))

        def forward(self, inputs):
            return nn.functional.embedding(inputs, self.table, sparse=True)

    wrapped = wrap(Sparse())
    with pytest.raises(pactrain.RefusedError, match=r"gradient of table .*sparse_coo"):
        wrapped.ddp(torch.tensor([1, 2])).sum().backward()


def test_a_compiled_wrapper_steps(wrap, net):
    wrapped = wrap(net)
    compiled = torch.compile(wrapped.ddp, backend="aot_eager")
    for _ in range(2):
        compiled(torch.ones(4, 6)).square().mean().backward()
    assert wrapped.session.stats()["pactrain/steps"] == 2


def test_a_closed_wrapper_evaluates_but_does_not_train(wrap, net):
    wrapped = wrap(net)
    wrapped.step()
    wrapped.session.close()
    with pytest.raises(pactrain.PacTrainError, match="is closed"):
        wrapped.step()
    wrapped.ddp.eval()
    wrapped.ddp(torch.ones(4, 6))
    again = wrap(net)  # Its parameters know nothing of the closed one.
    again.step()
    assert again.session.stats()["pactrain/steps"] == 1
