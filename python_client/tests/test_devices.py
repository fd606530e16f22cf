"""Models on a device that works as late as it may, beside the same on the CPU."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from fake_native import FakeNative, activate, submitted
from small_nets import small_net
from thread_ranks import Script, newcomer, one_joins
from torch import nn
from torch.nn.utils import prune
from torch.testing._internal.distributed import fake_pg

import pactrain
from pactrain import devices
from pactrain.errors import RefusedError
from pactrain.masks import registry
from pactrain.types import DType, Op

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "device"))
import queued

assert fake_pg  # Importing it makes the process group "fake" known.
STEPS = 6


@pytest.fixture(scope="module", autouse=True)
def device():
    queued.use()


@pytest.fixture(autouse=True)
def another_mean(monkeypatch):
    """What comes back is never what was sent, as with several ranks."""
    combine = FakeNative._combine

    def halved(native, index, dtype, op):
        result = combine(native, index, dtype, op)
        halves = op == Op.SUM and dtype == DType.FLOAT32
        return result * np.float32(0.5) if halves else result

    monkeypatch.setattr(FakeNative, "_combine", halved)


@pytest.fixture(scope="module")
def gloo_for_the_cpu(group):
    """Gloo refuses the device; one rank needs nobody to broadcast to."""
    return dist.new_group(backend="cpu:gloo,queued:fake")


@pytest.fixture(params=["attach", "wrap"])
def make(request, attach, wrap, gloo_for_the_cpu):
    """make(model, **options): by either wrapper."""
    if request.param == "wrap":
        return wrap
    ddp_options = {"process_group": gloo_for_the_cpu}
    return lambda model, **options: attach(model, ddp_options, **options)


def inputs(step):
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(step))


def train(make, place, kind=None, model=None, **options):
    """The parameters after some steps, with masks that come in force after the second;
    and what was attached."""
    model = small_net() if model is None else model
    if kind is not None:
        pactrain.prune(model, 0.5, kind=kind)
    attached = make(model.to(place), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    for step in range(STEPS):
        dtype = next(model.parameters()).dtype
        attached.step(inputs(step).to(place, dtype), optimizer)
        if kind is not None and step == 1:
            activate(attached)
    parameters = [p.detach().cpu() for p in model.parameters()]
    attached.session.close()
    return parameters, attached


def equal(ours, theirs):
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("kind", [None, "zero", "freeze"])
def test_a_model_on_a_device_trains_as_on_the_cpu(make, kind):
    on_cpu, _ = train(make, "cpu", kind)
    on_device, attached = train(make, "queued", kind)
    assert equal(on_device, on_cpu)
    assert submitted(attached.native) >= STEPS
    assert attached.session.stats()["pactrain/steps"] == STEPS


def steps_of(make, place, kind="zero"):
    """What was attached, and its model, after each step; masks act after the second."""
    model = small_net()
    pactrain.prune(model, 0.5, kind=kind)
    attached = make(queued.move(model, place))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        attached.step(inputs(step).to(place), optimizer)
        if step == 1:
            activate(attached)
        yield step, attached, model


@pytest.mark.parametrize("kind", ["zero", "freeze"])
@pytest.mark.parametrize("by_hand", [False, True])
def test_a_model_may_be_on_the_cpu_at_the_end(make, kind, by_hand, caplog):
    """Lightning brings it there; also with other weights, as their average."""

    def trained(place):
        *_, (_, attached, model) = steps_of(make, place, kind)
        queued.move(model, "cpu")
        if by_hand:
            for parameter in model.parameters():
                parameter.data.add_(5)
        saved = [*model.state_dict().values()]
        masks = attached.session.state_dict()["masks"].values()
        assert "NOT REACHED" not in attached.session.summary() or by_hand
        attached.session.close()
        return [v.clone().cpu() for v in (*saved, *masks, *model.parameters())]

    expected = trained("cpu")
    said = sorted(record.message for record in caplog.records)
    caplog.clear()
    with queued.OneDevice():
        assert equal(trained("queued"), expected)
    assert not [r for r in caplog.records if "failed" in r.message]
    assert len(caplog.records) == len(said)


@pytest.mark.parametrize("frozen", [None, 0, 2])
@pytest.mark.parametrize("training", [True, False])
def test_a_model_that_was_moved_to_be_saved_and_moved_back_trains_on(
    wrap, frozen, training
):
    """Also where the script has frozen a layer since, and trains in eval mode."""

    def trained(place):
        for step, attached, model in steps_of(wrap, place):
            if step == 0:
                attached.ddp.train(training)
                if frozen is not None:
                    model[frozen].requires_grad_(False)
            if step in (2, 4):
                saved = {
                    n: v.clone()
                    for n, v in queued.move(model, "cpu").state_dict().items()
                }
                queued.move(model, place)
            if step == 3 and frozen is not None:
                model[frozen].requires_grad_(True)
        assert attached.session.stats()["pactrain/steps"] == STEPS
        assert submitted(attached.native) >= STEPS
        return [*saved.values(), *(p.detach().cpu() for p in model.parameters())]

    assert equal(trained("queued"), trained("cpu"))


@pytest.mark.parametrize(("place", "elsewhere"), [("queued", "cpu"), ("cpu", "queued")])
def test_a_step_of_a_model_that_was_moved_after_it_was_wrapped_is_refused(
    wrap, place, elsewhere
):
    model = queued.move(small_net(), place)
    attached = wrap(model)
    membership = attached.session.membership
    membership.world = dataclasses.replace(membership.world, world_size=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attached.step(inputs(0).to(place), optimizer)
    queued.move(model, elsewhere)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(RefusedError) as refused:
        attached.step(inputs(1).to(elsewhere), optimizer)
    assert (
        f"was on {torch.empty(0, device=place).device}, and is on {elsewhere}"
        in str(refused)
    )
    assert equal(model.parameters(), before)
    queued.move(model, place)
    attached.step(inputs(2).to(place), optimizer)
    assert attached.session.stats()["pactrain/steps"] == 2


def test_many_buckets_train_as_on_the_cpu(wrap):
    on_cpu, _ = train(wrap, "cpu", bucket_cap_mb=1e-4)
    on_device, attached = train(wrap, "queued", bucket_cap_mb=1e-4)
    assert equal(on_device, on_cpu)
    assert submitted(attached.native) > 2 * STEPS


def test_no_step_has_the_host_wait_for_the_stream_of_the_script(make):
    model = small_net().to("queued")
    attached = make(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        before = queued.host_waits()
        attached.step(inputs(step).to("queued"), optimizer)
        if step > 1:  # In the second one torch's DDP waits, to make its buckets anew.
            assert queued.host_waits() == before


def test_masks_have_the_host_wait_twice_in_a_step(make):
    """However many layers have some: before and after the optimizer's step."""
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(8)))
    pactrain.prune(model, 0.5)
    attached = make(model.to("queued"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        before = queued.host_waits()
        attached.step(inputs(step).to("queued"), optimizer)
        if step == 2:
            activate(attached)
        if step > 3:
            assert queued.host_waits() <= before + 2


# Each leaves out a wait.


def without_event_before_the_copy(monkeypatch):
    monkeypatch.setattr(devices.DeviceCopies, "_follow", lambda self, streams: None)


def without_waiting_before_submitting(monkeypatch):
    monkeypatch.setattr(devices.StagedBucket, "parts", lambda self: [self.host])


def completed_in_another_stream(monkeypatch):
    def begin(copies):
        torch.accelerator.set_stream(torch.Stream(device="queued"))
        bring_back = devices.StagedBucket.bring_back

        def in_ours(staged, *how):
            with copies._side:
                bring_back(staged, *how)

        monkeypatch.setattr(devices.StagedBucket, "bring_back", in_ours)

    monkeypatch.setattr(devices.DeviceCopies, "begin_thread", begin)


@pytest.mark.parametrize(
    "leave_out",
    [
        without_event_before_the_copy,
        without_waiting_before_submitting,
        completed_in_another_stream,
    ],
)
def test_this_device_finds_a_wait_that_was_left_out(make, monkeypatch, leave_out):
    on_cpu, _ = train(make, "cpu")
    leave_out(monkeypatch)
    on_device, _ = train(make, "queued")
    assert not equal(on_device, on_cpu)


class TwoStreams(nn.Module):
    """Its second half runs in a stream of its own, also in the backward pass."""

    def __init__(self):
        super().__init__()
        net = small_net()
        self.first, self.second = net[:2], net[2:]
        self.stream = None

    def forward(self, inputs):
        hidden = self.first(inputs)
        if inputs.device.type == "cpu":
            return self.second(hidden)
        self.stream = self.stream or torch.Stream(device=inputs.device)
        ours = torch.accelerator.current_stream()
        self.stream.wait_stream(ours)
        with self.stream:
            output = self.second(hidden)
        ours.wait_stream(self.stream)
        output.record_stream(ours)
        return output


def test_gradients_of_several_streams_travel_in_one_bucket(make):
    on_cpu, _ = train(make, "cpu", model=TwoStreams())
    on_device, _ = train(make, "queued", model=TwoStreams())
    assert equal(on_device, on_cpu)


def test_a_model_over_several_devices_is_refused(wrap):
    model = small_net()
    model[0].to("queued:0")
    model[2].to("queued:1")
    with pytest.raises(
        pactrain.RefusedError, match=r"3 devices \(0\.weight on queued:0"
    ):
        wrap(model)


def test_a_model_on_meta_is_refused(wrap):
    with pytest.raises(pactrain.RefusedError, match=r"0\.weight is on meta.*no values"):
        wrap(small_net().to("meta"))


def test_half_precision_is_refused(wrap):
    with pytest.raises(pactrain.RefusedError, match=r"0\.weight is torch\.float16"):
        wrap(small_net().to("queued").half())


def test_a_captured_pass_is_refused_before_anything_is_enqueued(make):
    model = small_net().to("queued")
    attached = make(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = submitted(attached.native)
    with (
        queued.capturing(),
        pytest.raises(pactrain.RefusedError, match="captured into a graph"),
        attached.session.guard(),
    ):
        attached.step(inputs(0).to("queued"))
    assert submitted(attached.native) == before
    attached.step(inputs(0).to("queued"), optimizer)  # The session goes on.
    assert attached.session.stats()["pactrain/steps"] == 1


def test_missing_pinned_memory_is_said_at_the_start(wrap):
    with (
        queued.pinned_limit(100),
        pytest.raises(
            pactrain.PacTrainError,
            match=r"page-locked.*[\d,]+ bytes are wanted, [\d,]+ are free, and `ulim",
        ),
    ):
        wrap(small_net().to("queued"))


def test_a_device_that_failed_before_is_said_to_have(wrap):
    model = small_net().to("queued")
    with (
        queued.broken(),
        pytest.raises(pactrain.PacTrainError, match="before the model was attached"),
    ):
        wrap(model)


def test_an_error_from_before_the_first_call_of_a_step_is_said_to_be_so(
    wrap, monkeypatch
):
    wrapped = wrap(small_net().to("queued"))
    wrapped.step(inputs(0).to("queued"))
    loss = wrapped.ddp(inputs(1).to("queued")).square().mean()

    def fail(self, streams):
        raise RuntimeError("an illegal memory access was encountered\nmore")

    monkeypatch.setattr(devices.DeviceCopies, "_follow", fail)
    with pytest.raises(
        pactrain.PacTrainError,
        match="queued:0 failed before gradients were copied to the host: an illegal",
    ):
        loss.backward()


def test_masks_go_along_with_a_model_that_is_moved():
    model = small_net()
    pactrain.prune(model, 0.5)
    table = pactrain.sparsity(model)
    assert pactrain.sparsity(model.to("queued")) == table
    assert pactrain.prune(model, 0.7).kept < table.kept


@pytest.mark.parametrize("kind", ["zero", "freeze"])
@pytest.mark.parametrize("places", [("cpu", "queued"), ("queued", "cpu")])
def test_state_goes_from_one_kind_of_device_to_another(ranks, places, kind):
    """A newcomer takes weights, buffers, masks and optimizer of a rank elsewhere."""
    first, second = places
    running = one_joins(
        ranks,
        lambda: Script(0, device=first, pruned=kind).run(),
        lambda: newcomer(1, device=second, pruned=kind),
    )
    assert not running.errors
    assert running.results[0].state() == running.results[1].state()


@pytest.mark.parametrize("given", [[0], ["queued:0"], [torch.device("cpu")], [1], None])
def test_device_ids_are_those_of_the_model_and_move_inputs(wrap, given):
    model = small_net().to("queued")
    if given in ([torch.device("cpu")], [1]):
        with pytest.raises(
            pactrain.InvalidArgument, match="that of the model, queued:0"
        ):
            wrap(model, device_ids=given)
        return
    wrapped = wrap(model, device_ids=given, output_device=given and given[0])
    x = inputs(0) if given else inputs(0).to("queued")
    wrapped.step(x)
    with torch.no_grad():
        assert wrapped.ddp(x).device.type == "queued"


def test_masks_that_are_tracked_are_those_of_the_cpu(make):
    def run(place):
        model = small_net()
        prune.l1_unstructured(model[2], "weight", 0.5)
        attached = make(model.to(place), masks="track", settle=2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(STEPS):
            attached.step(inputs(step).to(place), optimizer)
        attached.session.close()
        return attached.native.votes[-1]["mask"], [p.cpu() for p in model.parameters()]

    (mask, weights), (mask_there, weights_there) = run("cpu"), run("queued")
    assert mask == mask_there
    assert equal(weights, weights_there)


def test_bfloat16_trains_as_on_the_cpu(make):
    on_cpu, _ = train(make, "cpu", model=small_net().bfloat16())
    on_device, _ = train(make, "queued", model=small_net().bfloat16())
    assert equal(on_device, on_cpu)


def test_grasp_takes_the_masks_of_the_cpu():
    def masks(place):
        model = small_net().to(place)
        batch = (inputs(0).to(place), torch.tensor([0, 1, 2, 0]).to(place))
        loss = nn.functional.cross_entropy
        pactrain.prune(model, 0.5, method="grasp", loss=loss, batch=batch)
        return registry.get(model[2].weight).cpu()

    assert torch.equal(masks("queued"), masks("cpu"))


def test_alone_masks_act_on_a_device(group):
    def run(place):
        model = small_net()
        pactrain.prune(model, 0.5)
        model.to(place)
        with pytest.warns(UserWarning, match="not wrapped"):
            session = pactrain.attach(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(STEPS):
            optimizer.zero_grad()
            model(inputs(step).to(place)).square().mean().backward()
            optimizer.step()
        session.close()
        return [p.cpu() for p in model.parameters()]

    assert equal(run("queued"), run("cpu"))


def test_a_device_that_fails_in_a_step_ends_the_session(wrap):
    """The error is typed, and says when it came."""
    model = small_net().to("queued")
    wrapped = wrap(model)
    wrapped.step(inputs(0).to("queued"))
    model.zero_grad()  # Or torch's own sum of gradients is the first to see it.
    loss = wrapped.ddp(inputs(1).to("queued")).square().mean()

    def fail(_):
        queued.use().queued_break_there()

    hook = model[0].weight.register_hook(fail)  # The last gradient of all.
    # DDP's own copy into its bucket comes to it before ours.
    when = "failed (while gradients were computed|before gradients were copied)"
    try:
        with pytest.raises(pactrain.PacTrainError, match=when):
            loss.backward()
    finally:
        queued.use().queued_break(False)
        hook.remove()


def test_importing_pactrain_calls_nothing_of_a_device():
    """Nor pruning, also in a forked child, where CUDA could not be called later."""
    script = (
        "import torch, sys\n"
        "def refuse(*_): raise AssertionError('called')\n"
        "for name in ('init', '_lazy_init', 'device_count', 'is_available'):\n"
        "    setattr(torch.cuda, name, refuse)\n"
        "for name in ('current_accelerator', 'device_count', 'is_available'):\n"
        "    setattr(torch.accelerator, name, refuse)\n"
        "import os\n"
        "import pactrain\n"
        "child = os.fork()\n"
        "if child: sys.exit(os.waitpid(child, 0)[1] != 0)\n"
        "net = torch.nn.Sequential(torch.nn.Linear(4, 4))\n"
        "pactrain.prune(net, 0.5, exempt=())\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
