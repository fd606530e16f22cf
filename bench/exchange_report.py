"""The figures of bench/exchange.py: medians over rounds, the table and the plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from bench.agent_memory import MIB, Memory, bound_bytes
from bench.exchange_layout import PAYLOAD_SHARE, Layout, bound_seconds
from bench.exchange_rows import DDP, NMSE_GOALS, OURS, link_bytes
from bench.link_sampler import Sample, busy_seconds
from bench.spread import bucket_text, spread
from bench.testbed import burst_kb

# What a round trip may add: so many of them, and a share of the step.
RTT_GOAL, RTT_GOAL_SHARE = 1.5, 0.05
TRAFFIC_SHARE = 0.1  # Of a link's rate: less is acknowledgements and heartbeats.
BUSIEST_SHARE = 0.99  # Of the most that a direction carries: it is one of the busiest.


@dataclass
class Rounds:
    """What was measured of one row, a value per round; links as in link_bytes()."""

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    machine_cpu_seconds: list[float] = field(default_factory=list)  # The kernel's too.
    stolen_seconds: list[float] = field(default_factory=list)  # By the hypervisor.
    link_bytes: list[list[float]] = field(default_factory=list)  # Payload of a step.
    busy_seconds: list[list[float]] = field(default_factory=list)

    def add(
        self, event: Mapping[str, Any], samples: Sequence[Sample], rates_mbps: Sequence[float]
    ) -> None:
        """`rates_mbps`: of each link there and back."""
        sent = event["link_bytes"]
        self.seconds.append(event["seconds"])
        self.cpu_seconds.append(event["cpu_seconds"])
        self.machine_cpu_seconds.append(event["machine_cpu_seconds"])
        self.stolen_seconds.append(event["stolen_seconds"])
        self.link_bytes.append(sent)
        self.busy_seconds.append(
            [
                busy_seconds(samples, device, event["times"], TRAFFIC_SHARE * rate * 1e6 / 8)
                for device, rate in enumerate(rates_mbps)
            ]
        )


def make_row(
    name: str, rounds: Rounds, layout: Layout, elements: int, rate_mbps: float
) -> dict[str, Any]:
    per_link = [median(values) for values in zip(*rounds.link_bytes, strict=True)]
    rates = [rate for both in layout.link_rates(rate_mbps) for rate in both]
    shares = [
        [link_share(*direction) for direction in zip(sent, busy, rates, strict=True)]
        for sent, busy in zip(rounds.link_bytes, rounds.busy_seconds, strict=True)
    ]
    return {
        "name": name,
        "seconds": median(rounds.seconds),
        "bound_seconds": bound_seconds(
            link_bytes(name, layout, elements), layout.slowest(rate_mbps)
        ),
        "link_bytes_per_element": [sent / elements for sent in per_link],
        "link_share": median(map(busiest_share, rounds.link_bytes, shares)),
        "link_shares": [median(values) for values in zip(*shares, strict=True)],
        "cpu_seconds": median(rounds.cpu_seconds),
        "machine_cpu_seconds": median(rounds.machine_cpu_seconds),
        "stolen_seconds": median(rounds.stolen_seconds),
        "spread": spread(rounds.seconds),
        "rounds": rounds.seconds,
    }


def delayed_row(row: Mapping[str, Any], rounds: Rounds, rtt_ms: float) -> dict[str, Any]:
    """What a row has beside that: its rounds with a round trip between the farthest sites."""
    seconds = median(rounds.seconds)
    goal = RTT_GOAL * rtt_ms + 1e3 * RTT_GOAL_SHARE * row["seconds"]
    return {
        "rtt_seconds": seconds,
        "rtt_ratio": seconds / row["seconds"],
        "rtt_ms_above": 1e3 * (seconds - row["seconds"]),
        "rtt_goal_ms_above": goal,
        "rtt_rounds": rounds.seconds,
    }


def agent_rows(
    agents: Sequence[Memory], reserves: Sequence[int], trainers: Sequence[int], kept: float
) -> list[dict[str, Any]]:
    """Of each agent: what COMPACTED steps used, its bound, and what FULL ones would need."""
    return [
        {
            "trainers": count,
            "private_bytes": used.private_bytes,
            "shared_bytes": used.shared_bytes,
            "memory_bytes": used.total,
            "bound_bytes": bound_bytes(count, kept),
            "full_reserve_bytes": reserve,
        }
        for used, reserve, count in zip(agents, reserves, trainers, strict=True)
    ]


def link_share(payload: float, busy: float, rate_mbps: float) -> float:
    """Payload over what the link could carry while it was busy.

    What tbf lets an idle link send at once is left out.
    """
    free = burst_kb(rate_mbps) * 1000 * PAYLOAD_SHARE
    if busy <= 0 or payload <= free:
        return 0.0
    return bound_seconds(payload - free, rate_mbps) / busy


def busiest_share(sent: Sequence[float], shares: Sequence[float]) -> float:
    """Mean of the busiest directions: of a few that carry as much none is the busiest."""
    least = BUSIEST_SHARE * max(sent)
    return fmean(share for payload, share in zip(sent, shares, strict=True) if payload >= least)


def print_table(result: Mapping[str, Any], layout: Layout) -> None:
    links = [f"{x}>{y}" for a, b in layout.links for x, y in ((a, b), (b, a))]
    # fmt: off
    print(f"\n  {'row':<15}{'s/step':>8}{'bound':>8}{'x bound':>9}{'+ ms':>8}{'DDP is':>9}"
          f"{'share':>7}{'CPU s':>7}{'busy':>6}{'stolen':>8}"
          f"   payload per element and share, {' '.join(links)}")
    # fmt: on
    rows = {row["name"]: row for row in result["rows"]}
    ddp = rows.get(DDP)
    for name, row in rows.items():
        over = row["seconds"] - row["bound_seconds"]
        times = f"{ddp['seconds'] / row['seconds']:.2f} x" if ddp else ""
        sent = " ".join(f"{value:.3f}" for value in row["link_bytes_per_element"])
        shares = " ".join(f"{value:.2f}" for value in row["link_shares"])
        available = row["seconds"] * result["processors"]
        busy = row["machine_cpu_seconds"] / available
        stolen = row["stolen_seconds"] / available
        print(f"  {name:<15}{row['seconds']:>8.3f}{row['bound_seconds']:>8.3f}"
              f"{row['seconds'] / row['bound_seconds']:>9.3f}{1e3 * over:>8.1f}{times:>9}"
              f"{row['link_share']:>7.3f}{row['cpu_seconds']:>7.2f}{busy:>6.2f}{stolen:>8.2f}"
              f"   {sent}   {shares}")  # fmt: skip
    for name, row in rows.items():
        if "bucket_bytes" in row:
            print(f"  {name}: buckets of {bucket_text(row['bucket_bytes'])}")
    print(f"\n  busy: the share of the machine's {result['processors']} processors that works"
          " during a step; stolen: that its hypervisor gave to others meanwhile")  # fmt: skip
    print(f"  one plain TCP stream: {result['raw_stream_share']:.3f} of the link\n")
    print_delayed(result)
    print_nmse(result, layout)
    print_agents(result)


def print_delayed(result: Mapping[str, Any]) -> None:
    if "rtt_ms" not in result:
        return
    if result["loss_share"]:
        with_bbr = ", ".join(map(str, result["bbr_connections"]))
        print(f"  {100 * result['loss_share']:g} % of pieces lost; connections that went over to"
              f" bbr before the rounds, by run and agent: {with_bbr}")  # fmt: skip
    print(f"  {'RTT ' + format(result['rtt_ms'], 'g') + ' ms':<15}{'s/step':>8}{'RTT 0':>8}"
          f"{'ratio':>9}{'+ ms':>8}   goal")  # fmt: skip
    for row in result["rows"]:
        has_goal = row["name"] in OURS and not result["loss_share"]
        goal = f"<= {row['rtt_goal_ms_above']:.1f}" if has_goal else ""
        print(f"  {row['name']:<15}{row['rtt_seconds']:>8.3f}{row['seconds']:>8.3f}"
              f"{row['rtt_ratio']:>9.3f}{row['rtt_ms_above']:>8.1f}   {goal}")  # fmt: skip
    print()


def print_nmse(result: Mapping[str, Any], layout: Layout) -> None:
    chain = len(layout.sites) == 3
    for row in result["rows"]:
        if "nmse" in row:
            goal = f" (goal: <= {NMSE_GOALS[OURS[row['name']].levels]})" if chain else ""
            print(f"  {row['name']}: NMSE of the exchange {row['nmse']:.4f}{goal}")


def print_agents(result: Mapping[str, Any]) -> None:
    for agent in result.get("agents", []):
        print(f"  agent of {agent['trainers']} trainers, COMPACTED keep 0.5:"
              f" {agent['memory_bytes'] / MIB:.0f} MiB"
              f" ({agent['private_bytes'] / MIB:.0f} private,"
              f" {agent['shared_bytes'] / MIB:.0f} shared),"
              f" goal: <= {agent['bound_bytes'] / MIB:.0f};"
              f" reserve for FULL: {agent['full_reserve_bytes'] / MIB:.0f}")  # fmt: skip
    print()


def plot(path: Path, result: Mapping[str, Any]) -> None:
    """Seconds per step, with the least that each row's bytes take on the link."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = result["rows"]
    figure, axes = pyplot.subplots(figsize=(8, 0.4 * len(rows) + 1.4))
    names = [row["name"] for row in rows]
    colors = ["#1565c0" if name in OURS else "#888888" for name in names]
    axes.barh(names, [row["seconds"] for row in rows], color=colors, height=0.6)
    axes.plot([row["bound_seconds"] for row in rows], names, "k|", markersize=14,
              label="bytes / what the link can carry")  # fmt: skip
    for row in rows:
        axes.annotate(f" {row['seconds']:.3f}", (row["seconds"], row["name"]), va="center",
                      fontsize=8)  # fmt: skip
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel(f"seconds per step, {result['elements']:,} elements, {result['rate']} links")
    axes.legend(frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
