"""Buckets that are packed on their device; torch stands in for the kernels."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
import torch
from fake_native import activate, submitted
from small_nets import small_net

import pactrain
from pactrain import device_path, devices
from pactrain.errors import RefusedError
from pactrain.packing import Packer
from pactrain.types import NodePath

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "device"))
import queued

STEPS = 6


@pytest.fixture(scope="module", autouse=True)
def device():
    queued.use()


def kept_by(image, elements):
    if image is None:
        return torch.ones(elements.numel(), dtype=torch.bool, device=elements.device)
    return image.bool()


class TorchKernels:
    """What DeviceKernels does, in the stream of now."""

    def __init__(self):
        self.packs = 0
        self.fails = False

    def totals_of(self, elements):
        return 4

    def pack(self, image, gradients, packed, totals, *, count_outside, stream):
        assert torch.accelerator.current_stream() == stream
        if self.fails:
            raise RuntimeError("cuLaunchKernel: CUDA_ERROR_X (1)\nmore")
        self.packs += 1
        keep = kept_by(image, gradients)
        totals.zero_()
        outside = (gradients[~keep] != 0).sum()
        totals[1::2] = torch.stack([outside, outside * 0])
        packed.copy_(gradients.float()[keep])  # Last, so it is there late.

    def unpack(self, image, packed, world_size, out, *, stream):
        assert torch.accelerator.current_stream() == stream
        mean = torch.zeros(out.numel(), device=out.device)
        mean[kept_by(image, out)] = packed / world_size
        out.copy_(mean)


@pytest.fixture
def kernels(monkeypatch):
    made = TorchKernels()
    monkeypatch.setattr(device_path, "kernels_here", lambda device: (True, ""))
    monkeypatch.setattr(device_path, "WITH_KERNELS", {"queued"})
    monkeypatch.setattr(device_path, "kernels_of", lambda device: made)
    return made


@pytest.fixture
def packing(monkeypatch, kernels):
    monkeypatch.setenv(device_path.VARIABLE, "device")
    return kernels


def train(wrap, place, model=None, before=lambda step, attached: None, **options):
    """The parameters after some steps, with masks that come in force after the second;
    and what was attached."""
    model = small_net() if model is None else model
    pactrain.prune(model, 0.5)
    attached = wrap(model.to(place), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    dtype = next(model.parameters()).dtype
    for step in range(STEPS):
        before(step, attached)
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(4, 6, generator=generator)
        attached.step(inputs.to(place, dtype), optimizer)
        if step == 1:
            activate(attached)
    parameters = [p.detach().cpu() for p in model.parameters()]
    attached.session.close()
    return parameters, attached


def on_cpu(monkeypatch, wrap, **options):
    monkeypatch.setenv(device_path.VARIABLE, "auto")
    parameters, _ = train(wrap, "cpu", **options)
    monkeypatch.setenv(device_path.VARIABLE, "device")
    return parameters


def equal(ours, theirs):
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("options", [{}, {"bucket_cap_mb": 1e-4}, {"gse": False}])
def test_what_is_packed_there_trains_as_on_the_cpu(wrap, monkeypatch, packing, options):
    expected = on_cpu(monkeypatch, wrap, **options)
    there, attached = train(wrap, "queued", **options)
    assert equal(there, expected)
    assert packing.packs == len(attached.native.packed) >= 3
    stats = attached.session.stats()
    assert stats["pactrain/device_path"] == 2
    assert stats["pactrain/device_fallbacks"] == 0
    assert stats["pactrain/device_scratch_bytes"] > 0


def test_bfloat16_has_room_for_what_is_kept_in_fp32(wrap, monkeypatch, packing):
    expected = on_cpu(monkeypatch, wrap, model=small_net().bfloat16())
    there, attached = train(wrap, "queued", model=small_net().bfloat16())
    assert equal(there, expected)
    assert attached.native.packed


def test_elements_outside_the_mask_are_counted(wrap, packing):
    _, attached = train(wrap, "queued", gse=False)
    first, *_, last = attached.native.packed
    # Weights outside the masks get gradients, which are not dropped here.
    assert first.outside > 0
    assert last.plan.kept + last.outside <= last.elements


def test_a_dense_step_has_all_gradients_from_the_device(wrap, monkeypatch, packing):
    def dense(step, attached):
        attached.native.dense_steps = (
            {attached.native.next_step} if step == 3 else set()
        )

    expected = on_cpu(monkeypatch, wrap, before=dense)
    there, _ = train(wrap, "queued", before=dense)
    assert equal(there, expected)


def test_a_device_that_fails_when_a_step_becomes_dense_is_named(wrap, packing):
    def dense(step, attached):
        native = attached.native
        native.dense_steps = {native.next_step} if step == 3 else set()
        fill_all = native._fill_all

        def broken():
            with queued.broken():
                fill_all()

        native._fill_all = broken if step == 3 else fill_all

    with pytest.raises(pactrain.PacTrainError, match="queued:0 failed while gradients"):
        train(wrap, "queued", before=dense)


def test_what_cannot_be_packed_goes_by_torch(wrap, monkeypatch, packing, caplog):
    def fail(step, attached):
        packing.fails = step == 4

    expected = on_cpu(monkeypatch, wrap)
    with caplog.at_level(logging.WARNING, "pactrain"):
        there, attached = train(wrap, "queued", before=fail)
    assert equal(there, expected)
    assert len(attached.native.packed) == 1
    (line,) = (r.getMessage() for r in caplog.records if "by torch" in r.getMessage())
    assert line.endswith(
        "bucket 0 was not packed there: cuLaunchKernel: CUDA_ERROR_X (1)"
    )
    stats = attached.session.stats()
    assert stats["pactrain/device_path"] == 1
    assert stats["pactrain/device_fallbacks"] == 1
    assert "torch (bucket 0 was not packed there" in attached.session.summary()


def test_a_step_that_fails_after_packing_leaves_the_session_usable(wrap, packing):
    def fail(step, attached):
        if step == 3:
            attached.native.fail_next = pactrain.StepNotAppliedError("no.\nAgain.")
            loss = attached.ddp(torch.ones(4, 6, device="queued")).square().mean()
            with pytest.raises(pactrain.StepNotAppliedError):
                loss.backward()

    _, attached = train(wrap, "queued", before=fail)
    assert attached.session.stats()["pactrain/steps"] == STEPS


@pytest.mark.parametrize(
    ("part", "left_out"),
    [
        (devices.DeviceCopies, "_follow"),  # The event before the kernel.
        (devices.StagedBucket, "_wait"),  # Of the host, before it submits.
    ],
)
def test_a_wait_that_was_left_out_shows(wrap, monkeypatch, packing, part, left_out):
    def leave_out(step, attached):
        if step == STEPS - 1:  # It is packed.
            monkeypatch.setattr(part, left_out, lambda self, *_: None)

    options = {"bucket_cap_mb": 1e-4}
    expected = on_cpu(monkeypatch, wrap, **options)
    there, _ = train(wrap, "queued", before=leave_out, **options)
    assert not equal(there, expected)


@pytest.fixture
def nccl(monkeypatch, packing):
    monkeypatch.setenv(device_path.VARIABLE, "nccl")
    monkeypatch.setattr(device_path, "nccl_here", lambda: (True, "NCCL 2.29.7, x.so"))
    return packing


def opened(step, attached):
    attached.native.nccl_open = True


def test_what_nccl_sums_trains_as_on_the_cpu(wrap, monkeypatch, nccl):
    expected = on_cpu(monkeypatch, wrap)
    monkeypatch.setenv(device_path.VARIABLE, "nccl")
    there, attached = train(wrap, "queued", before=opened)
    assert equal(there, expected)
    assert {bucket.path for bucket in attached.native.packed} == {NodePath.LEADER}
    stats = attached.session.stats()
    assert stats["pactrain/device_path"] == 3
    assert stats["pactrain/nccl_buckets"] == len(attached.native.packed)
    assert "nccl (PACTRAIN_DEVICE_PATH asks for it; NCCL 2.29.7" in (
        attached.session.summary()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_full_steps_are_summed_by_nccl_too(wrap, monkeypatch, nccl, dtype):
    expected = on_cpu(monkeypatch, wrap, model=small_net().to(dtype))
    monkeypatch.setenv(device_path.VARIABLE, "nccl")
    there, attached = train(wrap, "queued", small_net().to(dtype), opened)
    assert equal(there, expected)
    whole = [b for b in attached.native.packed if b.plan.image_bytes == 0]
    assert len(whole) >= 2
    assert len(attached.native.packed) == submitted(attached.native) >= STEPS
    assert {bucket.path for bucket in attached.native.packed} == {NodePath.LEADER}


def test_a_full_step_that_becomes_dense_has_all_gradients_from_the_device(
    wrap, monkeypatch, nccl
):
    def dense(step, attached):
        opened(step, attached)
        native = attached.native
        native.dense_steps = {native.next_step} if step == 0 else set()

    expected = on_cpu(monkeypatch, wrap, before=dense)
    monkeypatch.setenv(device_path.VARIABLE, "nccl")
    there, _ = train(wrap, "queued", before=dense)
    assert equal(there, expected)


def test_a_bucket_is_whole_before_nccl_reads_it(wrap, monkeypatch, nccl):
    def leave_out(step, attached):
        opened(step, attached)
        if step == STEPS - 1:
            monkeypatch.setattr(devices.StagedBucket, "_wait", lambda self: None)

    expected = on_cpu(monkeypatch, wrap)
    monkeypatch.setenv(device_path.VARIABLE, "nccl")
    there, _ = train(wrap, "queued", before=leave_out)
    assert not equal(there, expected)


def test_while_nccl_is_not_open_buckets_go_by_the_host(wrap, monkeypatch, nccl, caplog):
    expected = on_cpu(monkeypatch, wrap)
    monkeypatch.setenv(device_path.VARIABLE, "nccl")
    with caplog.at_level(logging.INFO, "pactrain"):
        there, attached = train(wrap, "queued")
    assert equal(there, expected)
    assert {bucket.path for bucket in attached.native.packed} == {NodePath.HOST}
    assert all(bucket.plan.image_bytes for bucket in attached.native.packed)
    assert attached.session.stats()["pactrain/device_path"] == 2
    lines = [r.getMessage() for r in caplog.records if "summed by NCCL" in r.msg]
    assert lines == ["gradients are not summed by NCCL: it is closed"]
    assert "device (not by NCCL: it is closed)" in attached.session.summary()


def test_without_memory_for_the_sum_a_bucket_goes_by_the_host(
    wrap, monkeypatch, nccl, caplog
):
    reduce = Packer.reduce

    def full(packer, elements, dtype):
        raise RuntimeError("out of memory: 8 bytes")

    def short(packer, *arguments):
        with monkeypatch.context() as patch:
            patch.setattr(Packer, "_new", full)
            return reduce(packer, *arguments)

    def fill(step, attached):
        opened(step, attached)
        monkeypatch.setattr(Packer, "reduce", short if step == 3 else reduce)

    expected = on_cpu(monkeypatch, wrap)
    monkeypatch.setenv(device_path.VARIABLE, "nccl")
    with caplog.at_level(logging.WARNING, "pactrain"):
        there, attached = train(wrap, "queued", before=fill)
    assert equal(there, expected)
    paths = [bucket.path for bucket in attached.native.packed]
    assert paths.count(NodePath.HOST) == 1
    assert attached.session.stats()["pactrain/nccl_fallbacks"] == 1
    assert "bucket 0 is not summed by NCCL: out of memory" in caplog.text


def test_agents_are_told_the_path_once_and_what_it_becomes(wrap, nccl):
    def fail(step, attached):
        nccl.fails = step == 4

    _, attached = train(wrap, "queued", before=fail)
    (before, after) = attached.native.paths
    assert before == (3, "PACTRAIN_DEVICE_PATH asks for it; NCCL 2.29.7, x.so")
    assert after[0] == 1
    assert after[1].startswith("bucket 0 was not packed there: cuLaunchKernel")


def test_who_has_given_up_packing_asks_for_no_nccl_when_it_attaches_again(wrap, nccl):
    def fail(step, attached):
        assert not attached.native.forgoes_nccl
        nccl.fails = True

    _, attached = train(wrap, "queued", before=lambda step, a: step or fail(step, a))
    assert attached.native.forgoes_nccl


def test_an_error_of_the_library_keeps_its_type(wrap, nccl):
    def refuse(*_):
        raise pactrain.StepNotAppliedError("rank 1 left.\nAgain.")

    def leave(step, attached):
        if step == 3:
            attached.native.reduce = refuse

    with pytest.raises(pactrain.StepNotAppliedError, match="rank 1 left"):
        train(wrap, "queued", before=leave)


def test_without_an_nccl_it_is_refused(wrap, monkeypatch, packing):
    monkeypatch.setenv(device_path.VARIABLE, "nccl")
    with pytest.raises(RefusedError, match=r"here: libnccl\.so\.2 is not loaded"):
        wrap(small_net().to("queued"))


@pytest.mark.parametrize("wanted", ["", "auto"])
def test_auto_goes_by_torch_where_the_kernels_can_run(
    wrap, kernels, monkeypatch, wanted
):
    monkeypatch.setenv(device_path.VARIABLE, wanted)
    _, attached = train(wrap, "queued")
    assert not attached.native.packed
    text = attached.session.summary()
    assert "torch (packing on the GPU made no step sooner" in text


def test_torch_can_be_asked_for(wrap, kernels, monkeypatch):
    monkeypatch.setenv(device_path.VARIABLE, "torch")
    _, attached = train(wrap, "queued")
    assert not attached.native.packed
    assert "torch (PACTRAIN_DEVICE_PATH asks for it)" in attached.session.summary()


def test_what_cannot_be_had_is_refused_in_words(wrap, monkeypatch):
    model = small_net().to("queued")
    for wanted, error, words in (
        ("cuda", pactrain.InvalidArgument, "is 'cuda'; allowed are 'auto', 'torch'"),
        ("nccl", RefusedError, "for NVIDIA's GPUs alone, and this is queued:0"),
        ("device", RefusedError, "for NVIDIA's GPUs alone, and this is queued:0"),
    ):
        monkeypatch.setenv(device_path.VARIABLE, wanted)
        with pytest.raises(error, match=words):
            wrap(model)
    with pytest.raises(RefusedError, match="the model is on the CPU"):
        wrap(small_net())


def test_without_a_driver_the_reason_is_the_librarys(wrap, monkeypatch):
    monkeypatch.setattr(device_path, "WITH_KERNELS", {"queued"})
    monkeypatch.setenv(device_path.VARIABLE, "device")
    with pytest.raises(RefusedError, match="cannot be had here: no NVIDIA driver"):
        wrap(small_net().to("queued"))


def test_auto_asks_the_driver_once_and_says_why_not(wrap, monkeypatch):
    monkeypatch.delenv(device_path.VARIABLE, raising=False)
    asked = []

    def too_old(device):
        asked.append(device)
        return False, "the driver can do CUDA 12.4"

    monkeypatch.setattr(device_path, "kernels_here", too_old)
    attached = wrap(small_net().to("queued"))
    assert "torch (there are kernels for NVIDIA's" in attached.session.summary()
    attached.session.close()
    assert not asked

    monkeypatch.setattr(device_path, "WITH_KERNELS", {"queued"})
    _, attached = train(wrap, "queued")
    assert asked == [torch.device("queued", 0)]
    assert "torch (the driver can do CUDA 12.4)" in attached.session.summary()
