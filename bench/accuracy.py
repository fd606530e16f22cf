"""make bench-accuracy: is what two sites train as good as what one world trains?

The demo's network, pre-trained and pruned by 70 %, is trained on with each seed's order of
the images: by four ranks of plain DDP over Gloo, without any slow link, and by two launches
of two ranks at two sites, with a link of 50 Mbps and TLS between them, once with --risk=exact
and once with the default, which may send few levels. Prints a table and, as its last line,
the figures as JSON; keeps them in out/bench-accuracy.json. Needs root for network namespaces.
Exit status 1 if a row's mean accuracy is further below plain DDP's than the demo allows.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import mean
from typing import Any

from bench import data
from bench.cluster import ROOT, Cluster, certificates, start_cluster
from bench.demo import pretrain
from bench.demo_report import GOAL_ACCURACY
from bench.launch import events, start_trainers
from bench.processes import Child, Children, ProcessError
from bench.testbed import Link, LoopbackTestbed, NamespaceTestbed, why_no_namespaces

RATE_MBPS = 50
LOCAL = 2  # Trainers of a site.
SITES = f"a:{LOCAL},b:{LOCAL}"
PLAIN = "one world, DDP over Gloo"
RISKS = {"two sites, exact": "exact", "two sites, balanced": "balanced"}

Results = dict[str, list[dict[str, Any]]]  # By row: a `done` of each seed.


def start_clusters(bed: LoopbackTestbed, folder: Path, stack: ExitStack) -> dict[str, Cluster]:
    """One of each risk, side by side, by row."""
    certificates(bed, folder / "pki")
    clusters = {}
    for number, (row, risk) in enumerate(RISKS.items()):
        own = folder / risk
        own.mkdir()
        clusters[row] = start_cluster(
            bed,
            stack.enter_context(Children(own)),
            own,
            bed.hosts[0],
            risk=risk,
            pki=folder / "pki",
            first_port=7440 + 20 * number,
        )
    return clusters


def start_sites(
    bed: LoopbackTestbed, children: Children, job: str, argv: Sequence[str], cluster: Cluster
) -> Child:
    """A launch at each site, as its torchrun would; returns rank 0's process."""
    started = []
    for host, agent in zip(bed.hosts, cluster.agents, strict=True):
        for local in range(LOCAL):
            env = {
                "RANK": str(local),
                "LOCAL_RANK": str(local),
                "WORLD_SIZE": str(LOCAL),
                "LOCAL_WORLD_SIZE": str(LOCAL),
                "OMP_NUM_THREADS": "1",
                "PACTRAIN_JOB_ID": job,
                "PACTRAIN_SITE": host.site,
                "PACTRAIN_SITES": SITES,
                **agent.trainer_env,
            }
            command = bed.command(host, [sys.executable, *argv])
            started.append(children.start(f"{job}-{host.name}-{local}", command, env))
    return started[0]


def train(
    bed: LoopbackTestbed, folder: Path, argv: list[str], job: str, cluster: Cluster | None
) -> dict[str, Any]:
    """What rank 0 printed last; ProcessError if a trainer fails or hangs."""
    with Children(folder) as children:
        if cluster is None:
            argv = [*argv, "--run=ddp"]
            first = start_trainers(bed, children, job, argv, [2 * LOCAL, 0], None)
        else:
            first = start_sites(bed, children, job, [*argv, "--run=sites"], cluster)
        last = None
        for event in events(first, children):
            last = event
        children.wait(60)
    if last is None or last["event"] != "done":
        raise first.error("ended without a result")
    return last


def measure(checkpoint: str, steps: int, seeds: Sequence[int]) -> Results:
    results: Results = {row: [] for row in (PLAIN, *RISKS)}
    with (
        tempfile.TemporaryDirectory(prefix="pactrain-accuracy-") as name,
        NamespaceTestbed({"a": 1, "b": 1}, [Link("a", "b", RATE_MBPS)]) as bed,
        ExitStack() as stack,
    ):
        clusters = start_clusters(bed, Path(name), stack)
        for seed in seeds:
            argv = ["-m", "bench.accuracy_train", f"--checkpoint={checkpoint}",
                    f"--steps={steps}", f"--seed={seed}"]  # fmt: skip
            for row, done in results.items():
                cluster = clusters.get(row)
                job = f"{RISKS.get(row, 'plain')}-{seed}"
                done.append(train(bed, Path(name), argv, job, cluster))
                print(f"seed {seed}, {row}: accuracy {done[-1]['accuracy']:.4f}, "
                      f"{done[-1]['seconds']:.0f} s", flush=True)  # fmt: skip
    return results


def summary(results: Results) -> dict[str, dict[str, Any]]:
    """By row: accuracy of each seed, its mean, how far that is below plain DDP's, and costs."""
    plain = mean(done["accuracy"] for done in results[PLAIN])
    rows = {}
    for row, dones in results.items():
        accuracies = [done["accuracy"] for done in dones]
        rows[row] = {
            "accuracies": accuracies,
            "mean": mean(accuracies),
            "below": plain - mean(accuracies),
            "mode": dones[-1]["mode"],
            "seconds": mean(done["seconds"] for done in dones),
            "sent_bytes": mean(done["sent_bytes"] for done in dones),
        }
    return rows


def table(rows: Mapping[str, Mapping[str, Any]], seeds: Sequence[int]) -> str:
    names = "".join(f"{f'seed {seed}':>9}" for seed in seeds)
    lines = [f"  {'':<26}{names}{'mean':>9}{'below':>9}{'MB sent':>9}  last mode"]
    for row, figures in rows.items():
        shares = "".join(f"{share:>9.4f}" for share in figures["accuracies"])
        lines.append(f"  {row:<26}{shares}{figures['mean']:>9.4f}{figures['below']:>9.4f}"
                     f"{figures['sent_bytes'] / 1e6:>9.1f}  {figures['mode']}")  # fmt: skip
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.accuracy", description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(argv)
    why = why_no_namespaces()
    if why is not None:
        print(f"bench-accuracy needs shaped network namespaces: {why}", file=sys.stderr)
        return 1
    images = data.load()
    seeds = range(1, options.seeds + 1)
    try:
        results = measure(pretrain(), options.steps, seeds)
    except ProcessError as error:
        print(f"bench-accuracy failed: {error}", file=sys.stderr)
        return 1
    rows = summary(results)
    print(f"\n{images.title}, {options.steps} steps of four ranks; accuracy over "
          f"{len(images.test.labels):,} images; two sites: {RATE_MBPS} Mbps, TLS\n")  # fmt: skip
    print(table(rows, seeds), "\n")
    met = all(row["below"] <= GOAL_ACCURACY for row in rows.values())
    result = {
        "data": images.name,
        "steps": options.steps,
        "rate": RATE_MBPS,
        "rows": rows,
        "goal": GOAL_ACCURACY,
        "met": met,
    }
    (ROOT / "out").mkdir(exist_ok=True)
    (ROOT / "out" / "bench-accuracy.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
