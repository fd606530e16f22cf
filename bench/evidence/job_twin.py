"""The virtual workers once more, with what a real job has of its own: so they are its twin.

A job's dither is by its own step numbers, and levels are taken of its bucket's elements in the
order of buckets. Else a run is what it is. For jobs in the chain, whose tree codec.CHAIN is.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from bench.evidence import codec
from bench.evidence.methods import ROWS, Agents, Setup
from bench.evidence.step_times_plan import cost_of
from bench.evidence.train import Run
from bench.evidence.workloads import ByteTransformer
from pactrain.buckets import Piece, plan_buckets
from pactrain.types import Codec, DType

BUCKET_BYTES = 25 * 2**20  # pactrain.DistributedDataParallel's.


class OfJob(Agents):
    """The exchange of a job whose first step has the number `first_step`."""

    def __init__(self, setup: Setup, what: Codec, kept: Tensor | None, first_step: int) -> None:
        super().__init__(setup, what, kept)
        self._first_step = first_step
        self._places = bucket_order(setup, kept)

    def exchange(self, gradients: Tensor, step: int) -> tuple[Tensor, float]:
        rows = gradients[:, self._places]
        total, sent = codec.exchange(rows, self._codec, self._first_step + step)
        whole = gradients.new_zeros(gradients.shape[1])
        return whole.index_copy_(0, self._places, total / len(gradients)), float(max(sent))


def bucket_order(setup: Setup, kept: Tensor | None) -> Tensor:
    """Places of the flat gradient, as the bucket has them. ValueError: it is not one bucket."""
    sizes = [math.prod(shape) for shape in setup.shapes]
    plan = plan_buckets([Piece(size, DType.FLOAT32) for size in sizes], BUCKET_BYTES)
    if len(plan) != 1:
        raise ValueError(f"buckets = {len(plan)}, allowed: 1; the twin is of small models")
    pieces = setup.pieces
    places = torch.cat([torch.arange(pieces[p].start, pieces[p].stop) for p in plan[0]])
    return places if kept is None else places[torch.isin(places, kept)]


def curve(
    row: str, seed: int, target: float, rate_factor: float, first_step: int
) -> list[tuple[int, float]]:
    """Held-out scores of such a job, of eight virtual workers; half a minute."""
    levels = cost_of(row).levels
    what = Codec[f"LEVELS{levels}"] if levels else Codec.FP32
    own = replace(ROWS[row], make=lambda setup, kept: OfJob(setup, what, kept, first_step))
    run = Run(ByteTransformer(), row, seed, target, rate_factor, row=own)
    while not run.done:
        run.step()
    return run.result()["curve"]  # type: ignore[no-any-return]
