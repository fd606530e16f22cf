"""make bench-tls: what TLS adds to a step that is all exchange, at 1 Gbps.

Two sites of one trainer each, no compute, FULL fp32. One pair of agents speaks plain
text, one TLS; the same two processes train by one and the other in turn, so that both
meet the same machine. Prints a table and, as its last line, the figures as JSON; keeps
them in out/bench-tls.json. Needs root for network namespaces. Exit status 1 over the goal.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from bench.cluster import ROOT, Cluster, certificates, start_cluster
from bench.launch import events
from bench.processes import Child, Children, ProcessError, interrupt_on_signals
from bench.spread import spread
from bench.testbed import Link, LoopbackTestbed, NamespaceTestbed, why_no_namespaces

RATE_MBPS = 1000
GOAL = 0.05
KINDS = ("plain", "tls")
SITES = "a:1,b:1"


def start_clusters(bed: LoopbackTestbed, folder: Path, stack: ExitStack) -> dict[str, Cluster]:
    certificates(bed, folder / "pki")
    clusters = {}
    for number, kind in enumerate(KINDS):
        own = folder / kind
        own.mkdir()
        children = stack.enter_context(Children(own))
        pki = folder / "pki" if kind == "tls" else None
        clusters[kind] = start_cluster(bed, children, own, bed.hosts[0], risk="exact", pki=pki,
                                       first_port=7440 + 20 * number)  # fmt: skip
    return clusters


def start_trainers(
    bed: LoopbackTestbed, children: Children, clusters: dict[str, Cluster], argv: list[str]
) -> Child:
    """One at each site, without a process group; returns the first."""
    started = []
    for number, host in enumerate(bed.hosts):
        agents = [f"--agent={kind}={clusters[kind].agents[number].trainer_env['PACTRAIN_AGENT']}"
                  for kind in KINDS]  # fmt: skip
        env = {"PACTRAIN_JOB_ID": "tls", "PACTRAIN_SITE": host.site, "PACTRAIN_SITES": SITES,
               "OMP_NUM_THREADS": "1"}  # fmt: skip
        command = bed.command(host, [sys.executable, *argv, *agents])
        started.append(children.start(f"trainer-{host.name}", command, env))
    return started[0]


def measure(elements: int, rounds: int, steps: int) -> dict[str, list[float]]:
    """Seconds per step of each round, by kind."""
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with (
        tempfile.TemporaryDirectory(prefix="pactrain-tls-") as name,
        NamespaceTestbed({"a": 1, "b": 1}, [Link("a", "b", RATE_MBPS)]) as bed,
        ExitStack() as stack,
    ):
        clusters = start_clusters(bed, Path(name), stack)
        children = stack.enter_context(Children(Path(name)))
        argv = ["-m", "bench.tls_train", f"--elements={elements}", f"--rounds={rounds}",
                f"--steps={steps}"]  # fmt: skip
        first = start_trainers(bed, children, clusters, argv)
        for event in events(first, children):
            if event["round"] > 0:
                seconds[event["kind"]].append(event["seconds"])
        children.wait(30)
    return seconds


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.tls", description=__doc__)
    parser.add_argument("--elements", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args(argv)
    interrupt_on_signals()
    why = why_no_namespaces()
    if why is not None:
        print(f"bench-tls needs shaped network namespaces: {why}", file=sys.stderr)
        return 1
    try:
        seconds = measure(options.elements, options.rounds, options.steps)
    except ProcessError as error:
        print(f"bench-tls failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench-tls: interrupted", file=sys.stderr)
        return 130
    print(f"FULL fp32, {options.elements:,} elements, two sites, 1 Gbps, all on this machine; "
          f"seconds per step, in turn\n")  # fmt: skip
    print(f"  {'round':<8}{'plain':>9}{'TLS':>9}{'TLS adds':>11}")
    for number, (plain, tls) in enumerate(zip(*seconds.values(), strict=True), 1):
        print(f"  {number:<8}{plain:>9.4f}{tls:>9.4f}{tls / plain - 1:>11.1%}")
    plain, tls = (median(seconds[kind]) for kind in KINDS)
    cost = tls / plain - 1
    print(f"  {'median':<8}{plain:>9.4f}{tls:>9.4f}{cost:>11.1%}   (goal: at most {GOAL:.0%})\n")
    result = {
        "rate": RATE_MBPS,
        "elements": options.elements,
        "plain_seconds": plain,
        "tls_seconds": tls,
        "tls_cost": cost,
        "goal": GOAL,
        "met": cost <= GOAL,
        "rounds": seconds,
        "spread": {
            **{kind: spread(seconds[kind]) for kind in KINDS},
            "cost": spread([b / a - 1 for a, b in zip(*seconds.values(), strict=True)]),
        },
    }
    (ROOT / "out").mkdir(exist_ok=True)
    (ROOT / "out" / "bench-tls.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 0 if result["met"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
