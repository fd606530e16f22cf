"""make report-times: seconds per step at the paper's shapes, on emulated links, with real agents.

Eight trainers in the paper's chain of three sites, or another topology; an agent in each site,
TLS: random gradients of each network's sizes, and the reference accelerator's compute slept.
Into one file for each topology and network; rows and rates that are there are not measured
again (but with --again), so it may be stopped and go on.

  python -m bench.evidence.step_times --networks=resnet18,vgg19 --rates=1000 --rows=levels7-0.5,ddp

With --ready (the paper's chain) methods' own compression runs on no processor here: bytes are
ready-made, and its time at the reference accelerator is slept. Agents code levels all the same.

Needs root for network namespaces, and memory for eight trainers at once: for ViT-B/16 up to
20 GB, TopK-0.1 there 26 GB. Its last line is one of JSON: {"networks", "rows",
"worst_over_bound_levels", "hours", "wrong"}. The exit status is 1 if something failed or
`wrong` names a measurement that cannot be.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from bench import agent_memory
from bench.cluster import ROOT, certificates, start_cluster
from bench.evidence import checked, chosen, read_json
from bench.evidence.checked import AMOUNT, COUNT, NUMBERS, POSITIVE, TEXT, check_each, one_of
from bench.evidence.shapes import NETWORKS
from bench.evidence.step_times_plan import (
    OURS,
    READY_ROWS,
    ROWS,
    TOPOLOGY,
    Entry,
    cost_of,
    formula_of,
    is_ours,
    merged,
    missing,
    wrong_with,
)
from bench.evidence.steps import versions
from bench.evidence.times import RATES_MBPS, StepTime, step_time
from bench.exchange import SETUP_MBPS
from bench.exchange_layout import bound_seconds
from bench.launch import SILENT_SECONDS, events, start_trainers
from bench.processes import Children, ProcessError, interrupt_on_signals
from bench.results import processor
from bench.testbed import NamespaceTestbed, TestbedError, why_no_namespaces
from bench.topologies import Topology, topologies

FOLDER = ROOT / "bench" / "results" / "evidence" / "times"
READY_FOLDER = FOLDER.parent / "times-ready"
# Of a row that was timed.
TIMED = {"row": one_of([*ROWS, *READY_ROWS]), "rate_mbps": POSITIVE, "seconds": POSITIVE,
         "steps": NUMBERS, "link_bytes": NUMBERS, "cpu_seconds": AMOUNT,
         "machine_cpu_seconds": AMOUNT, "processors": COUNT,
         "commit": TEXT, "machine": TEXT}  # fmt: skip
JOB = "times"
# For what a row that says nothing meanwhile does on few processors: making masks, warming up.
SILENT_SECONDS_PER_ELEMENT = 6e-6
USABLE = 0.95  # Of the memory that is there. ViT-B/16's rows of ours took 18.8 GB of 19.3 said.
# What top-k's ranks gather is int64 indices and fp32 values: so many times what they keep.
GATHERED = 3.0


def path_of(network: str, topology: str = TOPOLOGY, folder: Path = FOLDER) -> Path:
    return folder / topology / f"{network}.json"


def read_times(topology: str = TOPOLOGY, folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """What was measured there, by network, in the order of NETWORKS."""
    paths = {name: path_of(name, topology, folder) for name in NETWORKS}
    found = {name: checked.read(path, {"wall_seconds": AMOUNT})
             for name, path in paths.items() if path.exists()}  # fmt: skip
    for name, content in found.items():
        check_each(paths[name], content.get("rows"), TIMED, "rows")
    return found


def rates_of(topology: Topology, asked: Sequence[float]) -> list[float]:
    """Its own, if it has one whatever is asked for."""
    own = topology.layout.own_mbps
    return [own] if own else list(asked)


def renewed(
    times: Mapping[str, Mapping[str, Any]], newer: Mapping[str, Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    """`times` with the rows of `newer` in the place of theirs."""
    found = dict(times)
    for network, content in newer.items():
        rows = list(found.get(network, {}).get("rows", []))
        for entry in content["rows"]:
            rows = merged(rows, entry)
        found[network] = {**content, **found.get(network, {}), "rows": rows}
    return found


@dataclass
class Record:
    """A network's file, and what this run adds to it."""

    network: str
    folder: Path
    topology: str = TOPOLOGY

    def __post_init__(self) -> None:
        self._started = time.monotonic()
        path = path_of(self.network, self.topology, self.folder)
        network = NETWORKS[self.network]
        self.content: dict[str, Any] = read_json(path) if path.exists() else {
            "network": self.network, "topology": self.topology, "elements": network.elements,
            "compute_seconds": network.compute_seconds, "wall_seconds": 0.0, "rows": [],
        }  # fmt: skip
        self._wall_before = self.content["wall_seconds"]

    def add(self, entry: Entry) -> None:
        self.content["rows"] = merged(self.content["rows"], entry)
        self.content["wall_seconds"] = round(
            self._wall_before + time.monotonic() - self._started, 1
        )
        path = path_of(self.network, self.topology, self.folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(self.content, indent=1) + "\n")
        partial.replace(path)


def formula(row: str, network: str, rate: float, topology: str = TOPOLOGY) -> StepTime:
    """Encoding is not charged."""
    return step_time(formula_of(row), NETWORKS[network], topologies()[topology], rate, 0.0)


def why_too_large(
    network: str, row: str, topology: str = TOPOLOGY, ready: bool = False
) -> str | None:
    """None: it fits into this machine's memory, as it is now."""
    layout, cost = topologies()[topology].layout, cost_of(row)
    gathered = GATHERED * layout.world * cost.keep if cost.how == "gather" else 0.0
    elements = NETWORKS[network].elements
    if ready:  # There is no gradient but what is kept.
        elements, gathered = round(elements * cost.keep), gathered / cost.keep
    needed = agent_memory.needed_bytes(elements, layout.world, sum(layout.hosts), is_ours(row),
                                       gathered)  # fmt: skip
    there = USABLE * agent_memory.available_bytes()
    if needed <= there:
        return None
    return (f"{network}, {row} is left out: it needs about {needed / 1e9:.0f} GB of memory for "
            f"{layout.world} trainers, allowed: {there / 1e9:.0f} GB of those that are available; "
            f"free some, or leave it out by --networks or --rows")  # fmt: skip


def run(
    wanted: Mapping[str, Sequence[float]], record: Record, ready: bool, quick: bool = False
) -> None:
    """Rates of each row. ProcessError, TestbedError: something failed; what came before is kept."""
    layout = topologies()[record.topology].layout
    network = NETWORKS[record.network]
    expected = {row: {f"{rate:g}": formula(row, record.network, rate, record.topology).seconds
                      for rate in rates} for row, rates in wanted.items()}  # fmt: skip
    slowest = layout.slowest(min(rate for rates in wanted.values() for rate in rates))
    longest = max(seconds for rates in expected.values() for seconds in rates.values())
    silent = SILENT_SECONDS + network.elements * SILENT_SECONDS_PER_ELEMENT + 9 * longest
    commit = versions()["commit"]
    with (
        tempfile.TemporaryDirectory(prefix="pactrain-times-") as name,
        NamespaceTestbed(layout.testbed_sites(), layout.testbed_links(SETUP_MBPS),
                         slowest_mbps=slowest) as bed,
        Children(Path(name)) as children,
    ):  # fmt: skip
        pki = Path(name) / "pki"
        certificates(bed, pki)
        middle = bed.hosts[len(bed.hosts) // 2]
        cluster = start_cluster(bed, children, Path(name), middle, risk="exact", pki=pki)
        shares = dataclasses.replace(layout, own_mbps=0.0).link_rates(1.0)
        argv = ["-m", "bench.evidence.step_times_train", f"--network={record.network}",
                f"--wanted={json.dumps(expected)}", f"--core={bed.core}",
                f"--topology={record.topology}", *(["--ready"] if ready else []),
                *(["--quick"] if quick else []),
                *(f"--share={there}:{back}" for there, back in shares),
                *(f"--agent-pid={agent.pid}" for agent in cluster.agents)]  # fmt: skip
        first = start_trainers(bed, children, JOB, argv, layout.ranks_per_host, cluster)
        for event in events(first, children, silent):
            event.pop("event")
            record.add({**event, "commit": commit, "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
                        "machine": processor(), "processors": os.cpu_count() or 1})  # fmt: skip
            print(words(record, event), flush=True)
        children.check()


def words(record: Record, entry: Entry) -> str:
    row, rate, seconds = entry["row"], entry["rate_mbps"], entry["seconds"]
    over = seconds / formula(row, record.network, rate, record.topology).bound
    return (f"{record.network}, {record.topology}, {rate:g} Mbps: {row:<12}{seconds:>9.4f} s, "
            f"{over:.3f} of its bound, {len(entry['steps'])} steps")  # fmt: skip


def counted_seconds(topology: Topology, entry: Entry) -> float:
    """That the bytes counted take on the link and direction where they take longest."""
    rates = [rate for pair in topology.layout.link_rates(entry["rate_mbps"]) for rate in pair]
    return max(bound_seconds(sent, rate) for sent, rate
               in zip(entry["link_bytes"], rates, strict=True))  # fmt: skip


def summary(places: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """The last line, of all that is there: by topology and network."""
    over, wrong, rows, seconds, networks = [], [], 0, 0.0, set()
    for name, times in places.items():
        topology = topologies()[name]
        for network, content in times.items():
            networks.add(network)
            rows += len(content["rows"])
            seconds += content["wall_seconds"]
            elements = NETWORKS[network].elements
            for entry in content["rows"]:
                row, rate = entry["row"], entry["rate_mbps"]
                found = formula(row, network, rate, name)
                if (name, row, rate) == (TOPOLOGY, OURS, RATES_MBPS[0]):
                    over.append(entry["seconds"] / found.bound)
                counted = counted_seconds(topology, entry)
                why = wrong_with(entry, elements, found.bytes_per_element * elements, counted)
                if why is not None:
                    wrong.append(f"{network}, {name}, {why}")
    return {
        "networks": len(networks),
        "rows": rows,
        "worst_over_bound_levels": round(max(over), 3) if over else None,
        "hours": round(seconds / 3600, 2),
        "wrong": wrong,
    }


def measure(
    networks: Sequence[str], rows: Sequence[str], rates: Sequence[float],
    again: bool = False, folder: Path = FOLDER, topology: str = TOPOLOGY, ready: bool = False,
    quick: bool = False,
) -> int:  # fmt: skip
    """What is missing of it; the exit status: 1 if a row was too large or something failed.

    `again`: also what is there; `ready`: see above; `quick`: as steps_of().
    """
    status = 0
    for name in networks:
        record = Record(name, folder, topology)
        wanted = missing([] if again else record.content["rows"], rows, rates)
        if not wanted:
            continue
        if (why := why_no_namespaces()) is not None:
            print(f"report-times needs shaped network namespaces: {why}", file=sys.stderr)
            return 1
        for row in list(wanted):
            if (why := why_too_large(name, row, topology, ready)) is not None:
                print(f"report-times: {why}", file=sys.stderr)
                del wanted[row]
                status = 1
        if not wanted:
            continue
        try:
            run(wanted, record, ready, quick)
        except (ProcessError, TestbedError) as error:
            print(f"report-times failed: {error}", file=sys.stderr)
            return 1
    return status


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="bench.evidence.step_times",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    all_rates = [f"{rate:g}" for rate in RATES_MBPS]
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--topologies", default=TOPOLOGY)
    parser.add_argument("--rates", default=",".join(all_rates), help="in Mbps")
    parser.add_argument("--rows", help="default: all")
    parser.add_argument("--ready", action="store_true", help="ready-made bytes, see above")
    parser.add_argument("--again", action="store_true", help="measure also what is there")
    options = parser.parse_args(argv)
    try:
        networks = chosen("networks", options.networks, NETWORKS)
        names = chosen("topologies", options.topologies, topologies())
        rates = list(map(float, chosen("rates", options.rates, all_rates)))
        every = READY_ROWS if options.ready else ROWS
        rows = chosen("rows", options.rows or ",".join(every), every)
        if options.ready and names != [TOPOLOGY]:
            raise ValueError(f"topologies = {','.join(names)}, allowed with --ready: {TOPOLOGY}")
    except ValueError as error:
        print(f"report-times: {error}", file=sys.stderr)
        return 2
    interrupt_on_signals()
    try:
        folder = READY_FOLDER if options.ready else FOLDER
        status = max(measure(networks, rows, rates_of(topologies()[name], rates), options.again,
                             folder, name, options.ready) for name in names)  # fmt: skip
    except KeyboardInterrupt:
        print("report-times: interrupted; what was measured is kept", file=sys.stderr)
        return 130
    found = summary({name: read_times(name, folder) for name in topologies()})
    print(json.dumps(found))
    return 1 if found["wrong"] else status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
