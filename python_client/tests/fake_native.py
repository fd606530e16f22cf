"""A trainer library for unit tests: ranks of one process meet in `FakeJob`.

Decisions come from a script: `job.decide` is called with each commit's step number.
"""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import threading
from collections.abc import Callable

import numpy as np
import torch

from pactrain.errors import PacTrainError, ResyncRequiredError, StepNotAppliedError
from pactrain.types import (
    NO_DIGEST,
    Codec,
    Decision,
    Digest,
    DType,
    HeldState,
    Mode,
    NodePath,
    NodeReport,
    Op,
    PackedBucket,
    Plan,
    StepResult,
)

LINEAGE = Digest(5, 5)
FULL = Decision(0, Mode.FULL, Codec.FP32, NO_DIGEST, NO_DIGEST, "start")


def digest_of(data: bytes | np.ndarray) -> Digest:
    raw = data if isinstance(data, bytes) else data.tobytes()
    hashed = hashlib.blake2b(raw, digest_size=16).digest()
    return Digest(int.from_bytes(hashed[:8], "big"), int.from_bytes(hashed[8:], "big"))


def activate(attached, version=1):
    """From the next commit on the decision has the masks that were voted for."""
    digest = attached.native.votes[-1]["mask"]
    decision = dataclasses.replace(
        FULL, version=version, mode=Mode.COMPACTED, mask_digest=digest
    )
    attached.job.decide = lambda step: decision


def submitted(native):
    """How many buckets of gradients were submitted."""
    return sum(op == Op.SUM for op, _, _ in native.submits)


class FakeJob:
    """One generation. It ends with the step `ends_at`; the ranks in `late_commits`
    still get the commit of that one, and learn of the end in their next step."""

    def __init__(self, world_size: int = 1, step: int = 0, generation: int = 7) -> None:
        self.world_size = world_size
        self.first_step = step
        self.generation = generation
        self.lineage = LINEAGE
        self.donor: int | None = None
        self.needy: set[int] = set()
        self.ends_at: int | None = None
        self.left = False  # A rank has detached.
        self.late_commits: set[int] = set()
        self.regroup: FakeRegroup | None = None
        self.barrier = threading.Barrier(world_size)
        self.contributions: list[list[np.ndarray]] = [[] for _ in range(world_size)]
        self.parameters: list[Digest | None] = [None] * world_size
        self.decide: Callable[[int], Decision] = lambda step: FULL

    def rank(self, rank: int = 0) -> FakeNative:
        return FakeNative(self, rank)


class FakeRegroup:
    """The coordinator of ranks that come and go: waits for `expected` of them."""

    def __init__(self, first: FakeJob) -> None:
        self.jobs = [first]
        self.expected = first.world_size
        self.on_formed: Callable[[FakeJob], None] = lambda job: None
        self._waiting: dict[FakeNative, HeldState] = {}
        self._changed = threading.Condition()
        first.regroup = self

    def arrive(self, native: FakeNative, held: HeldState) -> None:
        """Until the next generation is there, and `native` is a rank of it."""
        with self._changed:
            formed = len(self.jobs)
            self._waiting[native] = held
            if len(self._waiting) == self.expected:
                self._form()
                self._changed.notify_all()
            assert self._changed.wait_for(lambda: len(self.jobs) > formed, 20)

    def _form(self) -> None:
        last = self.jobs[-1].generation
        reports = sorted(self._waiting.items(), key=lambda item: item[0].asked_rank)
        newest = max(
            (held.committed, held.next_step)
            for _, held in reports
            if held.lineage == LINEAGE
        )
        job = FakeJob(len(reports), newest[1] + 100, last + 1)
        job.regroup = self
        current = [
            rank
            for rank, (_, held) in enumerate(reports)
            if (held.lineage, held.committed, held.next_step) == (LINEAGE, *newest)
        ]
        job.donor = current[0]
        job.needy = set(range(len(reports))) - set(current)
        for rank, (native, _) in enumerate(reports):
            native.enter(job, rank)
        self._waiting = {}
        self.jobs.append(job)
        self.on_formed(job)


class FakeNative:
    site = "here"
    agent_name = "fake"
    step_deadline_seconds = 1.0

    def __init__(self, job: FakeJob, rank: int) -> None:
        self.asked_rank = rank
        self.reports: list[HeldState] = []
        self.reattach_errors: list[PacTrainError] = []
        self.enter(job, rank)
        self.fail_next: PacTrainError | None = None
        self.votes: list[dict[str, object]] = []
        self.kept: list[tuple[Digest, list[tuple[str, int, int]]]] = []
        self._elements: dict[int, int] = {}  # Of masks, by bucket.
        self.mask_sets: list[tuple[Digest, Digest, list[np.ndarray]]] = []
        self.submits: list[tuple[Op, Digest, Digest | None]] = []
        self.packed: list[PackedBucket] = []
        self.nccl_open = False
        self.reduced = 0  # Buckets.
        self.paths: list[tuple[int, str]] = []
        self.forgoes_nccl = False
        self.dense_steps: set[int] = set()

    def enter(self, job: FakeJob, rank: int) -> None:
        self.job = job
        self.rank = rank
        self.world_size = job.world_size
        self.generation = job.generation
        self.lineage = job.lineage
        self.donor = job.donor
        self.needs_state = rank in job.needy
        self.next_step = self.resume_step = job.first_step
        self.decision = FULL
        self.is_final = self.may_rejoin = self.closed = False
        self.closed_at_exit = False
        self._buckets: list[tuple[np.ndarray, DType, Op]] = []
        self._outs: list[int] = []

    def reattach(self, held: HeldState, timeout_seconds: float):
        assert timeout_seconds > 0
        self.closed = True
        if self.reattach_errors:
            raise self.reattach_errors.pop(0)
        self.reports.append(held)
        assert self.job.regroup is not None
        self.job.regroup.arrive(self, held)

    def _end(self) -> PacTrainError:
        self.is_final = self.may_rejoin = True
        return StepNotAppliedError("rank 9 was lost.\nAttach again.")

    def digest_of(self, data: bytes | np.ndarray) -> Digest:
        return digest_of(data)

    def set_masks(self, mask, first_bucket, bucket_layouts, elements, bitmaps):
        assert first_bucket >= len(self._buckets), "the bucket is submitted already"
        self.mask_sets.append((mask, first_bucket, [b.copy() for b in bitmaps]))
        self._elements |= {first_bucket + i: n for i, n in enumerate(elements)}

    def vote(self, layout, mask, unchanged, settle, inside, kept, elements, moved=""):
        self.votes.append(
            {
                "layout": layout,
                "mask": mask,
                "unchanged": unchanged,
                "settle": settle,
                "inside": inside,
                "kept": kept,
                "elements": elements,
                "moved": moved,
            }
        )

    def keep(self, mask, parameters):
        self.kept.append((mask, list(parameters)))

    def tell_path(self, number, reason):
        self.paths.append((number, reason))

    def forgo_nccl(self):
        self.forgoes_nccl = True

    def submit(self, bucket, parts, out, dtype, op, layout, last, parameters):
        assert bucket == len(self._buckets)
        if op == Op.XOR:
            kind: type = ctypes.c_uint32
        else:
            kind = ctypes.c_float if dtype == DType.FLOAT32 else ctypes.c_uint16
        values = np.concatenate(
            [
                np.ctypeslib.as_array(ctypes.cast(data, ctypes.POINTER(kind)), (size,))
                for data, size in parts
            ]
        )
        if op == Op.SUM and dtype == DType.BFLOAT16:
            values = torch.from_numpy(values).view(torch.bfloat16).float().numpy()
        self._buckets.append((values, dtype, op))
        self._outs.append(out)
        self.submits.append((op, layout, parameters))

    def plan_bucket(self, bucket, elements, layout):
        bits = self._bits(bucket)
        if bits is None or bits.size != elements:
            return Plan(self.nccl_open, False, elements, 0, NO_DIGEST)
        kept = int(bits.sum())
        mask = self.decision.mask_digest
        return Plan(True, not self.options.gse, kept, elements, mask)

    def mask_image(self, bucket, elements, layout, plan):
        """A byte for each element, unlike the kernels'."""
        return self._bits(bucket)

    def _kept(self, bucket):
        if bucket.plan.image_bytes == 0:
            return np.ones(bucket.elements, dtype=bool)
        return self._bits(bucket.index).astype(bool)

    def _bits(self, bucket):
        """Of the masks in force, if they were given and this step is not dense."""
        for mask, index, (bits,) in reversed(self.mask_sets):
            if (mask, index) == (self.decision.mask_digest, bucket):
                elements = self._elements[bucket]
                return np.unpackbits(bits, count=elements, bitorder="little")
        return None

    def reduce(self, bucket, elements, plan, dtype, layout, source, target, stream):
        if not self.nccl_open:
            return NodePath.HOST
        self._at(target, plan.kept, np.float32)[:] = self._at(
            source, plan.kept, np.float32
        )
        self.reduced += 1
        return NodePath.LEADER

    @property
    def node_report(self):
        reason = "" if self.nccl_open else "it is closed"
        return NodeReport(self.nccl_open, False, self.reduced, 0, 0.0, 0.0, reason)

    def submit_packed(self, bucket, layout, last, parameters):
        assert bucket.index == len(self._buckets)
        bits = self._kept(bucket)
        values = np.zeros(bucket.elements, dtype=np.float32)
        values[bits] = self._at(bucket.memory, bucket.plan.kept, np.float32)
        self.packed.append(bucket)
        self._buckets.append((values, DType.FLOAT32, Op.SUM))
        self._outs.append(bucket)
        self.submits.append((Op.SUM, layout, parameters))

    @staticmethod
    def _at(address, elements, dtype):
        size = elements * np.dtype(dtype).itemsize
        buffer = (ctypes.c_uint8 * size).from_address(address)
        return np.frombuffer(buffer, dtype=dtype)

    def _fill_all(self):
        """What is packed is sent again whole, as the library has it."""
        for index, out in enumerate(self._outs):
            if isinstance(out, PackedBucket):
                out.fill()
                kind = np.float32 if out.dtype == DType.FLOAT32 else np.uint16
                values = self._at(out.memory, out.elements, kind).copy()
                if out.dtype == DType.BFLOAT16:
                    values = (values.astype(np.uint32) << 16).view(np.float32)
                self._buckets[index] = (values, out.dtype, Op.SUM)
                self._outs[index] = out.memory

    def wait(self) -> StepResult:
        outside = sum(b.outside for b in self._outs if isinstance(b, PackedBucket))
        if dense := outside > 0 or self.next_step in self.dense_steps:
            self._fill_all()
        buckets, self._buckets = self._buckets, []
        outs, self._outs = self._outs, []
        step, self.next_step = self.next_step, self.next_step + 1
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        job = self.job
        if job.ends_at is not None and step > job.ends_at:
            raise self._end()
        self.job.contributions[self.rank] = [values for values, _, _ in buckets]
        self.job.parameters[self.rank] = self.submits[-1][2]
        self._meet()
        self._compare()
        results = [
            self._combine(index, dtype, op)
            for index, (_, dtype, op) in enumerate(buckets)
        ]
        self._meet()
        if step == job.ends_at and self.rank not in job.late_commits:
            raise self._end()
        for out, values in zip(outs, results, strict=True):
            if isinstance(out, PackedBucket):
                bits = self._kept(out)
                sums = values[bits] * np.float32(self.world_size)
                self._at(out.memory, out.plan.kept, np.float32)[:] = sums
                continue
            ctypes.memmove(out, values.ctypes.data, values.nbytes)
        self.resume_step = self.next_step
        elements = sum(values.size for values, _, _ in buckets)
        self.decision = self.job.decide(step)
        return StepResult(
            step=step,
            attempts=1,
            dense=dense,
            mode=Mode.FULL,
            codec=Codec.FP32,
            sent_bytes=8,
            received_bytes=16,
            dense_bytes=40,
            link_rate=0.0,
            elements=elements,
            submitted_elements=elements,
            wait_seconds=0.5,
            next=self.decision,
        )

    def _meet(self) -> None:
        try:
            self.job.barrier.wait(10)
        except threading.BrokenBarrierError:
            if not self.job.left:
                raise
            raise self._end() from None

    def _compare(self) -> None:
        if len(set(self.job.parameters)) > 1:
            self.is_final = True
            raise ResyncRequiredError(
                f"parameters differ: {self.job.parameters} at ranks 0, 1, ..."
                "\nLoad the last checkpoint at all ranks and start them again."
            )

    def _combine(self, index: int, dtype: DType, op: Op) -> np.ndarray:
        parts = [contribution[index] for contribution in self.job.contributions]
        total = parts[0].copy()
        for part in parts[1:]:
            total = total ^ part if op == Op.XOR else total + part
        if op == Op.XOR:
            return total
        total = total / np.float32(self.world_size)
        if dtype == DType.BFLOAT16:
            return torch.from_numpy(total).bfloat16().view(torch.uint16).numpy()
        return total

    def close_at_exit(self):
        self.closed_at_exit = self.closed = True

    def detach(self):
        if not self.closed and not self.is_final and self.job.regroup is not None:
            self.job.left = True
            self.job.regroup.expected = self.job.world_size - 1
            self.job.barrier.abort()

    def close(self):
        self.detach()
        self.closed = True
