"""make report-runs: real trainings to the target, against steps times seconds per step.

The page's times to accuracy are steps of virtual workers in one process, times seconds per
step. Here eight trainers and their agents, over TLS, train the byte-level transformer on each
topology until they are at the committed target. Two things are held to what was known before:
their steps to the committed ones of the virtual workers, and their seconds to those steps times
a predicted step. It is the flow-level simulator's; the formula's stands beside.

Links are so slow that they hold a step, not this machine's processors. A topology whose links
are fast whatever is asked is held by processors: there the exchange is measured alone, before,
by bench.exchange with random gradients, and comes after the compute. From the end of an
exchange to the next gradients there are COMPUTE_SECONDS, the trainers' real work and a sleep.
All ranks evaluate, of equal weights, so all stop at the same step; that time is not counted.

  python -m bench.evidence.runs --topologies=chain,star --rows=levels7-0.5,ddp

Needs root, PACTRAIN_DATA and some minutes for each; a run that is there is not made again (but
with --again). Ends with a line of JSON, also in out/report-runs.json: {"runs",
"worst_steps_ratio", "worst_step_ratio", "worst_seconds_ratio", "worst_ratio_by_formula",
"topologies", "outside", "twins_equal"}. A twin is the chain's job once more, by virtual workers
(job_twin.py).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from typing import Any

import torch
from torch import Tensor, nn

import pactrain
from bench.evidence import chosen, job_twin, read_json
from bench.evidence.checked import (
    AMOUNT,
    COUNT,
    CURVE,
    LIST,
    NUMBERS,
    POSITIVE,
    TEXT,
    check_each,
    one_of,
)
from bench.evidence.jobs import training
from bench.evidence.run_ratios import Found, seconds_ratio, seconds_to_target, summary
from bench.evidence.scale import Speeds, bench_exchange, read_speeds
from bench.evidence.simulator import Bucket, Coding, Pipes, simulate
from bench.evidence.step_times_plan import TOPOLOGY, pin_of
from bench.evidence.steps import (
    adopt_start,
    read_pieces,
    read_targets,
    refuse_own_results,
    versions,
)
from bench.evidence.times import COSTS, PACKED_ABOVE_MBPS
from bench.evidence.train import Run, crossing, flat
from bench.evidence.tuning import FIRST_SEED, Piece, best_factors, split
from bench.evidence.workloads import ROOT, ByteTransformer
from bench.exchange_layout import Layout, bound_seconds
from bench.exchange_rows import OURS
from bench.exchange_train import Processors
from bench.processes import ProcessError, interrupt_on_signals
from bench.results import processor
from bench.testbed import TestbedError, shaped_counters, why_no_namespaces
from bench.topologies import Topology, topologies

RESULT = ROOT / "bench" / "results" / "evidence" / "runs.json"
FIELDS = {"topology": one_of(topologies()), "row": one_of(COSTS), "seed": COUNT,
          "rate_factor": POSITIVE, "link_mbps": LIST,
          "compute_seconds": AMOUNT, "committed_steps": COUNT, "formula": POSITIVE,
          "simulated": POSITIVE, "curve": CURVE, "seconds_of_steps": NUMBERS, "late_share": AMOUNT,
          "wall_seconds": POSITIVE, "processors_busy": AMOUNT, "machine": TEXT, "commit": TEXT,
          "predicted": POSITIVE}  # fmt: skip
OUT = ROOT / "out" / "report-runs.json"
# By row, Mbps of the slowest direction: a step then waits for links longer than it computes.
RATES_MBPS = {"levels7-0.5": 1.0, "ddp": 10.0}
ROWS_ALONE = {"levels7-0.5": "levels7-0.5", "ddp": "full"}  # What bench.exchange calls them.
COMPUTE_SECONDS = 0.25
# An idle link sends so little of a step at once, or one packet; and none is lost that waits.
BURST_SHARE, LEAST_BURST_BYTES, WAIT = 1 / 50, 1600, "2s"


# --- One trainer ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """What all ranks are told: the virtual workers' piece."""

    row: str
    seed: int
    rate_factor: float
    target: float


class Trainer(Run):
    """A virtual worker's process: agents bring it the mean, all else is the virtual workers'."""

    def __init__(self, told: Told, rank: int) -> None:
        workload = ByteTransformer()
        super().__init__(workload, told.row, told.seed, told.target, told.rate_factor)
        of_all = self._batches
        self._batches = lambda step: [of_all(step)[rank]]
        self._rank = rank
        self.wrapped = pactrain.DistributedDataParallel(
            self._model, masks=self._masks(), pin=pin_of(told.row)
        )
        self._model.get_submodule("bytes").register_forward_hook(self._forward)
        self.modes: set[str] = set()
        self.first_step = self.wrapped.session.next_step
        self.seconds: list[float] = []  # Of each step, from the end of an exchange to the next.
        self.late: list[float] = []  # By how much its computing took longer than it may.
        self.evaluating = 0.0
        self._since = time.monotonic()

    def _masks(self) -> dict[str, Tensor] | None:
        if self._kept is None:
            return None
        whole = torch.zeros(self._weights.numel(), dtype=torch.bool)
        whole[self._kept] = True
        parts = torch.split(whole, [p.numel() for p in self._model.parameters()])
        named = self._model.named_parameters()
        return {name: part.view(p.shape) for (name, p), part in zip(named, parts, strict=True)}

    def _forward(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        """Backward comes here last; the bucket waits for it."""
        if output.requires_grad:
            output.register_hook(self._pace)  # type: ignore[no-untyped-call]

    def _pace(self, gradient: Tensor) -> None:
        left = self._since + COMPUTE_SECONDS - time.monotonic()
        self.late.append(max(0.0, -left))
        if left > 0:
            time.sleep(left)

    def _update(self, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
        self._model.zero_grad()
        self.modes.add(self.wrapped.session.mode)
        torch.autograd.backward(self.workload.loss(self.wrapped, *batches[0]))
        now = time.monotonic()
        self.seconds.append(now - self._since)
        self._since = now
        return flat(self._model, gradients=True)

    def _evaluate(self) -> None:
        started, before = time.monotonic(), len(self._curve)
        super()._evaluate()
        if self._rank == 0 and len(self._curve) > before:
            say(at=self._curve[-1])
        took = time.monotonic() - started
        self.evaluating += took
        self._since += took

    def found(self) -> dict[str, Any]:
        return {
            "curve": self._curve, "seconds_of_steps": [round(s, 4) for s in self.seconds],
            "late_share": sum(late > 0 for late in self.late) / len(self.late),
            "late_seconds": sum(self.late), "evaluating_seconds": self.evaluating,
            "modes": sorted(self.modes), "first_step": self.first_step,
        }  # fmt: skip


def say(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def be_rank(told: Told) -> None:
    torch.set_num_threads(1)
    world = pactrain.init()
    run = Trainer(told, world.rank)
    if world.rank == 0:
        say(begins=True)
    while not run.done:
        run.step()
    if world.rank == 0:
        say(**run.found())
    run.wrapped.session.close()


# --- What is known before ------------------------------------------------------------------


def pieces_of(rows: Sequence[str]) -> dict[str, Piece]:
    """The virtual workers', at each row's chosen rate. ValueError: one is missing."""
    pieces, targets = read_pieces([ByteTransformer.name]), read_targets()
    taken, _ = split(pieces, best_factors(pieces, targets))
    found = {row: taken.get((ByteTransformer.name, row, FIRST_SEED)) for row in rows}
    for row, piece in found.items():
        if piece is None or steps_of(piece, target()) is None:
            raise ValueError(f"{row}: no piece of seed {FIRST_SEED} that is at the target; "
                             "allowed: one. Run make report-steps first.")  # fmt: skip
    return {row: piece for row, piece in found.items() if piece is not None}


def target() -> float:
    return float(read_targets()[ByteTransformer.name]["target"])


def steps_of(piece: Piece, at: float) -> int | None:
    return crossing(list(map(tuple, piece["curve"])), at)


def asked_mbps(layout: Layout, row: str) -> float:
    """Of all links, so that the slowest direction has the row's rate; a topology's own stays."""
    return layout.own_mbps or RATES_MBPS[row] / layout.slowest(1.0)


@dataclass(frozen=True)
class Predicted:
    """Seconds of a step; its gradients are one bucket, which waits for the end of backward."""

    own_bytes: float  # Of one sum, as it crosses a link.
    formula: float  # Compute, then the bytes on the busiest link.
    simulated: float
    # Compute, then an exchange as it was measured alone before; None: links hold the step.
    by_processors: float | None = None

    @property
    def seconds(self) -> float:
        """What a run is held to."""
        return self.by_processors or self.simulated


def exchange_alone(topology: Topology, row: str, piece: Piece) -> float:
    """Seconds of a step of as many elements without compute. ProcessError: it failed."""
    name = ROWS_ALONE[row]
    elements = round(piece["keep"] * piece["elements"] / OURS[name].keep)
    environment = {"TOPOLOGY": topology.name, "ROWS": name, "ELEMENTS": str(elements),
                   "ROUNDS": "5", "STEPS": "20", "MEMORY": "0"}  # fmt: skip
    status, figures = bench_exchange(environment)
    if status != 0:
        raise ProcessError(f"bench.exchange ended with status {status}")
    return float(next(one["seconds"] for one in figures["rows"] if one["name"] == name))


def predict(piece: Piece, row: str, layout: Layout, speeds: Speeds) -> Predicted:
    """By the bytes that the virtual workers sent."""
    asked, cost = asked_mbps(layout, row), COSTS[row]
    kept = round(piece["keep"] * piece["elements"])
    bits = cost.element_bits(layout.slowest(asked))
    if cost.levels and layout.slowest(asked) <= PACKED_ABOVE_MBPS:
        bits = 8 * piece["bytes_per_element"] / piece["keep"]
    coding = Coding(bits, speeds.encode, speeds.decode) if cost.levels else Coding(bits)
    own_bytes = kept * coding.bits / 8
    pipes = Pipes(layout, asked, layout.hosts)
    return Predicted(
        own_bytes,
        COMPUTE_SECONDS + bound_seconds(layout.tree_crossings * own_bytes, layout.slowest(asked)),
        simulate(pipes, [Bucket(kept, COMPUTE_SECONDS)], coding).seconds,
    )


# --- A run ---------------------------------------------------------------------------------


def shaping(layout: Layout, predicted: Predicted) -> dict[str, Any]:
    """The testbed's own where links are fast: small bursts are work for processors."""
    if layout.own_mbps:
        return {}
    burst = max(LEAST_BURST_BYTES, round(BURST_SHARE * predicted.own_bytes))
    return {"burst_bytes": burst, "latency": WAIT}


class Usage:
    """Of the links and the processors, from now on."""

    def __init__(self, core: str, links: int) -> None:
        self._core, self._links = core, links
        self._began, self._worked = time.monotonic(), Processors.now().worked
        self._sent = self._payload()

    def _payload(self) -> list[int]:
        return [counter.payload for counter in shaped_counters(self._core, self._links)]

    def seconds(self) -> float:
        return time.monotonic() - self._began

    def found(self, steps: int) -> dict[str, Any]:
        """`link_bytes`: payload of a step, of each link there and back."""
        wall, worked = self.seconds(), Processors.now().worked - self._worked
        sent = [after - before for before, after in zip(self._sent, self._payload(), strict=True)]
        return {
            "link_bytes": [round(payload / steps, 1) for payload in sent],
            "wall_seconds": round(wall, 1),
            "processors_busy": round(worked / wall / (os.cpu_count() or 1), 3),
        }


def run(topology: Topology, row: str, piece: Piece) -> dict[str, Any]:
    """ProcessError, TestbedError: something failed."""
    layout, told = topology.layout, Told(row, FIRST_SEED, piece["rate_factor"], target())
    asked = asked_mbps(layout, row)
    predicted = predict(piece, row, layout, read_speeds())
    if layout.own_mbps:  # Links so fast that processors hold an exchange.
        alone = exchange_alone(topology, row, piece)
        predicted = replace(predicted, by_processors=COMPUTE_SECONDS + alone)
    known = {
        "topology": topology.name, "row": row, "seed": told.seed, "rate_factor": told.rate_factor,
        "link_mbps": layout.link_rates(asked), "compute_seconds": COMPUTE_SECONDS,
        "committed_steps": steps_of(piece, told.target),
        **asdict(predicted), "predicted": predicted.seconds,
        "load_before": round(os.getloadavg()[0], 2), "machine": processor(),
        "commit": versions()["commit"], "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
    }  # fmt: skip
    argv = ["-m", "bench.evidence.runs", f"--rank={json.dumps(asdict(told))}"]
    found: dict[str, Any] = {}
    with training(layout, asked, "runs", argv, **shaping(layout, predicted)) as (bed, said):
        for event in said:
            if "begins" in event:
                usage = Usage(bed.core, len(layout.links))
            elif "at" in event:
                print(f"  {topology.name}, {row}: step {event['at'][0]}, {event['at'][1]:.4f}, "
                      f"{usage.seconds():.0f} s", flush=True)  # fmt: skip
            else:
                found = {**event, **usage.found(len(event["seconds_of_steps"]))}
    return {**known, **found, "steps": steps_of(found, told.target)}


def read_runs() -> list[dict[str, Any]]:
    return check_each(RESULT, read_json(RESULT), FIELDS, "run") if RESULT.exists() else []


def record(found: Found) -> None:
    """In the place of an older one."""
    runs = {(one["row"], one["topology"]): one for one in (*read_runs(), found)}
    ordered = [runs[row, name] for row in RATES_MBPS for name in topologies()
               if (row, name) in runs]  # fmt: skip
    partial = RESULT.with_suffix(".partial")
    partial.write_text("[" + ",\n".join(json.dumps(one) for one in ordered) + "]\n")
    partial.replace(RESULT)


def words(found: Found) -> str:
    taken = seconds_to_target(found)
    if taken is None:
        return f"{found['topology']}, {found['row']}: did not arrive"
    return (f"{found['topology']}, {found['row']}: {found['steps']} steps of "
            f"{found['committed_steps']}, {taken:.1f} s, {seconds_ratio(found):.3f} of "
            f"{found['committed_steps']} x {found['predicted']:.3f} s")  # fmt: skip


def note_twins() -> None:
    """Of runs in the chain: whether the job's virtual twin has the very same curve."""
    for found in read_runs():
        if found["topology"] == TOPOLOGY and "twin_is_equal" not in found:
            curve = job_twin.curve(found["row"], found["seed"], target(), found["rate_factor"],
                                   found["first_step"])  # fmt: skip
            equal = [list(point) for point in curve] == found["curve"]
            record({**found, "twin_is_equal": equal})
            print(f"{TOPOLOGY}, {found['row']}: its virtual twin's curve is "
                  f"{'the same' if equal else 'another'}", flush=True)  # fmt: skip


def measure(names: Sequence[str], rows: Sequence[str], again: bool) -> None:
    there = set() if again else {(one["topology"], one["row"]) for one in read_runs()}
    pieces = pieces_of(rows)
    torch.set_num_threads(1)  # As report-steps: pre-training has other bits with more.
    adopt_start(ByteTransformer())
    ByteTransformer().pretrained(print)  # Once, for all ranks.
    for row in rows:
        for name in names:
            if (name, row) not in there:
                found = run(topologies()[name], row, pieces[row])
                record(found)
                print(words(found), flush=True)
    note_twins()


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="bench.evidence.runs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--topologies", default=",".join(topologies()))
    parser.add_argument("--rows", default=",".join(RATES_MBPS))
    parser.add_argument("--again", action="store_true", help="also what is there")
    parser.add_argument("--rank", help="be one rank of it, told so")
    options = parser.parse_args(argv)
    if options.rank:
        be_rank(Told(**json.loads(options.rank)))
        return 0
    interrupt_on_signals()
    try:
        names = chosen("topologies", options.topologies, topologies())
        rows = chosen("rows", options.rows, RATES_MBPS)
        refuse_own_results("real trainings are held to the committed steps")
        if (why := why_no_namespaces()) is not None:
            print(f"report-runs needs shaped network namespaces: {why}", file=sys.stderr)
            return 1
        measure(names, rows, options.again)
    except (FileNotFoundError, ValueError) as error:
        print(f"report-runs: {error}", file=sys.stderr)
        return 2
    except (ProcessError, TestbedError) as error:
        print(f"report-runs failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("report-runs: interrupted; runs that are through are kept", file=sys.stderr)
        return 130
    found = json.dumps(summary(read_runs()))
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(found + "\n")
    print(found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
