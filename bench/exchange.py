"""make bench-exchange: seconds per step of PacTrain and of what torch offers, over slow links.

Emulated sites, no compute: every row exchanges the same given gradients between the same
ranks, in turn, so that all meet the same machine. PacTrain speaks TLS. Prints a table and,
as its last line, the figures as JSON; keeps them and a plot in out/bench-exchange.*. Needs
root for network namespaces.

  RATE=100mbit ELEMENTS=5586981 SITES=3,2,3 LINKS=0-1,1-2   trainers per site; site pairs,
                          default: each site with the next one
  TOPOLOGY=star           instead of both: a file of bench/evidence/topologies, without .yaml
  NODES=8                 one node per trainer; default: one per site
  ROWS=full,levels7-0.5   default: all
  ROUNDS=5 STEPS=0        each row's median is over rounds; steps of one, 0: a second of them
  RTT=20ms                all rounds again with that round trip between the farthest sites
  LOSS=0.2%               and with so much of what each link carries lost by chance
  MEMORY=0                without the run that reads the agents' memory
  CONGESTION=cubic        TCP's congestion control, of all rows; with LOSS ours go over to bbr
                          where connections have carried 12 MiB
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from bench import agent_memory, exchange_report, link_sampler
from bench.agent_memory import Memory
from bench.cluster import (
    READY_SECONDS,
    ROOT,
    Cluster,
    certificates,
    pin,
    read_metric,
    read_metrics,
    start_cluster,
)
from bench.exchange_layout import (
    MOST_STEPS,
    PAYLOAD_SHARE,
    Layout,
    bound_seconds,
    one_way_ms,
    parse_layout,
    parse_loss,
    parse_rate,
    parse_rtt,
)
from bench.exchange_report import Rounds
from bench.exchange_rows import OURS, ROWS, link_bytes
from bench.launch import SILENT_SECONDS, events, start_trainers
from bench.link_sampler import Sample
from bench.processes import Child, Children, ProcessError, interrupt_on_signals
from bench.testbed import (
    CONGESTION_CONTROL,
    NamespaceTestbed,
    TestbedError,
    burst_kb,
    congestion_controls,
    why_no_namespaces,
)
from bench.topologies import topologies

JOB = "exchange"
MEMORY_ROW = "compacted-0.5"
SAMPLER_SECONDS = 10.0  # In which it prints something for sure.
SEGMENT_BYTES = 1448
ROUND_TRIPS = 20  # Of a step, more than any row takes; losses cost some too.
SETUP_MBPS = 10_000.0  # Of all links until every row travels as it shall.


@dataclass(frozen=True)
class Options:
    rate: str
    rate_mbps: float
    elements: int
    layout: Layout
    rows: tuple[str, ...]
    rounds: int
    steps: int
    congestion: str
    rtt_ms: float
    loss_share: float
    memory: bool = True


@dataclass
class Measured:
    """What all runs showed."""

    rounds: dict[str, Rounds] = field(default_factory=dict)
    delayed: dict[str, Rounds] = field(default_factory=dict)  # With the round trip asked for.
    raw: list[float] = field(default_factory=list)  # Bytes per second of a plain TCP stream.
    nmse: dict[str, float] = field(default_factory=dict)
    buckets: dict[str, list[int]] = field(default_factory=dict)  # Bytes, of rows of plain DDP.
    agents: list[Memory] = field(default_factory=list)
    full_reserve: list[int] = field(default_factory=list)  # Bytes, of each agent.
    with_bbr: list[int] = field(default_factory=list)  # Connections, by run and agent.


def choose_layout(env: Mapping[str, str]) -> Layout:
    """ValueError: sites and links make no sense, or there is no such topology."""
    name = env.get("TOPOLOGY") or ""
    if not name:
        return parse_layout(env.get("SITES") or "3,2,3", env.get("LINKS") or "",
                            env.get("NODES") or "")  # fmt: skip
    known = topologies()
    if name not in known:
        raise ValueError(f"TOPOLOGY = '{name[:20]}', allowed: {', '.join(known)}")
    for other in ("SITES", "LINKS", "NODES"):
        if env.get(other):
            raise ValueError(f"{other} = '{env[other][:20]}', allowed with TOPOLOGY: none")
    return known[name].layout


def parse_options(env: Mapping[str, str]) -> Options:
    """ValueError: a variable is out of range; says what is allowed."""

    def number(name: str, default: int, least: int, most: int) -> int:
        text = env.get(name) or str(default)
        if not re.fullmatch("[0-9]{1,10}", text) or not least <= int(text) <= most:
            raise ValueError(f"{name} = '{text[:20]}', allowed: {least} to {most}")
        return int(text)

    rate = env.get("RATE") or "100mbit"
    layout = choose_layout(env)
    rows = tuple((env.get("ROWS") or ",".join(ROWS)).split(","))
    for row in rows:
        if row not in ROWS:
            raise ValueError(f"ROWS has '{row}', allowed: {', '.join(ROWS)}")
        if rows.count(row) > 1:
            raise ValueError(f"ROWS has '{row}' more than once, allowed: once")
    congestion = env.get("CONGESTION") or CONGESTION_CONTROL
    if congestion not in (available := congestion_controls()):
        raise ValueError(f"CONGESTION = '{congestion}', allowed here: {', '.join(available)}")
    rtt_ms, loss_share = parse_rtt(env.get("RTT") or ""), parse_loss(env.get("LOSS") or "")
    if loss_share and not rtt_ms:
        raise ValueError("LOSS is that of links with a delay: allowed: with RTT, e.g. RTT=20ms")
    elements = number("ELEMENTS", 5_586_981, 1000, 1_000_000_000)
    return Options(rate, layout.own_mbps or parse_rate(rate), elements, layout, rows,
                   number("ROUNDS", 5, 1, 1000), number("STEPS", 0, 0, 1000), congestion,
                   rtt_ms, loss_share, bool(number("MEMORY", 1, 0, 1)))  # fmt: skip


def start_relay(options: Options, bed: NamespaceTestbed, children: Children, fifo: Path) -> None:
    os.mkfifo(fifo)
    if options.rtt_ms > 0:
        children.start("relay", bed.relay_command(fifo), {}).wait_for("carrying", READY_SECONDS)


def far_site(layout: Layout) -> int:
    """Another one than site 0, across the first link."""
    near, far = layout.links[0] if 0 in layout.links[0] else (0, layout.links[0][1])
    other = far if near == 0 else near
    return other if other < len(layout.sites) else 1  # Across the core.


def start_all(
    options: Options,
    bed: NamespaceTestbed,
    children: Children,
    cluster: Cluster,
    more: Sequence[str],
) -> tuple[Child, Child]:
    """The sampler of the links and the first trainer; `more`: arguments of trainers."""
    layout = options.layout
    devices = [f"t{number}{end}" for number in range(len(layout.links)) for end in "ab"]
    sampler = children.start(
        "sampler",
        ["ip", "netns", "exec", bed.core, sys.executable, "-m", "bench.link_sampler", *devices],
        {},
    )
    other = far_site(layout)
    target = sum(layout.sites[:other])
    address = bed.hosts[sum(layout.hosts[:other])].address
    argv = ["-m", "bench.exchange_train", f"--elements={options.elements}",
            f"--rows={','.join(options.rows)}", f"--rounds={options.rounds}",
            f"--steps={options.steps}", f"--core={bed.core}", f"--raw-target={target}={address}",
            *(f"--link={there}:{back}" for there, back in layout.link_rates(options.rate_mbps)),
            *(f"--agent-pid={agent.pid}" for agent in cluster.agents), *more]  # fmt: skip
    first = start_trainers(bed, children, JOB, argv, layout.ranks_per_host, cluster)
    return sampler, first


def measure(options: Options, measured: Measured, memory: bool) -> None:
    """One run of all that is needed; `memory`: measures nothing else."""
    layout = options.layout
    with (
        tempfile.TemporaryDirectory(prefix="pactrain-exchange-") as name,
        NamespaceTestbed(layout.testbed_sites(), layout.testbed_links(SETUP_MBPS),
                         options.congestion, layout.slowest(options.rate_mbps),
                         options.rtt_ms > 0) as bed,
        Children(Path(name)) as children,
    ):  # fmt: skip
        folder = Path(name)
        pki = folder / "pki"
        certificates(bed, pki)
        fifo = folder / "delay"
        start_relay(options, bed, children, fifo)
        middle = bed.hosts[len(bed.hosts) // 2]
        cluster = start_cluster(bed, children, folder, middle, risk="exact", pki=pki)
        more = [
            f"--delay-ms={one_way_ms(layout, options.rtt_ms)}",
            f"--relay-fifo={fifo}",
            f"--loss-share={options.loss_share}",
        ]
        sampler, first = start_all(options, bed, children, cluster,
                                   [*more, "--memory"] if memory else more)  # fmt: skip
        reader = Reader(options, measured, sampler)
        for event in events(first, children, silent_seconds(options)):
            if event["event"] == "attached":
                pin_rows(options, bed, cluster, pki)
                measured.full_reserve = full_reserves(bed, cluster) if memory else []
            elif event["event"] == "memory":
                measured.agents = [Memory(*agent) for agent in event["agents"]]
            else:
                reader.take(event)
                if event["event"] == "delayed" and options.loss_share:
                    measured.with_bbr += connections_with_bbr(bed, cluster)
        children.check()


def silent_seconds(options: Options) -> float:
    """What a round of the slowest row may take: it says nothing before its end."""
    rtt, rate_mbps = options.rtt_ms / 1e3, options.layout.slowest(options.rate_mbps)
    if options.loss_share:  # What is left of it to one connection (Mathis et al., 1997).
        segments = math.sqrt(1.5 / options.loss_share)
        rate_mbps = min(rate_mbps, segments * SEGMENT_BYTES * 8e-6 / rtt)
    slowest = max(
        bound_seconds(link_bytes(name, options.layout, options.elements), rate_mbps)
        for name in options.rows
    )
    # A delay makes a round longer, but not of fewer steps.
    steps = options.steps or (MOST_STEPS if rtt else 1)
    return SILENT_SECONDS + (3 * slowest + ROUND_TRIPS * rtt) * (steps + 1)


def full_reserves(bed: NamespaceTestbed, cluster: Cluster) -> list[int]:
    """What each agent says that FULL steps of its trainers need, in bytes."""
    name = "pactrain_agent_full_reserve_bytes"
    values = [read_metric(bed, agent.host, agent.metrics, name) for agent in cluster.agents]
    return [int(value or 0) for value in values]


def connections_with_bbr(bed: NamespaceTestbed, cluster: Cluster) -> list[int]:
    """How many each agent has that lose packets."""
    name = "pactrain_agent_peer_bbr_connections"
    return [
        int(sum(read_metrics(bed, agent.host, agent.metrics, name))) for agent in cluster.agents
    ]


class Reader:
    """Sorts what the first trainer tells of its rounds."""

    def __init__(self, options: Options, measured: Measured, sampler: Child) -> None:
        self._options = options
        self._measured = measured
        self._sampler = sampler
        self._samples: list[Sample] = []
        self._rtt_ms = 0.0

    def take(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "settled":
            if event["nmse"] is not None:
                self._measured.nmse[event["name"]] = event["nmse"]
        elif event["event"] == "buckets":
            self._measured.buckets[event["name"]] = event["bytes"]
        elif event["event"] == "delayed":
            self._rtt_ms = self._options.rtt_ms
        elif event["event"] == "raw":
            if event["round"] > 0:
                self._measured.raw.append(event["bytes_per_second"])
        else:
            self._sample_until(event["times"][-1])
            if event["round"] > 0:  # The first one warms up.
                self._add(event)
            self._samples.clear()

    def _add(self, event: Mapping[str, Any]) -> None:
        rounds = self._measured.delayed if self._rtt_ms else self._measured.rounds
        row = rounds.setdefault(event["name"], Rounds())
        row.add(event, self._samples, direction_rates(self._options))
        rtt = f", RTT {self._rtt_ms:g} ms" if self._options.rtt_ms else ""
        print(f"round {event['round']}{rtt}: {event['name']:<15}{event['seconds']:>9.4f} s",
              flush=True)  # fmt: skip

    def _sample_until(self, time: float) -> None:
        while not self._samples or self._samples[-1].until < time:
            line = self._sampler.line(SAMPLER_SECONDS)
            if line is None:
                raise self._sampler.error("is silent")
            self._samples.append(link_sampler.parse(line))


def plan_runs(options: Options) -> list[tuple[str, ...]]:
    """As many as memory asks for. ValueError: there is too little for any."""
    layout = options.layout
    return agent_memory.batches({row: row in OURS for row in options.rows}, options.elements,
                                layout.world, sum(layout.hosts),
                                agent_memory.available_bytes())  # fmt: skip


def measure_all(options: Options, runs: Sequence[tuple[str, ...]]) -> Measured:
    """`runs`, and one for the agents' memory."""
    measured = Measured()
    for number, rows in enumerate(runs):
        if len(runs) > 1:
            print(f"run {number + 1} of {len(runs)}, for memory: {', '.join(rows)}", flush=True)
        measure(replace(options, rows=rows), measured, memory=False)
    if options.memory and MEMORY_ROW in options.rows:
        measure(replace(options, rows=(MEMORY_ROW,), rtt_ms=0, loss_share=0), measured, memory=True)
    return measured


def pin_rows(options: Options, bed: NamespaceTestbed, cluster: Cluster, pki: Path) -> None:
    """TERNARY where a row wants it; the others come by themselves."""
    ours = [OURS[name] for name in options.rows if name in OURS]
    for number, row in enumerate(ours):
        if row.levels:
            # The trainers attach one model for each of our rows, in this order.
            job = f"{JOB}/{number}" if number else JOB
            pin(bed, bed.hosts[len(bed.hosts) // 2], cluster, pki, job, row.mode,
                "--levels", str(row.levels))  # fmt: skip


def main(argv: list[str], env: Mapping[str, str]) -> int:
    argparse.ArgumentParser(
        prog="bench.exchange",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args(argv)
    try:
        options = parse_options(env)
        runs = plan_runs(options)
    except ValueError as error:
        print(f"bench-exchange: {error}", file=sys.stderr)
        return 2
    why = why_no_namespaces()
    if why is not None:
        print(f"bench-exchange needs shaped network namespaces: {why}", file=sys.stderr)
        return 1
    interrupt_on_signals()
    layout = options.layout
    print(f"{options.elements:,} elements, {layout.world} trainers, sites of {env_text(layout)}, "
          f"{options.rate} links (tbf, burst {burst_kb(options.rate_mbps)} kB), "
          f"TCP {options.congestion}", flush=True)  # fmt: skip
    if options.rtt_ms:
        print(f"then with a round trip of {options.rtt_ms:g} ms between the farthest sites"
              f" and {100 * options.loss_share:g} % of what a link carries lost")  # fmt: skip
    print(f"{options.rounds} rounds of {', '.join(options.rows)}\n", flush=True)
    try:
        measured = measure_all(options, runs)
    except (ProcessError, TestbedError) as error:
        print(f"bench-exchange failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench-exchange: interrupted", file=sys.stderr)
        return 130
    result = make_result(options, measured)
    exchange_report.print_table(result, layout)
    out = ROOT / "out"
    out.mkdir(exist_ok=True)
    exchange_report.plot(out / "bench-exchange.png", result)
    (out / "bench-exchange.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 0


def direction_rates(options: Options) -> list[float]:
    """Of each link there and back, in Mbps."""
    return [rate for both in options.layout.link_rates(options.rate_mbps) for rate in both]


def make_result(options: Options, measured: Measured) -> dict[str, Any]:
    """What is printed as JSON."""
    layout = options.layout
    capacity = PAYLOAD_SHARE * direction_rates(options)[0] * 1e6 / 8
    result: dict[str, Any] = {
        "rate": options.rate,
        "elements": options.elements,
        "sites": layout.sites,
        "links": layout.links,
        "link_mbps": layout.link_rates(options.rate_mbps),
        "nodes": sum(layout.hosts),
        "processors": os.cpu_count() or 1,  # Of the machine, as its work.
        "burst_kb": burst_kb(options.rate_mbps),
        "congestion_control": options.congestion,
        "raw_stream_share": median(measured.raw) / capacity,
        "rows": [
            exchange_report.make_row(name, measured.rounds[name], layout, options.elements,
                                     options.rate_mbps)
            for name in options.rows
        ],
    }  # fmt: skip
    for row in result["rows"]:
        if row["name"] in measured.nmse:
            row["nmse"] = measured.nmse[row["name"]]
        if row["name"] in measured.buckets:
            row["bucket_bytes"] = measured.buckets[row["name"]]
        if options.rtt_ms:
            row |= exchange_report.delayed_row(row, measured.delayed[row["name"]], options.rtt_ms)
    if options.rtt_ms:
        result |= {"rtt_ms": options.rtt_ms, "loss_share": options.loss_share}
    if options.loss_share:
        result["bbr_connections"] = measured.with_bbr
    if measured.agents:
        kept = OURS[MEMORY_ROW].keep * options.elements
        result["agents"] = exchange_report.agent_rows(
            measured.agents, measured.full_reserve, layout.ranks_per_host, kept
        )
    return result


def env_text(layout: Layout) -> str:
    joined = ", ".join(f"{a}-{b}" for a, b in layout.links)
    joined = "to a core" if layout.core else joined
    return f"{'+'.join(map(str, layout.sites))} on {sum(layout.hosts)} nodes, joined {joined}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
