"""make report-many: 16 and 32 real workers train the small transformer, on one machine, once.

Four and eight sites of four trainers, an agent each, on a common core of 100 Mbps links, TLS:
the byte-level transformer from fresh weights, keep 0.5, TERNARY in 7 levels. Beside it one
process that takes the exact mean of the same workers' gradients. What is shown is that so
many work together and learn the same; two cores say nothing of their speed. Into many.json.

    python -m bench.evidence.many --worlds=16,32
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import pactrain
from bench.evidence import read_json
from bench.evidence.checked import COUNT, NUMBER, POSITIVE, SHARE, TEXT, check_each
from bench.evidence.jobs import training
from bench.evidence.workloads import ROOT, ByteTransformer
from bench.exchange_layout import Layout
from bench.processes import ProcessError, interrupt_on_signals
from bench.results import processor
from bench.testbed import TestbedError, why_no_namespaces
from bench.topologies import star_links
from pactrain.masks import registry

RESULT = ROOT / "bench" / "results" / "evidence" / "many.json"
FIELDS = {"workers": COUNT, "sites": COUNT, "start": NUMBER, "loss": NUMBER, "seconds": POSITIVE,
          "mode": TEXT, "kept": SHARE, "exact_loss": NUMBER, "steps": COUNT,
          "machine": TEXT}  # fmt: skip
PER_SITE, RATE_MBPS = 4, 100.0
STEPS, WARM_UP, SEED, AMOUNT = 100, 10, 1, 0.5
PIN = "TERNARY 7"

Step = Callable[[list[tuple[Tensor, Tensor]]], None]


def prepared(workload: ByteTransformer) -> nn.Module:
    """Fresh weights, pruned, the same everywhere."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model = workload.make_model()
    pactrain.prune(model, AMOUNT)
    return model


def train(workload: ByteTransformer, model: nn.Module, workers: int, backward: Step) -> float:
    """Seconds per step of the second half; `backward` leaves the mean in the gradients."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=workload.rate, betas=(0.9, 0.95),
                                  weight_decay=workload.weight_decay)  # fmt: skip
    batches = workload.batches(SEED, workers)
    half = 0.0
    for step in range(STEPS):
        if step == STEPS // 2:
            half = time.monotonic()
        optimizer.param_groups[0]["lr"] = workload.rate * min(1.0, (step + 1) / WARM_UP)
        optimizer.zero_grad()
        backward(batches(step))
        torch.nn.utils.clip_grad_norm_(model.parameters(), workload.clip)
        optimizer.step()
    return (time.monotonic() - half) / (STEPS - STEPS // 2)


def be_rank() -> None:
    """One trainer; rank 0 prints what came of it."""
    workload = ByteTransformer()
    world = pactrain.init()
    model = prepared(workload)
    wrapped = pactrain.DistributedDataParallel(model, pin=PIN)
    start = -workload.score(model, test=True)

    def backward(batches: list[tuple[Tensor, Tensor]]) -> None:
        torch.autograd.backward(workload.loss(wrapped, *batches[world.rank]))

    seconds = train(workload, model, world.world_size, backward)
    if world.rank == 0:
        stats = wrapped.session.stats()
        print(json.dumps({
            "start": start, "loss": -workload.score(model, test=True), "seconds": seconds,
            "mode": wrapped.session.mode, "kept": 1 / stats["pactrain/ratio"],
        }), flush=True)  # fmt: skip
    wrapped.session.close()


def exact_loss(workers: int) -> float:
    """Of the exact mean in one process, from the same weights by the same samples."""
    workload = ByteTransformer()
    model = prepared(workload)
    masks = [(p, registry.get(p)) for p in model.parameters()]

    def backward(batches: list[tuple[Tensor, Tensor]]) -> None:
        for batch in batches:
            torch.autograd.backward(workload.loss(model, *batch) / workers)
        for parameter, mask in masks:
            if mask is not None and parameter.grad is not None:
                parameter.grad.mul_(mask)

    train(workload, model, workers, backward)
    return -workload.score(model, test=True)


def run(workers: int) -> dict[str, Any]:
    """ProcessError: a trainer or a daemon failed."""
    sites = workers // PER_SITE
    layout = Layout((PER_SITE,) * sites, star_links(sites), (1,) * sites, core=True)
    argv = ["-m", "bench.evidence.many", "--rank"]
    with training(layout, RATE_MBPS, "many", argv) as (_, said):
        (found,) = list(said)
    return {"workers": workers, "sites": sites, **found, "exact_loss": exact_loss(workers),
            "steps": STEPS, "machine": processor()}  # fmt: skip


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="bench.evidence.many",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--worlds", default="16,32")
    parser.add_argument("--again", action="store_true", help="also what is there")
    parser.add_argument("--rank", action="store_true", help="be one rank of it")
    options = parser.parse_args(argv)
    if options.rank:
        be_rank()
        return 0
    worlds = options.worlds.split(",")
    wrong = [one for one in worlds if one not in ("8", "16", "32", "64")]
    if wrong:
        print(f"report-many: worlds has '{wrong[0][:20]}', allowed: 8, 16, 32, 64", file=sys.stderr)
        return 2
    why = why_no_namespaces()
    if why is not None:
        print(f"report-many needs shaped network namespaces: {why}", file=sys.stderr)
        return 1
    interrupt_on_signals()
    found = {one["workers"]: one for one in read_many()}
    try:
        for workers in map(int, worlds):
            if workers in found and not options.again:
                continue
            found[workers] = run(workers)
            print(json.dumps(found[workers]), flush=True)
            RESULT.write_text(json.dumps([found[one] for one in sorted(found)], indent=1) + "\n")
    except (FileNotFoundError, ProcessError, TestbedError) as error:
        print(f"report-many failed: {error}", file=sys.stderr)
        return 1
    return 0


def read_many() -> list[dict[str, Any]]:
    return check_each(RESULT, read_json(RESULT), FIELDS, "run") if RESULT.exists() else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
