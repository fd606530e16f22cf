"""Steps to the target, and what is lost to DDP: a table for each workload, and words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from bench.evidence.experiment_tables import NOT_RUN, table
from bench.evidence.figures import VISION, Evidence, upper95
from bench.evidence.gpu_workloads import METHODS as ON_GPU_METHODS
from bench.evidence.gpu_workloads import TITLES as ON_GPU
from bench.evidence.methods import ROWS
from bench.evidence.times import mean_log


def absent_words(workload: str, method: str) -> str:
    """Why there are no steps of it."""
    only = ROWS[method].only
    return NOT_RUN if only == "" or (only == "sgd") == (workload in VISION) else f"{only} only"


def mean_words(evidence: Evidence, workload: str, method: str) -> str:
    """The seeds' mean, or why there is none."""
    if not evidence.seeds(workload, method):
        return absent_words(workload, method)
    mean = evidence.mean_steps(workload, method)
    if mean is not None:
        return f"{mean:.0f}"
    return f"does not arrive{evidence.elsewhere_words(workload, method)}"


def reached_words(steps: Sequence[int | None]) -> str:
    reached = [count for count in steps if count is not None]
    if not reached:
        return "not reached"
    if len(reached) < len(steps):
        return f"{len(reached)} of {len(steps)} seeds"
    return f"{fmean(reached):.0f}"


def steps_table(evidence: Evidence, workload: str) -> str:
    """Of every row; what is set against DDP by equal seeds, `below DDP` after DDP's steps."""
    rows, missing = [], []
    for method in ROWS:
        seeds = evidence.seeds(workload, method)
        if not seeds and workload in ON_GPU:
            missing += [ROWS[method].title] if method in ON_GPU_METHODS else []
            continue
        if not seeds:
            rows.append([ROWS[method].title, *[absent_words(workload, method)] * 10])
            continue
        pieces = [evidence.pieces[workload, method, seed] for seed in seeds]
        steps = [evidence.steps(workload, method, seed) for seed in seeds]
        pairs = [(evidence.steps(workload, "ddp", seed), count)
                 for seed, count in zip(seeds, steps, strict=True)]  # fmt: skip
        times = [own / ddp for ddp, own in pairs if own and ddp]
        more = f"{mean_log(times):.2f} x" if times and len(times) == len(pairs) else "-"
        gaps = evidence.gaps(workload, method)
        upper = upper95(gaps)
        risks = [piece["risk"] for piece in pieces if piece["risk"] is not None]
        gap = f"{fmean(gaps):.3f}" if gaps else "-"
        if upper is not None:
            gap += f" (95 %: <= {upper:.3f})"
        factor = evidence.factors.get((workload, method))
        rows.append([ROWS[method].title, f"{pieces[0]['bytes_per_element']:.3g}",
                     f"{pieces[0]['keep']:.2f}",
                     "not tuned" if factor is None else f"{factor:g} x", str(len(seeds)),
                     reached_words(steps) + (evidence.elsewhere_words(workload, method)
                                             if None in steps else ""), more,
                     f"{fmean(piece['test'] for piece in pieces):.3f}",
                     gap, evidence.at_one_words(workload, method, 3),
                     f"{fmean(risks):.2g}" if risks else "-"])  # fmt: skip
    head = [
        "method",
        "bytes per element",
        "kept",
        "rate",
        "seeds",
        "steps to the target",
        "of DDP's",
        "test score",
        "below DDP",
        "both at 1 x",
        "r",
    ]
    left = f"\n\nNot run yet: {'; '.join(missing)}." if missing else ""
    return table(head, rows) + left
