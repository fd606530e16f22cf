"""make report-check: the twin of an exchange gives what eight real trainers get.

Eight trainers with three agents in a chain of sites, TLS on, for 20 steps in every mode, each
with new heavy-tailed gradients in several buckets. Rank 0 compares every element, bit for
bit, with bench/evidence/codec.py, on which the evidence's own rows stand. Ends with a line of
JSON; exit status 1 if an element differs.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import pactrain
from bench.cluster import certificates, start_cluster
from bench.evidence.codec import CHAIN, exchange
from bench.exchange_model import Parameters, Source, step
from bench.launch import events, start_trainers
from bench.processes import Children, ProcessError, interrupt_on_signals
from bench.testbed import Link, LoopbackTestbed, TestbedError
from pactrain.buckets import Piece, plan_buckets
from pactrain.types import Codec, DType

STEPS = 20
SHAPES = [(64, 3, 3, 3), (64,), (96, 64, 3, 3), (300, 200), (257, 129), (10, 300), (10,)]
CAP_MB = 0.5
WORLD = sum(CHAIN.ranks)
LINK_MBPS = 1000.0  # Agents limit themselves to it; slow ones use the shorter form, as here.
KEEP = 0.5
LEVELS = ("3", "5", "7", "15", "31")
# What a pin says, and the share that is kept. bf16 is a coordinator's setting that no pin
# names, so a run apart: with masks it is in force from the first step on.
MODES = {
    "fp32": [("FULL", 1.0), ("COMPACTED", KEEP), ("TERNARY 7", 1.0)]
    + [(f"TERNARY {levels}", KEEP) for levels in LEVELS],
    "bf16": [("COMPACTED", KEEP)],
}


class Steps(Source):
    """Other gradients in every step, with tails so heavy that some are clipped."""

    def __init__(self, rank: int) -> None:
        super().__init__(SHAPES, rank)
        self._rank = rank
        self.number = 0

    @staticmethod
    def flat(rank: int, number: int) -> Tensor:
        generator = torch.Generator().manual_seed(10_000 * number + rank)
        normal, scale = torch.randn((2, sum(map(math.prod, SHAPES))), generator=generator)
        flat: Tensor = normal * scale.exp()
        return flat

    def take(self) -> list[Tensor]:
        pieces = torch.split(self.flat(self._rank, self.number), self._sizes)
        return [p.view(own) for p, own in zip(pieces, self._shapes, strict=True)]


def codec_of(mode: str, exact: str) -> Codec:
    if mode.startswith("TERNARY"):
        return Codec[f"LEVELS{mode.split()[1]}"]
    return Codec[exact.upper()]


def expected(number: int, codec: Codec, at: int, index: int, kept: Tensor | None) -> Tensor:
    """What each rank gets of step `number`: flat; `at` is the job's step, `index` the model."""
    gradients = torch.stack([Steps.flat(rank, number) for rank in range(WORLD)])
    sizes = [math.prod(shape) for shape in SHAPES]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    result = torch.zeros(gradients.shape[1])
    plan = plan_buckets([Piece(size, DType.FLOAT32) for size in sizes], int(CAP_MB * 2**20))
    assert len(plan) > 1, plan
    for bucket, planned in enumerate(plan):
        places = torch.cat([torch.arange(starts[p], starts[p] + sizes[p]) for p in planned])
        if kept is not None:
            places = places[kept[places]]
        total, _ = exchange(gradients[:, places], codec, at, bucket, index)
        result[places] = total / WORLD
    return result


def train(exact: str) -> Iterator[dict[str, Any]]:
    """One rank; what rank 0 found of each mode."""
    world = pactrain.init()
    models: list[
        pactrain.DistributedDataParallel
    ] = []  # All stay attached: each is a group of its own, from step 0 on.
    for index, (mode, keep) in enumerate(MODES[exact]):
        parameters = Parameters(SHAPES)
        masks = parameters.masks(keep) if keep < 1 else None
        pin = mode if exact == "fp32" else None
        model = pactrain.DistributedDataParallel(
            parameters, masks=masks, pin=pin, bucket_cap_mb=CAP_MB
        )
        models.append(model)
        session = model.session
        source, differing = Steps(world.rank), 0
        kept = None if masks is None else torch.cat([m.flatten() for m in masks.values()])
        codec = codec_of(mode, exact)
        wanted = f"{mode} levels" if mode.startswith("TERNARY") else f"{mode} {codec.words}"
        for source.number in range(STEPS):
            at = session.next_step  # A new job's are counted from 0, broadcasts among them.
            if session.mode != wanted:
                raise SystemExit(f"step {source.number} is {session.mode}, not {wanted}")
            step(model, source)
            if world.rank == 0:
                got = torch.cat(
                    [p.grad.flatten() for p in parameters.parameters() if p.grad is not None]
                )
                want = expected(source.number, codec, at, index, kept)
                differing += int((got.view(torch.int32) != want.view(torch.int32)).sum())
        elements = got.numel() if world.rank == 0 else 0
        yield {"mode": wanted, "keep": keep, "steps": STEPS, "elements": elements,
               "differing": differing}  # fmt: skip
    for model in models:
        model.session.close()


def run(exact: str) -> list[dict[str, Any]]:
    """ProcessError: a trainer or a daemon failed."""
    sites = dict.fromkeys("abc", 1)
    links = [Link("a", "b", LINK_MBPS), Link("b", "c", LINK_MBPS)]
    with (
        tempfile.TemporaryDirectory(prefix="pactrain-check-") as name,
        LoopbackTestbed(sites, links) as bed,
        Children(Path(name)) as children,
    ):
        pki = Path(name) / "pki"
        certificates(bed, pki)
        cluster = start_cluster(bed, children, Path(name), bed.hosts[1], risk="exact", pki=pki,
                                coordinator_flags=[f"--codec={exact}"])  # fmt: skip
        argv = ["-m", "bench.evidence.check", f"--rank-of={exact}"]
        first = start_trainers(bed, children, "check", argv, CHAIN.ranks, cluster)
        found = []
        for event in events(first, children):
            found.append(event)
            of = f"{event['steps']} x {event['elements']:,} elements"
            said = f"  {event['mode']:<18}keep {event['keep']:g}: {event['differing']} of {of}"
            print(f"{said} differ", flush=True)
        children.check()
        return found


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="bench.evidence.check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rank-of", choices=sorted(MODES), help="be one rank of it")
    options = parser.parse_args(argv)
    if options.rank_of:
        torch.set_num_threads(1)
        for mode in train(options.rank_of):
            if mode["elements"]:
                print(json.dumps(mode), flush=True)
        return 0
    interrupt_on_signals()
    found: list[dict[str, Any]] = []
    try:
        for exact in MODES:
            found += run(exact)
    except (ProcessError, TestbedError) as error:
        print(f"report-check failed: {error}", file=sys.stderr)
        return 1
    modes = sum(map(len, MODES.values()))
    differing = sum(one["differing"] for one in found)
    print(json.dumps({"modes": len(found), "steps": STEPS, "differing": differing}))
    return 1 if differing or len(found) != modes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
