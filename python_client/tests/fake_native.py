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

from pactrain.errors import PacTrainError
from pactrain.types import (
    NO_DIGEST,
    Codec,
    Decision,
    Digest,
    DType,
    Mode,
    Op,
    StepResult,
)

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
    def __init__(self, world_size: int = 1, step: int = 0) -> None:
        self.world_size = world_size
        self.first_step = step
        self.barrier = threading.Barrier(world_size)
        self.contributions: list[list[np.ndarray]] = [[] for _ in range(world_size)]
        self.decide: Callable[[int], Decision] = lambda step: FULL

    def rank(self, rank: int = 0) -> FakeNative:
        return FakeNative(self, rank)


class FakeNative:
    generation = 7
    site = "here"
    agent_name = "fake"
    step_deadline_seconds = 1.0

    def __init__(self, job: FakeJob, rank: int) -> None:
        self.job = job
        self.rank = rank
        self.world_size = job.world_size
        self.next_step = job.first_step
        self.decision = FULL
        self.is_final = False
        self.closed = False
        self.fail_next: PacTrainError | None = None
        self.votes: list[dict[str, object]] = []
        self.mask_sets: list[tuple[Digest, Digest, list[np.ndarray]]] = []
        self.submits: list[tuple[Op, Digest, Digest | None]] = []
        self._buckets: list[tuple[np.ndarray, DType, Op]] = []
        self._result: list[np.ndarray] = []

    def digest_of(self, data: bytes | np.ndarray) -> Digest:
        return digest_of(data)

    def set_masks(self, mask, layout, bucket_layouts, elements, bitmaps):
        assert not self._buckets, "masks were set while a step is open"
        self.mask_sets.append((mask, layout, [b.copy() for b in bitmaps]))

    def vote(self, layout, mask, unchanged, settle, inside, kept, elements):
        self.votes.append(
            {
                "layout": layout,
                "mask": mask,
                "unchanged": unchanged,
                "settle": settle,
                "inside": inside,
                "kept": kept,
                "elements": elements,
            }
        )

    def submit(self, bucket, data, elements, dtype, op, layout, last, parameters):
        assert bucket == len(self._buckets)
        if op == Op.XOR:
            kind: type = ctypes.c_uint32
        else:
            kind = ctypes.c_float if dtype == DType.FLOAT32 else ctypes.c_uint16
        values = np.ctypeslib.as_array(
            ctypes.cast(data, ctypes.POINTER(kind)), (elements,)
        ).copy()
        if op == Op.SUM and dtype == DType.BFLOAT16:
            values = torch.from_numpy(values).view(torch.bfloat16).float().numpy()
        self._buckets.append((values, dtype, op))
        self.submits.append((op, layout, parameters))

    def wait(self) -> StepResult:
        buckets, self._buckets = self._buckets, []
        step, self.next_step = self.next_step, self.next_step + 1
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        self.job.contributions[self.rank] = [values for values, _, _ in buckets]
        self.job.barrier.wait(10)
        self._result = [
            self._combine(index, dtype, op)
            for index, (_, dtype, op) in enumerate(buckets)
        ]
        self.job.barrier.wait(10)
        elements = sum(values.size for values, _, _ in buckets)
        self.decision = self.job.decide(step)
        return StepResult(
            step=step,
            attempts=1,
            dense=False,
            mode=Mode.FULL,
            codec=Codec.FP32,
            sent_bytes=8,
            received_bytes=16,
            elements=elements,
            submitted_elements=elements,
            wait_seconds=0.5,
            next=self.decision,
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

    def fetch(self, bucket, out):
        values = self._result[bucket]
        ctypes.memmove(out, values.ctypes.data, values.nbytes)

    def close(self):
        self.closed = True
