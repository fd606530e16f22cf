"""The report's tables of scale: the simulator beside the testbed, and what it says. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.evidence import scale
from bench.evidence.experiment_tables import NOT_RUN, table
from bench.evidence.methods import ROWS
from bench.evidence.scale import Speeds
from bench.evidence.shapes import NETWORKS
from bench.evidence.times import COSTS, link_bytes
from bench.figure_blocks import TITLES as MEASURED_TITLES
from bench.figure_blocks import short

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


def testbed_table(testbed: Testbed, speeds: Speeds) -> str:
    """Rows where links hold the step first: for those the simulator is meant."""
    held: list[list[str]] = []
    others: list[list[str]] = []
    for found in testbed.values():
        figures = found["figures"]
        for row in figures["rows"]:
            if row["name"] not in scale.MEASURED_ROWS:
                continue
            simulated = scale.predict(figures, row["name"], speeds)
            links = scale.links_hold(row, figures)
            (held if links else others).append(
                [_words(figures), MEASURED_TITLES[row["name"]], short(row["seconds"]),
                 short(simulated), f"{simulated / row['seconds']:.2f}",
                 "links" if links else "processors"]
            )  # fmt: skip
    rows = [*held, *others] or [[NOT_RUN, *["-"] * 5]]
    return table(["sites and links", "row", "measured, seconds", "simulated, seconds",
                  "simulated / measured", "what held the step up"], rows)  # fmt: skip


def testbed_words(testbed: Testbed, speeds: Speeds) -> str:
    ratios = [
        scale.predict(found["figures"], row["name"], speeds) / row["seconds"]
        for found in testbed.values()
        for row in found["figures"]["rows"]
        if row["name"] in scale.MEASURED_ROWS and scale.links_hold(row, found["figures"])
    ]
    if not ratios:
        return f"Measured steps: {NOT_RUN}."
    worst = max(ratios, key=lambda ratio: abs(ratio - 1))
    return (
        f"Where links hold the step, {len(ratios)} rows, it says {min(ratios):.2f} to "
        f"{max(ratios):.2f} of what was measured: {abs(worst - 1):.0%} off at most; goal: 10 %."
    )


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
