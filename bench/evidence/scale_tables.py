"""The report's tables of scale: the simulator beside the testbed, and what it says. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.evidence import scale
from bench.evidence.experiment_tables import NOT_RUN, table
from bench.evidence.goals import Goal
from bench.evidence.methods import ROWS
from bench.evidence.scale import Speeds
from bench.evidence.shapes import NETWORKS
from bench.evidence.times import COSTS, link_bytes
from bench.figure_blocks import TITLES as MEASURED_TITLES
from bench.figure_blocks import short

OURS = ("hier_fp32", "exact-0.5", "levels7-0.5")
Testbed = Mapping[str, Mapping[str, Any]]
# By formula, in a chain: which of them stay cheap as workers and sites grow.
GROWING = ("ddp", "fp16", "hier_bf16", "topk0.01", "dgc", "powersgd4", "paper", "thc", "diloco30",
           "exact-0.5", "levels7-0.5")  # fmt: skip


def title(row: str) -> str:
    return "site-hierarchical, fp32 (FULL)" if row == "hier_fp32" else ROWS[row].title


def _words(figures: Mapping[str, Any]) -> str:
    layout = scale.layout_of(figures)
    sites = "+".join(map(str, layout.sites))
    rates = sorted({rate for both in layout.link_rates(1.0) for rate in both})
    joined = (
        "on a core" if layout.core else f"joined {', '.join(f'{a}-{b}' for a, b in layout.links)}"
    )
    return f"{sites}, {joined}, {' and '.join(f'{rate:g}' for rate in rates)} Mbps"


@dataclass(frozen=True)
class Compared:
    words: str  # Of sites and links.
    elements: int
    row: str
    measured: float  # Of its rounds the shortest: what else a machine does only adds.
    simulated: float
    links_hold: bool

    @property
    def ratio(self) -> float:
        return self.simulated / self.measured


def compare(testbed: Testbed, speeds: Speeds) -> list[Compared]:
    """Rows where links hold the step first: for those the simulator is meant."""
    found = [
        Compared(_words(one["figures"]), one["figures"]["elements"], row["name"],
                 min(row["rounds"]),
                 scale.predict(one["figures"], row["name"], speeds),
                 scale.links_hold(row, one["figures"]))
        for one in testbed.values()
        for row in one["figures"]["rows"]
        if row["name"] in scale.MEASURED_ROWS
    ]  # fmt: skip
    return sorted(found, key=lambda one: not one.links_hold)


def testbed_table(compared: Sequence[Compared]) -> str:
    rows = [
        [one.words, f"{one.elements / 1e6:.2g} M", MEASURED_TITLES[one.row],
         short(one.measured), short(one.simulated), f"{one.ratio:.2f}",
         "links" if one.links_hold else "processors"]
        for one in compared
    ]  # fmt: skip
    return table(["sites and links", "elements", "row", "measured, seconds", "simulated, seconds",
                  "simulated / measured", "what held the step up"],
                 rows or [[NOT_RUN, *["-"] * 6]])  # fmt: skip


def simulator_goal(compared: Sequence[Compared]) -> Goal:
    text = "the simulator of steps at scale against real agents, where links hold the step"
    ratios = [one.ratio for one in compared if one.links_hold]
    if not ratios:
        return Goal(text, "within 10 %", NOT_RUN, None)
    worst = max(abs(ratio - 1) for ratio in ratios)
    said = f"{min(ratios):.2f} to {max(ratios):.2f} of the measured, {len(ratios)} rows"
    return Goal(text, "within 10 %", said, worst <= 0.10)


def losing_words(rows: Sequence[Mapping[str, Any]]) -> str:
    """Where DDP's ring is sooner than a row of ours, as simulated."""
    ring = {(row["shape"], row["sites"], row["workers"]): row["simulated"]
            for row in rows if row["row"] == "ddp"}  # fmt: skip
    lost = [
        f"{title(row['row'])} takes {row['simulated'] / own:.2f} x in a {row['shape']} of "
        f"{row['sites']} sites"
        for row in rows
        if row["row"] in OURS
        and (own := ring.get((row["shape"], row["sites"], row["workers"])))
        and row["simulated"] > own
    ]
    if not lost:
        return "At scale, as simulated, no row of ours takes longer than DDP's ring."
    return f"At scale, as simulated, against DDP's ring: {'; '.join(lost)}."


def scale_table(rows: Sequence[Mapping[str, Any]], shape: str) -> str:
    """A column for each world; each cell: by formula, then simulated."""
    own = [row for row in rows if row["shape"] == shape]
    worlds = list(dict.fromkeys((row["workers"], row["sites"]) for row in own))
    found = {(row["row"], row["workers"], row["sites"]): row for row in own}
    lines = []
    for name in scale.ROWS:
        cells = [found.get((name, *world)) for world in worlds]
        lines.append([title(name), *(
            NOT_RUN if cell is None else f"{short(cell['formula'])} / {short(cell['simulated'])}"
            for cell in cells
        )])  # fmt: skip
    return table(["seconds per step, formula / simulated",
                  *(f"{workers} in {sites}" for workers, sites in worlds)], lines)  # fmt: skip


def growing_table() -> str:
    network, rate = NETWORKS[scale.NETWORK], scale.RATE_MBPS
    worlds = [scale.world("chain", sites, workers) for sites, workers in scale.WORLDS]
    rows = []
    for row in GROWING:
        sent = [link_bytes(COSTS[row], network, world, rate) for world in worlds]
        rows.append([title(row), *(f"{own / network.elements:.3g}" for own in sent)])
    heads = [f"{world.layout.world} in {len(world.layout.sites)}" for world in worlds]
    return table(["bytes per element by formula, chain", *heads], rows)


def many_table(found: Sequence[Mapping[str, Any]]) -> str:
    steps = found[0]["steps"] if found else 100
    rows = [
        [str(one["workers"]), str(one["sites"]), one["mode"], f"{one['kept']:.2f}",
         f"{one['start']:.3f}", f"{one['loss']:.3f}", f"{one['exact_loss']:.3f}",
         short(one["seconds"])]
        for one in found
    ]  # fmt: skip
    heads = ["workers", "sites and agents", "mode", "kept", "nats at the start",
             f"after {steps} steps", "exact mean, one process",
             "seconds per step on two cores"]  # fmt: skip
    return table(heads, rows or [["16, 32", *[NOT_RUN] * 7]])
