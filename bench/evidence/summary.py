"""The page's first table: what each method brings, in a line each. Pure."""

from __future__ import annotations

from statistics import fmean

from bench.evidence.experiment_tables import NOT_RUN, table
from bench.evidence.figures import VISION, Evidence, Seconds
from bench.evidence.losing import title
from bench.evidence.methods import ROWS
from bench.evidence.shapes import NETWORKS
from bench.evidence.steps_tables import mean_words
from bench.evidence.times import step_time
from bench.evidence.workloads import ByteTransformer

# Measured was a ring of the sites' first ranks, which sends a third more than a tree.
BY_FORMULA = ("hier_bf16",)
SHOWN = ("ddp", "fp16", "hier_bf16", "topk0.1", "topk0.01ef", "dgc", "dgc_cold", "powersgd1",
         "powersgd4", "paper", "local30", "diloco30", "exact-0.5", "levels7", "levels7-0.5",
         "levels7-0.2")  # fmt: skip


def _as_soon(evidence: Evidence, row: str) -> str:
    """As DDP, by measured seconds; by formula where none were."""
    ways: tuple[tuple[Seconds, str], ...] = (("ready", ""), ("formula", ", by formula"))
    for seconds, words in ways[-1:] if row in BY_FORMULA else ways:
        ratio = evidence.vision_ratio("ddp", row, seconds=seconds)
        if ratio is not None:
            return f"{ratio:.1f} x{words}{evidence.partly_words('ddp', row)}"
    late = evidence.not_arrived(row)
    return f"does not arrive with {' and '.join(late)}" if late else NOT_RUN


def summary_table(evidence: Evidence) -> str:
    """Of vision workloads at the paper's shapes, chain of three, 100 Mbps."""
    rows = []
    for row in SHOWN:
        timed = [entry["seconds"] for network in NETWORKS if row not in BY_FORMULA
                 and (entry := evidence.timed(network, row, 100.0, ready=True))]  # fmt: skip
        seconds = [f"{min(timed):.2g} to {max(timed):.2g}" if timed else NOT_RUN]
        if row in BY_FORMULA:
            chain = evidence.topologies["chain"]
            found = [step_time(row, network, chain, 100.0, 0.0).seconds
                     for network in NETWORKS.values()]  # fmt: skip
            seconds = [f"{min(found):.2g} to {max(found):.2g}, by formula"]
        workloads = (*VISION, ByteTransformer.name)
        steps = [mean_words(evidence, workload, row) for workload in workloads]
        lost = []
        for workload in VISION:
            gaps = evidence.gaps(workload, row)
            lost.append(f"{fmean(gaps):.2f} ({evidence.at_one_words(workload, row)})" if gaps
                        else NOT_RUN)  # fmt: skip
        name = f"**{title(row)}**" if ROWS[row].ours else title(row)
        rows.append([name, *steps, *seconds, _as_soon(evidence, row), *lost])
    return table(["method", *(f"steps to the target, {w}" for w in (*VISION, "text")),
                  "seconds per step, four networks", "at the target as many times as soon as DDP",
                  *(f"points below DDP, {w} (both at 1 x)" for w in VISION)], rows)  # fmt: skip
