"""The page's first table: what each method brings, in a line each. Pure."""

from __future__ import annotations

from statistics import fmean

from bench.evidence.experiment_tables import NOT_RUN, table
from bench.evidence.figures import VISION, Evidence, Seconds
from bench.evidence.losing import title
from bench.evidence.methods import ROWS
from bench.evidence.shapes import NETWORKS

SHOWN = ("ddp", "fp16", "hier_bf16", "topk0.1", "topk0.01ef", "dgc", "dgc_cold", "powersgd1",
         "powersgd4", "paper", "local30", "diloco30", "exact-0.5", "levels7", "levels7-0.5",
         "levels7-0.2")  # fmt: skip


def _as_soon(evidence: Evidence, row: str) -> str:
    """As DDP, by measured seconds; by formula where none were."""
    ways: tuple[tuple[Seconds, str], ...] = (("ready", ""), ("formula", ", by formula"))
    for seconds, words in ways:
        ratio = evidence.vision_ratio("ddp", row, seconds=seconds)
        if ratio is not None:
            return f"{ratio:.1f} x{words}{evidence.partly_words('ddp', row)}"
    late = evidence.not_arrived(row)
    return f"does not arrive with {' and '.join(late)}" if late else NOT_RUN


def summary_table(evidence: Evidence) -> str:
    """Of vision workloads at the paper's shapes, chain of three, 100 Mbps."""
    rows = []
    for row in SHOWN:
        timed = [entry["seconds"] for network in NETWORKS
                 if (entry := evidence.timed(network, row, 100.0, ready=True))]  # fmt: skip
        seconds = [f"{min(timed):.2g} to {max(timed):.2g}" if timed else NOT_RUN]
        steps, lost = [], []
        for workload in VISION:
            mean = evidence.mean_steps(workload, row)
            run = bool(evidence.seeds(workload, row))
            steps.append(
                NOT_RUN if not run else "does not arrive" if mean is None else f"{mean:.0f}"
            )
            gaps = evidence.gaps(workload, row)
            lost.append(f"{fmean(gaps):.2f}" if gaps else NOT_RUN)
        name = f"**{title(row)}**" if ROWS[row].ours else title(row)
        rows.append([name, *steps, *seconds, _as_soon(evidence, row), *lost])
    return table(["method", *(f"steps to the target, {w}" for w in VISION),
                  "seconds per step, four networks", "at the target as many times as soon as DDP",
                  *(f"points below DDP, {w}" for w in VISION)], rows)  # fmt: skip
