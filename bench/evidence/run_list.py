"""What of the evidence was run, how long that took, and what the rest would. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from bench.evidence.experiment_tables import NOT_RUN, Experiments, table
from bench.evidence.figures import VISION, Evidence
from bench.evidence.goals import LEAST_SEEDS, Goal
from bench.evidence.gpu_workloads import TITLES as ON_GPU
from bench.evidence.methods import ROWS
from bench.evidence.steps import SEEDS
from bench.evidence.train import WORKERS
from bench.evidence.tuning import FACTORS
from bench.evidence.workloads import WORKLOADS

MOST_HOURS = 16  # Asked for: a working day of two cores.


def run_list(evidence: Evidence) -> str:
    """What was run, and how long that took."""
    rows = []
    for workload in evidence.workloads():
        if workload in ON_GPU:
            continue
        own = {key: piece for key, piece in evidence.pieces.items() if key[0] == workload}
        methods = {method for _, method, _ in own}
        seeds = sorted({seed for _, _, seed in own})
        untaken = [piece for piece in evidence.others if piece["workload"] == workload]
        hours = sum(piece["cpu_seconds"] for piece in (*own.values(), *untaken)) / 3600
        target = evidence.targets.get(workload, {})
        of = ", ".join(sorted(target.get("ddp_finals", {})))
        rows.append([workload, f"{len(methods)} of {len(ROWS)}", ", ".join(map(str, seeds)),
                     str(len(own) + len(untaken)), f"{hours:.2f}",
                     f"{target.get('target', float('nan')):.3f} "
                     f"{target.get('unit', '')}, DDP's end less {target.get('below', 0):g}; "
                     f"seeds {of}"])  # fmt: skip
    rows += [
        [workload, *[NOT_RUN] * 5] for workload in VISION if workload not in evidence.workloads()
    ]
    return table(["workload", "methods", "seeds", "pieces", "CPU hours", "target"], rows)


def not_reached_words(evidence: Evidence) -> str:
    """By workload and method, with the seeds."""
    late: dict[tuple[str, str], list[int]] = {}
    for workload, method, seed in evidence.not_reached():
        late.setdefault((workload, method), []).append(seed)
    said = (f"{workload} {method} (seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
            f"{evidence.elsewhere_words(workload, method)})"
            for (workload, method), seeds in late.items())  # fmt: skip
    return "; ".join(said) or "none"


def limits_words(evidence: Evidence, most_times: int) -> str:
    """The steps that a row has to the target."""
    found = {w: {p["steps"] for (own, _, _), p in evidence.pieces.items() if own == w}
             for w in evidence.workloads()}  # fmt: skip
    return ", ".join(f"{most_times * steps} ({workload})"
                     for workload, counts in found.items() for steps in counts)  # fmt: skip


def hours_words(
    evidence: Evidence, experiments: Experiments, runs: Sequence[Mapping[str, Any]]
) -> str:
    """What the page's own figures took; those of other commands are in their files."""
    alone = [piece for (name, _), piece in experiments.items() if name not in ROWS]
    own = (p for p in (*evidence.pieces.values(), *evidence.others) if p["workload"] not in ON_GPU)
    virtual = sum(p["cpu_seconds"] for p in (*own, *alone))
    places = (evidence.times, evidence.ready, *evidence.elsewhere.values())
    linked = sum(one["wall_seconds"] for place in places for one in place.values())
    linked += sum(run["wall_seconds"] for run in runs)
    return (f"With the experiments' {len(alone)} pieces this page's virtual workers took "
            f"{virtual / 3600:.1f} CPU hours, and real agents {linked / 3600:.1f} hours on "
            "emulated links.")  # fmt: skip


def on_cpu(evidence: Evidence) -> list[str]:
    return [workload for workload in evidence.workloads() if workload not in ON_GPU]


def tuning_words(evidence: Evidence) -> str:
    """Of which workloads rates were tuned, and how many took the set's ends."""
    said = []
    for workload in on_cpu(evidence):
        own = [factor for (name, _), factor in evidence.factors.items() if name == workload]
        words = f"{workload}: {len(own)} methods tuned"
        if own:
            ends = (f"{own.count(end)} took {end:g} x" for end in (min(FACTORS), max(FACTORS)))
            words += f", of which {', '.join(ends)}"
            if left := untried(evidence, workload):
                words += f"; at 1 x without a try: {'; '.join(ROWS[row].title for row in left)}"
        said.append(words)
    return ". ".join(said)


def ends_words(evidence: Evidence) -> str:
    """How far above the target DDP ends, held out, at the rate that it is compared at."""
    said = []
    for workload in on_cpu(evidence):
        target = evidence.targets.get(workload)
        curves = [p["curve"] for (w, m, _), p in evidence.pieces.items()
                  if (w, m) == (workload, "ddp")]  # fmt: skip
        if target and curves:
            above = fmean(curve[-1][1] for curve in curves) - target["target"]
            said.append(f"{workload} {above:.2f} {target['unit']}")
    return ", ".join(said) or NOT_RUN


def untried(evidence: Evidence, workload: str) -> list[str]:
    """Methods that were run with the workload's rate only."""
    return [row for row in ROWS if evidence.seeds(workload, row)
            and (workload, row) not in evidence.factors]  # fmt: skip


def plan_hours(evidence: Evidence, seeds: int) -> float:
    """CPU hours of all methods with that many seeds and all factors, at the mean of what ran."""
    hours = 0.0
    for workload in on_cpu(evidence):
        own = [p for (name, _, _), p in evidence.pieces.items() if name == workload]
        untaken = [p for p in evidence.others if p["workload"] == workload] or own
        for pieces, count in ((own, seeds), (untaken, len(FACTORS) - 1)):
            mean = fmean(piece["cpu_seconds"] for piece in pieces)
            hours += mean * len(ROWS) * count / 3600
    return hours


def plan_words(evidence: Evidence) -> str:
    return " and ".join(f"{plan_hours(evidence, seeds):.1f} CPU hours with {seeds} seeds"
                        for seeds in (LEAST_SEEDS, len(SEEDS)))  # fmt: skip


def hours_goal(evidence: Evidence) -> Goal:
    text, goal = "the whole table, each rate tuned", f"<= {MOST_HOURS} CPU hours"
    if not on_cpu(evidence):
        return Goal(text, goal, NOT_RUN, None)
    hours = plan_hours(evidence, len(SEEDS))
    return Goal(text, goal, plan_words(evidence), hours <= MOST_HOURS)


def settings_table() -> str:
    """Of each workload, as its class has them."""
    rows = []
    for name, make in WORKLOADS.items():
        own: Any = make
        rows.append([name, str(own.steps), f"{own.optimizer}, {own.rate:g}",
                     f"{own.weight_decay:g}", f"{own.clip:g}" if own.clip else "none",
                     f"{WORKERS} x {own.batch}", own.pretraining()])  # fmt: skip
    return table(["workload", "steps of DDP's run", "optimizer, rate", "weight decay",
                  "clipped to a norm of", "samples of a step", "pre-training"], rows)  # fmt: skip


def machines_words(evidence: Evidence) -> str:
    """Of the taken pieces, the most frequent first."""
    counts = Counter(piece["machine"] for piece in evidence.pieces.values())
    made = "; ".join(f"{count} were made on {machine}" for machine, count in counts.most_common())
    apart = [piece for (workload, _, seed), piece in evidence.pieces.items()
             if (ddp := evidence.pieces.get((workload, "ddp", seed)))
             and ddp["machine"] != piece["machine"]]  # fmt: skip
    return f"{made}. {len(apart)} were made on another kind than DDP's of their seed"
