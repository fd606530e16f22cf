"""The report's tables of steps measured at the paper's shapes, beside the formula. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from bench.evidence.experiment_tables import NOT_RUN, table
from bench.evidence.figures import Evidence
from bench.evidence.losing import rates_of
from bench.evidence.methods import ROWS as METHODS
from bench.evidence.shapes import NETWORKS
from bench.evidence.step_times_plan import (
    BUCKETS,
    IN_BUCKETS,
    READY_ROWS,
    ROWS,
    TOPOLOGY,
    cost_of,
    formula_of,
    is_ours,
)
from bench.evidence.times import RATES_MBPS, StepTime, step_time
from bench.evidence.tuning import Piece
from bench.figure_blocks import short

# Measured in one bucket, and by the rows that have error feedback as real exchanges have it.
TITLES = {
    "ddp": "DDP, one bucket",
    BUCKETS: "DDP, torch's buckets",
    "hier_fp32": "site-hierarchical all-reduce, fp32 (PacTrain's FULL)",
}

PLAIN = ("ddp", BUCKETS)


def title(row: str) -> str:
    return TITLES.get(row) or (
        METHODS[formula_of(row)].title + ", torch's buckets" * row.endswith(IN_BUCKETS)
    )


def _formula(evidence: Evidence, row: str, network: str, rate: float, topology: str) -> StepTime:
    return step_time(formula_of(row), NETWORKS[network], evidence.topologies[topology], rate,
                     evidence.codec_gb_per_s)  # fmt: skip


def _range(values: Sequence[float]) -> str:
    texts = [f"{min(values):.2f}", f"{max(values):.2f}"] if values else [NOT_RUN]
    return " to ".join(dict.fromkeys(texts))


def table_of(evidence: Evidence, rate: float, topology: str = TOPOLOGY, ready: bool = False) -> str:
    """Of all networks at a rate; elsewhere than on the paper's chain of rows that were run."""
    lines = []
    for row in READY_ROWS if ready else ROWS:
        cells, sent, busy = [], [], []
        for network in NETWORKS:
            found = evidence.timed(network, row, rate, topology, ready)
            formula = _formula(evidence, row, network, rate, topology)
            if found is None:
                cells.append(NOT_RUN)
                continue
            ratio = found["seconds"] / formula.seconds
            cells.append(f"{short(found['seconds'])} / {short(formula.seconds)} = {ratio:.2f}")
            elements = NETWORKS[network].elements
            sent.append(max(found["link_bytes"]) / (formula.bytes_per_element * elements))
            busy.append(_busy(found))
        if sent or topology == TOPOLOGY:
            lines.append([title(row), *cells, _range(sent), _range(busy)])
    return table([f"{rate:g} Mbps, measured / formula in seconds",
                  *(network.title for network in NETWORKS.values()),
                  "bytes counted, of the formula's",
                  "share of the processors that works"], lines)  # fmt: skip


def _busy(found: Piece) -> float:
    """The share of the machine's that worked for trainers and agents in a step, both as means."""
    return float(found["cpu_seconds"] / (found["processors"] * fmean(found["steps"])))


def spread_words(evidence: Evidence) -> str:
    """The longest step over the shortest of the same row and rate, the worst."""
    entries = [entry for times in (evidence.times, evidence.ready) for one in times.values()
               for entry in one["rows"]]  # fmt: skip
    if not entries:
        return NOT_RUN
    worst = max(max(entry["steps"]) / min(entry["steps"]) for entry in entries)
    return f"{worst:.2f} x"


def one_bucket_words(evidence: Evidence) -> str:
    """How much sooner DDP's step is in one bucket than in torch's, compression slept."""
    found = [evidence.timed_ratio(network, BUCKETS, "ddp", rate, "ready")
             for rate in RATES_MBPS
             for network in evidence.networks_timed("ddp", BUCKETS, rate, "ready")]  # fmt: skip
    if not found:
        return NOT_RUN
    return f"by which its steps are {min(found):.2f} to {max(found):.2f} times as fast"


def section(evidence: Evidence, topology: str = TOPOLOGY, ready: bool = False) -> str:
    """How long the links were in use, and a table for each rate; or that there is none."""
    there = evidence.times if topology == TOPOLOGY else evidence.elsewhere.get(topology, {})
    if ready:
        there = evidence.ready
    entries = [entry for one in there.values() for entry in one["rows"]]
    if not entries:
        return f"At these shapes: {NOT_RUN} (`make report-times`)."
    hours = sum(one["wall_seconds"] for one in there.values()) / 3600
    machines = sorted({entry["machine"] for entry in entries})
    commits = sorted({entry["commit"] for entry in entries})
    rates = sorted({entry["rate_mbps"] for entry in entries})
    words = (f"Hours on the links: {hours:.2f}, set-up among them. {'; '.join(machines)}; "
             f"commit {', '.join(commits)}.")  # fmt: skip
    return "\n\n".join([words, *(table_of(evidence, rate, topology, ready) for rate in rates)])


def elsewhere(evidence: Evidence) -> str:
    """On the other topologies, of which each has a fold."""
    return "\n\n".join(
        f"<details><summary>{topology.title[0].upper()}{topology.title[1:]}</summary>\n\n"
        f"{section(evidence, name)}\n\n</details>"
        for name, topology in evidence.topologies.items() if name != TOPOLOGY
    )  # fmt: skip


def losing(evidence: Evidence, ready: bool = False) -> str:
    """Where a measured step of ours is longer than a peer's, by more than measurements differ:
    FULL's than plain DDP's, an exact one's under a mask than fp16's, too, in levels any peer's."""
    lines = []
    rows = [row for row in READY_ROWS if row in ROWS or not row.endswith(IN_BUCKETS)]
    places = [(name, rate) for name, topology in evidence.topologies.items()
              for rate in rates_of(topology)]  # fmt: skip
    for name, rate in places:
        for network in NETWORKS:
            found = {row: entry["seconds"] for row in (rows if ready else ROWS)
                     if (entry := evidence.timed(network, row, rate, name, ready))}  # fmt: skip
            for ours in filter(is_ours, found):
                sooner = {
                    row: seconds for row, seconds in found.items()
                    if not is_ours(row) and found[ours] > 1.02 * seconds
                    and (row in PLAIN or cost_of(ours).levels
                         or (row == "fp16" and cost_of(ours).keep < 1))
                }  # fmt: skip
                if sooner:
                    where = f"{NETWORKS[network].title}, {name}, {rate:g} Mbps"
                    said = "; ".join(f"{title(row)} {short(s)}" for row, s in sooner.items())
                    lines.append([where, title(ours), short(found[ours]), said])
    if not lines:
        return "None of those that were measured."
    return table(["where", "our row", "its seconds", "sooner, in seconds"], lines)


def missing_words(evidence: Evidence) -> str:
    """For the list of what was not run."""
    there = sum(len(one["rows"]) for one in evidence.times.values())
    every = len(NETWORKS) * len(ROWS) * len(RATES_MBPS)
    ready = sum(len(one["rows"]) for one in evidence.ready.values())
    slept = len(NETWORKS) * len(READY_ROWS) * len(RATES_MBPS)
    others = [f"{place}: " + ", ".join(f"{NETWORKS[name].title} {len(one['rows'])}"
                                       for name, one in times.items())
              for place, times in evidence.elsewhere.items() if times]  # fmt: skip
    said = "; ".join(others) or "none"
    return (f" Of {every} step times at the paper's shapes {there} were measured on the chain's "
            f"links, and {ready} of {slept} with compression slept. Measured on the other "
            f"topologies: {said}.")  # fmt: skip
