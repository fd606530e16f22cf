from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from fake_native import FULL
from small_nets import pruned, small_net
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pactrain
from pactrain import _library
from pactrain.types import Digest, Mode, Op


def test_gradients_are_those_of_plain_ddp(attach, net):
    plain = DistributedDataParallel(copy.deepcopy(net))
    attached = attach(net)
    for _ in range(3):
        plain.zero_grad()
        plain(torch.ones(4, 6)).square().mean().backward()
        attached.ddp.zero_grad()
        attached.step()
    for ours, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


def test_a_decision_reads_like_a_sentence():
    decision = dataclasses.replace(
        FULL,
        version=3,
        mode=Mode.COMPACTED,
        mask_digest=Digest(0x1A2B3C4D << 32, 5),
        reason="all ranks voted for it",
    )
    text = "COMPACTED fp32, version 3, mask set 1a2b3c4d: all ranks voted for it"
    assert str(decision) == text
    assert repr(decision) == f"<{text}>"
    assert repr(FULL) == "<FULL fp32, version 0: start>"


def test_a_failed_step_raises_its_type_and_clears_gradients(attach, net):
    attached = attach(net)
    error = pactrain.StepNotAppliedError("step 0: layouts differ.\nMake them equal.")
    attached.native.fail_next = error
    with (
        pytest.raises(pactrain.StepNotAppliedError) as raised,
        attached.session.guard(),
    ):
        attached.step()
    assert raised.value is error
    assert not error.final
    assert all(parameter.grad is None for parameter in net.parameters())
    assert attached.session.last_error is None
    attached.step()  # The session lives.
    assert attached.session.stats()["pactrain/failed_steps"] == 1


def test_without_guard_the_text_is_shown(attach, net):
    attached = attach(net)
    attached.native.fail_next = pactrain.StepNotAppliedError("why.\nwhat to do.")
    with pytest.raises(RuntimeError, match=r"StepNotAppliedError: why\.\nwhat to do"):
        attached.step()
    assert isinstance(attached.session.last_error, pactrain.StepNotAppliedError)


def test_after_a_final_error_every_step_fails_with_it(attach, net):
    attached = attach(net)
    attached.native.fail_next = pactrain.ResyncRequiredError("gone.\nReload.")
    attached.native.is_final = True
    for _ in range(2):
        with (
            pytest.raises(pactrain.ResyncRequiredError, match="gone") as raised,
            attached.session.guard(),
        ):
            attached.step()
        assert raised.value.final
    assert len(attached.native.submits) == 2  # The gather at attach, one step.


def test_guard_lets_other_errors_pass(attach, net):
    attached = attach(net)
    with pytest.raises(RuntimeError, match="mine"), attached.session.guard():
        raise RuntimeError("mine")


def test_guard_does_not_raise_an_old_error(attach, net):
    attached = attach(net)
    attached.native.fail_next = pactrain.StepNotAppliedError("old.\nRedo.")
    with pytest.raises(RuntimeError):
        attached.step()
    with pytest.raises(RuntimeError, match="new"), attached.session.guard():
        raise RuntimeError("new")


def test_no_sync_accumulates_without_a_step(attach, net):
    attached = attach(net)
    with attached.ddp.no_sync():
        attached.step()
    assert len(attached.native.submits) == 1
    attached.step()
    assert attached.session.stats()["pactrain/steps"] == 1


@pytest.mark.parametrize(
    "options",
    [
        {"find_unused_parameters": True},
        {"static_graph": True},
        {"gradient_as_bucket_view": True},
        {"bucket_cap_mb": 0.0001},
        {"batched_grad_copy": True},
    ],
)
def test_every_kind_of_ddp_steps(attach, options):
    model = pruned()
    attached = attach(model, options)
    for _ in range(5):
        attached.ddp.zero_grad()
        attached.step()
    assert model[2].weight.grad.any()
    assert attached.native.votes


def test_an_unused_parameter_keeps_no_gradient(attach):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.used = nn.Linear(6, 2)
            self.unused = nn.Linear(6, 2)

        def forward(self, inputs):
            return self.used(inputs)

    model = Net()
    attached = attach(model, {"find_unused_parameters": True})
    attached.step()
    assert model.unused.weight.grad is None


def test_a_bfloat16_model_steps(attach):
    attached = attach(pruned().bfloat16())
    attached.step(torch.ones(4, 6, dtype=torch.bfloat16))
    assert attached.ddp.module[2].weight.grad.dtype == torch.bfloat16


def test_non_finite_gradients_reach_the_scaler(attach, net):
    attached = attach(net)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    before = net[0].weight.detach().clone()
    inputs = torch.full((4, 6), float("inf"))
    scaler.scale(attached.ddp(inputs).mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(net[0].weight, before)
    assert scaler.get_scale() == 1.0


def test_a_compiled_model_attaches_and_steps(group, attach, net, monkeypatch):
    attach(small_net())  # Sets the environment up.
    compiled = torch.compile(DistributedDataParallel(net), backend="eager")
    session = pactrain.attach(compiled)
    compiled(torch.ones(4, 6)).mean().backward()
    assert session.stats()["pactrain/steps"] == 1


def test_ddps_buffer_broadcast_is_off_and_buffers_go_through_the_agents(attach):
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    attached = attach(model, buffer_sync_interval=2)
    assert not attached.ddp.will_sync_module_buffers()
    for _ in range(4):
        attached.step()
    ops = [op for op, _, _ in attached.native.submits]
    assert ops == [Op.XOR] + [Op.SUM, Op.SUM, Op.XOR] * 2
    assert attached.session.stats()["pactrain/buffer_syncs"] == 2
    assert model[1].num_batches_tracked == 4


def test_buffers_that_ddp_keeps_apart_stay_apart(attach):
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    attached = attach(model, {"forward_sync_buffers": False}, buffer_sync_interval=1)
    attached.step()
    assert attached.session.stats()["pactrain/buffer_syncs"] == 0


def test_parameters_are_compared_at_the_first_step_and_after_a_load(attach, net):
    attached = attach(net)
    attached.step()
    attached.step()
    net.load_state_dict(small_net(3).state_dict())
    attached.step()
    sent = [digest is not None for op, _, digest in attached.native.submits[1:]]
    assert sent == [True, False, True]


def test_report_shows_in_stats_and_refuses_words(attach, net):
    session = attach(net).session
    session.report(loss=0.5, lr=torch.tensor(0.1))
    assert session.stats()["pactrain/loss"] == 0.5
    with pytest.raises(pactrain.InvalidArgument, match="loss is 'low'"):
        session.report(loss="low")


def test_stats_are_floats_with_prefix(attach, net):
    attached = attach(net)
    attached.step()
    stats = attached.session.stats()
    assert all(name.startswith("pactrain/") for name in stats)
    assert all(type(value) is float for value in stats.values())
    assert stats["pactrain/sent_bytes"] == 8
    assert stats["pactrain/generation"] == 7


def test_close_is_idempotent_and_later_backwards_say_so(attach, net):
    attached = attach(net)
    attached.step()
    attached.session.close()
    attached.session.close()
    assert attached.native.closed
    assert attached.session.state_dict()["step"] == attached.native.next_step
    with pytest.raises(RuntimeError, match="session of this model is closed"):
        attached.step()


def test_buffers_can_be_synchronised_between_steps_only(attach):
    attached = attach(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)))
    attached.session.sync_buffers()
    attached.step()
    assert attached.session.stats()["pactrain/buffer_syncs"] == 1
    attached.session.close()
    with pytest.raises(pactrain.PacTrainError, match="session of this model is closed"):
        attached.session.sync_buffers()


def test_an_error_of_our_own_ends_the_step_too(attach, net, monkeypatch):
    attached = attach(net)

    def wait():
        raise KeyError("oops")

    monkeypatch.setattr(attached.native, "wait", wait)
    with (
        pytest.raises(pactrain.PacTrainError, match="Internal error: KeyError"),
        attached.session.guard(),
    ):
        attached.step()


def test_a_copy_of_an_attached_model_is_made(attach, net):
    attached = attach(net)
    clone = copy.deepcopy(net)
    clone.load_state_dict(net.state_dict())
    attached.step()


def test_a_failed_step_of_one_model_clears_all(attach, net):
    first, second = attach(net), attach(small_net(1))
    first.step()
    second.native.fail_next = pactrain.StepNotAppliedError("no.\nRedo.")
    with pytest.raises(RuntimeError):
        second.step()
    assert all(parameter.grad is None for parameter in net.parameters())


def test_models_get_their_own_index(attach, net):
    first, second = attach(net), attach(small_net(1))
    assert [a.native.options.model for a in (first, second)] == [0, 1]
    first.session.close()
    assert attach(small_net(2)).native.options.model == 0


def test_the_slot_holds_the_largest_exchange(attach):
    attached = attach(nn.Linear(1, 1))
    assert attached.native.options.slot_bytes == 128
    assert attached.native.options.elements == 2


def test_what_moved_is_told_in_printable_words_that_fit():
    assert _library._printable("fc.weight 12 elements moved") == (
        b"fc.weight 12 elements moved"
    )
    assert _library._printable("ä\x1b") == rb"\xe4\x1b"
    assert len(_library._printable("x" * 300)) == 200
