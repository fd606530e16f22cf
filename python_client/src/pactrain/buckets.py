"""Which parameters share a bucket, and in which order buckets are submitted.

The rule depends on nothing but the parameters and the cap, so every trainer of a job
comes to the same layout by itself, in Python or C++, at the start or later:

1. Parameters that need a gradient and have elements are taken in registration order.
   Each dtype has one open bucket. A parameter goes into the open bucket of its dtype,
   unless that would then hold more than the cap (elements times bytes of the dtype:
   4 for float32, 2 for bfloat16): then that bucket is closed and the parameter opens
   another. So a bucket holds one dtype and at most the cap, or one parameter.
2. Buckets are numbered by their first parameter, the one registered last first:
   bucket 0 has the end of the network.
3. In a bucket its parameters lie in registration order without gaps, each in its own
   order of memory if that is gapless (a channels_last weight: NHWC), else in the order
   of its indices.

The numbers run backwards because buckets are submitted in the order of their numbers,
and backward() brings the gradients of the last layers first. A bucket is complete when
its first parameter has its gradient, so numbering by that lets bucket 0 travel while
the gradients of the first layers are still computed.

trainer/cpp/testdata/buckets.txt holds this and C++'s buckets.h to one rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .types import DType

_BYTES = {DType.FLOAT32: 4, DType.BFLOAT16: 2}


@dataclass(frozen=True)
class Piece:
    """One parameter, as far as the plan needs it."""

    elements: int
    dtype: DType


def plan_buckets(pieces: Sequence[Piece], cap_bytes: int) -> list[list[int]]:
    """The buckets in the order of their numbers, each as indices of its pieces,
    ascending."""
    runs: list[list[int]] = []
    opened: dict[DType, tuple[list[int], int]] = {}  # Indices, bytes.
    for index, piece in enumerate(pieces):
        size = piece.elements * _BYTES[piece.dtype]
        if size == 0:
            continue
        run, filled = opened.get(piece.dtype, ([], cap_bytes))
        if filled + size > cap_bytes:
            run, filled = [], 0
            runs.append(run)
        run.append(index)
        opened[piece.dtype] = (run, filled + size)
    return runs[::-1]
