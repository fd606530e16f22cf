"""What of the evidence was run, how long that took, and what the rest would. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from bench.evidence.experiment_tables import NOT_RUN, Experiments, table
from bench.evidence.figures import LEAST_SEEDS, VISION, Evidence
from bench.evidence.gpu_workloads import TITLES as ON_GPU
from bench.evidence.methods import ROWS
from bench.evidence.steps import SEEDS
from bench.evidence.tuning import FACTORS, FIRST_SEED


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


def hours_words(
    evidence: Evidence, experiments: Experiments, runs: Sequence[Mapping[str, Any]]
) -> str:
    """What the page's own figures took; those of other commands are in their files."""
    alone = [piece for (name, _), piece in experiments.items() if name not in ROWS]
    virtual = sum(p["cpu_seconds"] for p in (*evidence.pieces.values(), *evidence.others, *alone))
    places = (evidence.times, *evidence.elsewhere.values())
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
        elif tried := _tried(evidence, workload):
            words += f", {tried} tried and not used before all are"
        said.append(words)
    return "; ".join(said)


def _tried(evidence: Evidence, workload: str) -> int:
    """Methods of which the first seed has all factors."""
    factors: dict[str, set[float]] = {}
    for piece in (*evidence.pieces.values(), *evidence.others):
        if piece["workload"] == workload and piece["seed"] == FIRST_SEED:
            factors.setdefault(piece["method"], set()).add(piece["rate_factor"])
    return sum(there >= set(FACTORS) for there in factors.values())


def plan_words(evidence: Evidence) -> str:
    """What all methods with that many seeds and all factors take, at the mean of what ran."""
    said = []
    for seeds in (LEAST_SEEDS, len(SEEDS)):
        hours = 0.0
        for workload in on_cpu(evidence):
            own = [p for (name, _, _), p in evidence.pieces.items() if name == workload]
            untaken = [p for p in evidence.others if p["workload"] == workload] or own
            for pieces, count in ((own, seeds), (untaken, len(FACTORS) - 1)):
                mean = fmean(piece["cpu_seconds"] for piece in pieces)
                hours += mean * len(ROWS) * count / 3600
        said.append(f"{hours:.1f} CPU hours with {seeds} seeds")
    return " and ".join(said)
