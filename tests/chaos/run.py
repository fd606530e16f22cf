"""Chaos on real processes: python tests/chaos/run.py --cpp-rank=FILE [--duration=SECONDS].

Each cell has a coordinator, three agents and two jobs, of Python ranks, C++ ranks or both.
Trainers, agents and coordinators are killed, stopped, started again and cut off from each
other while they train. Newcomers come in the midst of cuts, and all nodes of a job are
replaced: they are killed, or some of them turn up again afterwards. What ranks have written
is judged in the end, step by step, against what it has to be (oracle.py). The last line is one
JSON object, also in out/chaos.json.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import leftovers
from cell import HOSTS, Cell
from faults import BOUND_S, Chaos
from job import ROOT, Kind
from network import Network, Place
from oracle import Verdict, judge

from bench.processes import interrupt_on_signals
from bench.testbed import PREFIX

SAME_MEMBERS = ("stop_trainer", "stop_agent", "kill_coordinator", "cut_off")
PY, CPP = "python", "cpp"
# The jobs of each cell.
CELLS = (
    (Kind(((PY,), (PY,)), PY, "continue"), Kind(((CPP,), (CPP,)), CPP, "pause")),
    (Kind(((PY, CPP), (CPP, PY)), CPP, "pause"), Kind(((CPP,), (CPP,)), CPP, "continue")),
    # Ranks that start at once, so that there are many faults.
    (Kind(((CPP,), (CPP,)), CPP, "pause"), Kind(((CPP, CPP), (CPP,)), CPP, "continue")),
)
ZERO = ("divergent_steps", "lost_states", "over_bound_waits", "leftovers")


@dataclass
class Outcome:
    """Of one cell."""

    faults: dict[str, int] = field(default_factory=dict)
    recovered_s: dict[str, list[float]] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    surprises: list[str] = field(default_factory=list)
    broken: str = "A cell did not come to its end."  # Or why; empty: it did.
    over: threading.Event = field(default_factory=threading.Event)


def run_cell(
    number: int,
    folder: Path,
    network: Network,
    words: argparse.Namespace,
    stop: threading.Event,
    outcome: Outcome,
) -> None:
    start = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - start:7.1f} s  cell {number}: {what}", flush=True)

    folder.mkdir()
    cell = Cell(folder, network, stop)
    chaos = Chaos(cell, f"{words.seed} {number}", say)
    outcome.faults, outcome.recovered_s, outcome.late = chaos.faults, chaos.recovered_s, chaos.late
    try:
        for n, kind in enumerate(CELLS[number]):
            cell.add_job(f"job-{number}{n}", kind, words.cpp_rank)
        say("trains " + ", ".join(job.words for job in cell.jobs))
        chaos.begin()
        if words.stages:
            jobs = sum(len(jobs) for jobs in CELLS)
            chaos.stage(math.ceil(words.stages / jobs))
        else:
            chaos.mix(time.monotonic() + words.duration)
        outcome.late += cell.end_ranks(BOUND_S)
        say("has ended")
    finally:
        cell.close()
        for job in cell.jobs:
            lines = [rank.read() for rank in job.all]
            outcome.verdicts.append(judge(lines, job.replaced, BOUND_S))
            outcome.surprises += job.surprises


def guarded(outcome: Outcome, run: Callable[[], None]) -> None:
    try:
        run()
        outcome.broken = ""
    except Exception:
        outcome.broken = traceback.format_exc()
    finally:
        outcome.over.set()


def p99(values: Iterable[float]) -> float | None:
    """Of fewer than 100 the largest."""
    ordered = sorted(values)
    return round(ordered[math.ceil(0.99 * len(ordered)) - 1], 2) if ordered else None


def of_kinds(outcomes: Sequence[Outcome], kinds: Iterable[str]) -> list[float]:
    return [s for kind in kinds for outcome in outcomes for s in outcome.recovered_s.get(kind, ())]


def table(outcomes: Sequence[Outcome]) -> str:
    lines = [f"{'fault':28} {'times':>5}  recovered after: median, p99, most"]
    kinds = sorted({kind for outcome in outcomes for kind in outcome.faults})
    for kind in kinds:
        times = sum(outcome.faults.get(kind, 0) for outcome in outcomes)
        seconds = sorted(of_kinds(outcomes, [kind]))
        shown = "-"
        if seconds:
            shown = f"{seconds[len(seconds) // 2]:.2f} s, {p99(seconds):.2f} s, {seconds[-1]:.2f} s"
        lines.append(f"{kind:28} {times:5}  {shown}")
    return "\n".join(lines)


def result_of(outcomes: Sequence[Outcome], left: int) -> dict[str, float | None]:
    verdicts = [verdict for outcome in outcomes for verdict in outcome.verdicts]
    late = sum(len(outcome.late) for outcome in outcomes)
    return {
        "faults": sum(sum(outcome.faults.values()) for outcome in outcomes),
        "steps": sum(verdict.steps for verdict in verdicts),
        "divergent_steps": sum(verdict.divergent_steps for verdict in verdicts),
        "lost_states": sum(verdict.lost_states for verdict in verdicts),
        "over_bound_waits": late + sum(verdict.over_bound_waits for verdict in verdicts),
        "recovery_same_members_p99_s": p99(of_kinds(outcomes, SAME_MEMBERS)),
        "recovery_kill_p99_s": p99(of_kinds(outcomes, ["kill_agent"])),
        "leftovers": left,
    }


def run(folder: Path, words: argparse.Namespace) -> tuple[list[Outcome], leftovers.Found]:
    before = leftovers.of_machine(prefix := f"{PREFIX}{os.getpid()}-")
    outcomes = [Outcome() for _ in CELLS]
    with Place(len(CELLS), HOSTS) as place:
        if place.why is not None:
            print(f"no network namespaces ({place.why}): all on loopback, cuts by relays")
        threads = []
        stop = threading.Event()
        for number, (network, outcome) in enumerate(zip(place.networks, outcomes, strict=True)):
            body = functools.partial(
                run_cell, number, folder / f"c{number}", network, words, stop, outcome
            )
            threads.append(threading.Thread(target=guarded, args=(outcome, body)))
        for thread in threads:
            thread.start()
        # Not by join(): Python 3.11 takes a thread for ended whose join() was interrupted.
        try:
            for outcome in outcomes:
                outcome.over.wait()
        except KeyboardInterrupt:
            stop.set()
            for outcome in outcomes:
                outcome.over.wait()
    return outcomes, leftovers.of_run(folder) | leftovers.of_machine(prefix) - before


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpp-rank", type=Path, required=True, help="//tests/chaos:rank")
    parser.add_argument("--duration", type=float, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stages", type=int, default=0, help="Nothing but so many staged cuts")
    words = parser.parse_args()
    interrupt_on_signals()
    folder = Path(tempfile.mkdtemp(prefix="pactrain-chaos-"))  # Short, for sockets.
    outcomes, left = run(folder, words)
    result = result_of(outcomes, len(left))
    print(table(outcomes))
    for outcome in outcomes:
        for surprise in outcome.surprises:
            print(f"ended by itself, was started again: {surprise}")
    wrong = [line for outcome in outcomes for line in outcome.late]
    for verdict in (verdict for outcome in outcomes for verdict in outcome.verdicts):
        wrong += verdict.why[:10] + [f"... {len(verdict.why) - 10} more"][len(verdict.why) <= 10 :]
    wrong += [f"left over: {thing}" for thing in sorted(left)]
    wrong += [outcome.broken for outcome in outcomes if outcome.broken]
    if wrong:
        print("\n".join(wrong))
        print(f"seed {words.seed}; logs of all daemons and ranks are kept in {folder}")
    else:
        shutil.rmtree(folder)
    (ROOT / "out").mkdir(exist_ok=True)
    (ROOT / "out" / "chaos.json").write_text(json.dumps(result) + "\n")
    print(json.dumps(result))
    return 1 if wrong or any(result[key] for key in ZERO) else 0


if __name__ == "__main__":
    sys.exit(main())
