"""make report-scale: step times of up to 1,024 workers in 32 sites, simulated, into scale.json.

    python -m bench.evidence.scale              the simulator at every scale; minutes of one core
    python -m bench.evidence.scale --measure    first what it is held to: `bench.exchange` on the
                                                emulated links, real agents, some minutes; root
      --only=star,chain                         these of the topologies

Measurements lie in bench/results/testbed, one file each; one that is there is not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from bench.evidence import checked, chosen, read_json, simulator
from bench.evidence.checked import COUNT, DICT, LIST, NUMBERS, POSITIVE, TEXT, check, check_each
from bench.evidence.shapes import NETWORKS, Network
from bench.evidence.simulator import Bucket, Coding, Pipes
from bench.evidence.times import COSTS, FORWARD_SHARE, Cost, link_bytes, step_time
from bench.exchange_layout import Layout, bound_seconds
from bench.exchange_rows import OURS
from bench.results import processor
from bench.topologies import Topology, star_links

ROOT = Path(__file__).resolve().parents[2]
TESTBED = ROOT / "bench" / "results" / "testbed"
SCALE = ROOT / "bench" / "results" / "evidence" / "scale.json"
SIMULATED = {"shape": TEXT, "sites": COUNT, "workers": COUNT, "row": TEXT, "formula": POSITIVE,
             "simulated": POSITIVE}  # fmt: skip
KERNELS = ROOT / "bench" / "results" / "kernels.json"

# --- Against the testbed -----------------------------------------------------------------

MEASURED_ROWS = ("full", "compacted-0.5", "levels7-0.5")
# What is measured, by `bench.exchange`'s variables: links so slow that a machine of two cores,
# on which all sites and trainers are, fills them, whatever else it does.
FOUR = {"SITES": "2,2,2,2", "LINKS": "1-0,1-2,1-3"}
EXACT = {"RATE": "5mbit", "ROWS": "full,compacted-0.5"}
# More elements, so that links are busy for as long, and a TLS record on one is as short.
IN_LEVELS = {"RATE": "5mbit", "ROWS": "levels7-0.5", "ELEMENTS": "5586981"}
TESTS: dict[str, dict[str, str]] = {
    f"{name}-{kind}": places | rows
    for name, places in (("chain", {"TOPOLOGY": "chain"}), ("star", {"TOPOLOGY": "star"}),
                         ("four", FOUR), ("asymmetric", {"TOPOLOGY": "asymmetric"}))
    for kind, rows in (("exact", EXACT), ("levels", IN_LEVELS))
}  # fmt: skip
# One direction of it has a fifth of the rate.
TESTS["asymmetric-exact"] |= {"RATE": "25mbit"}
TESTS["asymmetric-levels"] |= {"RATE": "25mbit"}
CHAIN_RATES = {"100mbit": 100.0, "500mbit": 500.0, "1gbit": 1000.0}
COUNTS = {"ROUNDS": "3", "STEPS": "1", "ELEMENTS": "1000000", "MEMORY": "0"}
# Of a step's time on all processors, by trainers and agents. Where they need more of it, the
# testbed's processors are the limit, no longer the links.
MOST_BUSY = 0.3


def bench_exchange(environment: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    """The exit status of `bench.exchange` with these variables; where it is 0, its figures."""
    done = subprocess.run([sys.executable, "-m", "bench.exchange"], cwd=ROOT,
                          env=os.environ | environment)  # fmt: skip
    if done.returncode != 0:
        return done.returncode, {}
    return 0, read_json(ROOT / "out" / "bench-exchange.json")


def measure(name: str) -> int:
    """The exit status of the benchmark."""
    environment = COUNTS | TESTS[name]
    status, figures = bench_exchange(environment)
    if status == 0:
        commit = subprocess.run(["git", "rev-parse", "--short=10", "HEAD"], cwd=ROOT,
                                capture_output=True, text=True)  # fmt: skip
        words = " ".join(f"{key}={value}" for key, value in environment.items())
        result = {
            "command": f"make bench-exchange {words}",
            "commit": commit.stdout.strip() or "unknown",
            "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
            "processor": processor(),
            "figures": figures,
        }
        TESTBED.mkdir(parents=True, exist_ok=True)
        (TESTBED / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    return status


def read_testbed() -> dict[str, Mapping[str, Any]]:
    """Those that are there, in the order of TESTS; then the chain's of `make measure`."""
    paths = {name: TESTBED / f"{name}.json" for name in TESTS}
    paths |= {f"chain, {rate}": TESTBED.parent / f"exchange-{rate}.json" for rate in CHAIN_RATES}
    found: dict[str, Mapping[str, Any]] = {
        name: checked.read(path, {"figures": DICT}) for name, path in paths.items() if path.exists()
    }
    for name, one in found.items():
        check(paths[name], one["figures"], {"elements": COUNT, "sites": NUMBERS, "links": LIST},
              "figures:")  # fmt: skip
        check_each(paths[name], one["figures"].get("rows"), {"name": TEXT, "rounds": NUMBERS},
                   "rows")  # fmt: skip
    return found


@dataclass(frozen=True)
class Speeds:
    """Of one core of an agent, in bytes of fp32 per second; 0: not measured, costs nothing."""

    encode: float = 0.0
    decode: float = 0.0


def read_speeds() -> Speeds:
    """Of 7 levels, as `make bench-kernels` measured them."""
    figures: dict[str, float] = {}
    if KERNELS.exists():
        figures = checked.read(KERNELS, {"figures": DICT})["figures"]
        check(KERNELS, figures, {"encode7_gb_per_s": POSITIVE, "decode7_gb_per_s": POSITIVE},
              "figures:")  # fmt: skip
    return Speeds(1e9 * figures.get("encode7_gb_per_s", 0.0),
                  1e9 * figures.get("decode7_gb_per_s", 0.0))  # fmt: skip


def layout_of(figures: Mapping[str, Any]) -> Layout:
    """As it was measured. The rates of links are their shares of 1 Mbps."""
    sites = tuple(figures["sites"])
    links = tuple((a, b) for a, b in figures["links"])
    core = len(sites) in {place for link in links for place in link}
    rate = CHAIN_RATES.get(figures["rate"], 0.0)  # Older files have no "link_mbps".
    given = figures.get("link_mbps", [(rate, rate)] * len(links))
    rates = tuple((there, back) for there, back in given)
    return Layout(sites, links, (1,) * len(sites), core, rates)


def predict(figures: Mapping[str, Any], row: str, speeds: Speeds) -> float:
    """Seconds of a step without compute, for a row of `bench.exchange`."""
    layout, ours = layout_of(figures), OURS[row]
    kept = round(figures["elements"] * ours.keep)
    cost = Cost("tree", keep=ours.keep, levels=ours.levels)
    pipes = Pipes(layout, 1.0, [1] * len(layout.sites))
    coding = coding_of(cost, layout.slowest(1.0), speeds)
    return simulator.simulate(pipes, [Bucket(kept)], coding).seconds


def links_hold(row: Mapping[str, Any], figures: Mapping[str, Any]) -> bool:
    """Whether a step waited for links, not for processors."""
    return bool(row["cpu_seconds"] <= MOST_BUSY * figures["processors"] * row["seconds"])


def coding_of(cost: Cost, rate_mbps: float, speeds: Speeds) -> Coding:
    bits = cost.element_bits(rate_mbps)
    return Coding(bits, speeds.encode, speeds.decode) if cost.levels else Coding(bits)


# --- At scale ----------------------------------------------------------------------------

RATE_MBPS = 100.0
# Sites and workers of each; agents have at most 16 trainers each.
WORLDS = ((3, 4), (4, 4), (4, 8), (8, 8), (16, 16), (32, 32))
SHAPES = ("chain", "star")
ROWS = ("ddp", "hier_fp32", "hier_bf16", "exact-0.5", "levels7-0.5")
NETWORK = "resnet18"
BUCKET_BYTES = 25 * 2**20  # Of gradients, torch's and ours.
# Where many sites take turns as roots, for speed: so many exact frames travel as one, and what
# ends within so much of the step ends at once.
MANY_SITES, MERGED, TOGETHER = 8, 4, 1 / 2000


def world(shape: str, sites: int, workers: int) -> Topology:
    agents = (-(-workers // 16),) * sites
    per_site = (workers,) * sites
    words = f"{shape} of {sites} sites of {workers}"
    if shape == "star":
        return Topology(shape, words, Layout(per_site, star_links(sites), agents, core=True))
    links = tuple((site, site + 1) for site in range(sites - 1))
    return Topology(shape, words, Layout(per_site, links, agents))


def released(network: Network, keep: float) -> list[Bucket]:
    """Equal buckets, one after the other through backward."""
    count = -(-4 * network.elements // BUCKET_BYTES)
    compute = network.compute_seconds
    forward = FORWARD_SHARE * compute
    kept = round(keep * network.elements)
    sizes = [kept // count + (number < kept % count) for number in range(count)]
    return [Bucket(size, forward + (number + 1) / count * (compute - forward))
            for number, size in enumerate(sizes)]  # fmt: skip


def simulated_seconds(row: str, network: Network, topology: Topology, speeds: Speeds) -> float:
    cost, layout = COSTS[row], topology.layout
    pipes = Pipes(layout, RATE_MBPS, layout.hosts)
    buckets = released(network, cost.keep)
    if cost.how == "ring":
        last = buckets[0].released + simulator.ring_seconds(
            pipes, layout.ranks_per_host, 4.0 * network.elements
        )
    else:
        coding = coding_of(cost, RATE_MBPS, speeds)
        if layout.core and len(layout.sites) > MANY_SITES:
            bound = bound_seconds(link_bytes(cost, network, topology, RATE_MBPS), RATE_MBPS)
            coding = replace(
                coding, merged=1 if cost.levels else MERGED, tolerance=TOGETHER * bound
            )
        last = simulator.simulate(pipes, buckets, coding).seconds
    return max(last, network.compute_seconds)


def scale(speeds: Speeds) -> list[dict[str, Any]]:
    network, found = NETWORKS[NETWORK], []
    for shape in SHAPES:
        for sites, workers in WORLDS:
            topology = world(shape, sites, workers)
            for row in ROWS:
                started = time.process_time()
                formula = step_time(row, network, topology, RATE_MBPS, speeds.encode / 1e9)
                seconds = simulated_seconds(row, network, topology, speeds)
                sent = link_bytes(COSTS[row], network, topology, RATE_MBPS)
                found.append({
                    "shape": shape, "sites": sites, "workers": sites * workers, "row": row,
                    "bytes_per_element": sent / network.elements, "formula": formula.seconds,
                    "simulated": seconds,
                    "cpu_seconds": round(time.process_time() - started, 2),
                })  # fmt: skip
                print(f"{topology.title}, {row}: {formula.seconds:.3f} s by formula, "
                      f"{seconds:.3f} s simulated", flush=True)  # fmt: skip
    return found


def read_scale() -> list[dict[str, Any]]:
    if not SCALE.exists():
        return []
    found = read_json(SCALE)
    rows = found.get("rows") if isinstance(found, dict) else found
    return check_each(SCALE, rows, SIMULATED, "rows")


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="bench.evidence.scale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--only", default=",".join(TESTS))
    options = parser.parse_args(argv)
    try:
        names = chosen("only", options.only, TESTS)
    except ValueError as error:
        print(f"report-scale: {error}", file=sys.stderr)
        return 2
    if options.measure:
        for name in names:
            path = TESTBED / f"{name}.json"
            if not path.exists() and (status := measure(name)) != 0:
                return status
        return 0
    rows = scale(read_speeds())
    SCALE.write_text(json.dumps({"network": NETWORK, "rate_mbps": RATE_MBPS, "rows": rows},
                                indent=1) + "\n")  # fmt: skip
    print(f"written: {SCALE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
