"""make demo: three sites in a chain of two 100 Mbps links, plain DDP against PacTrain.

Trains one pre-trained and pruned network for the same number of steps twice and writes
out/demo/summary.json and plot.png. KEEP=1 leaves coordinator, agents and links up until
Ctrl-C; CHECK=1 makes a missed goal a failure, as `make nightly` does. Whatever ends it, no
process, namespace or temporary file stays.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from bench import demo_report
from bench.cluster import Cluster, risk, start_cluster
from bench.demo_report import Outcome
from bench.launch import difference, events, start_trainers
from bench.processes import Children, ProcessError, interrupt_on_signals
from bench.progress import Progress
from bench.testbed import Link, LoopbackTestbed, NamespaceTestbed, why_no_namespaces

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "out" / "demo"
RATE_MBPS = 100
SITES = {"a": 1, "b": 1, "c": 1}
LINKS = [Link("a", "b", RATE_MBPS), Link("b", "c", RATE_MBPS)]
TRAINERS_PER_HOST = 2
WORLD = len(SITES) * TRAINERS_PER_HOST
STEPS = 100
COMPUTE_STEPS = 20


class Demo:
    """The runs on one testbed; `folder` is temporary."""

    def __init__(self, bed: LoopbackTestbed, folder: Path, checkpoint: str, steps: int) -> None:
        self.bed = bed
        self.folder = folder
        self.checkpoint = checkpoint
        self.steps = steps

    def run(self, kind: str, title: str, steps: int, cluster: Cluster | None = None) -> Outcome:
        """Trains once with six trainers; ProcessError if one of them fails or hangs."""
        outcome = Outcome()
        progress = Progress(title, steps, [f"{k.a}-{k.b}" for k in self.bed.links])
        argv = ["-m", "bench.demo_train", "--run", kind, "--checkpoint", self.checkpoint,
                "--steps", str(steps)]  # fmt: skip
        if kind == "ddp" and not self.bed.shaped:
            argv += ["--pace-mbps", str(RATE_MBPS)]
        with Children(self.folder) as trainers:
            per_host = [TRAINERS_PER_HOST] * len(self.bed.hosts)
            first = start_trainers(self.bed, trainers, kind, argv, per_host, cluster)
            before = None
            for event in events(first, trainers):
                moved = self.bed.link_bytes()
                if event["event"] == "start":
                    before = moved
                if event["event"] == "done":
                    outcome.link_bytes = difference(before, moved) or computed_bytes(
                        kind, outcome.parameters * steps, event["agent_bytes"]
                    )
                outcome.add(event)
                if cluster is not None and event["event"] == "accuracy":
                    measured = risk(self.bed, self.bed.hosts[1], cluster)
                    outcome.risk = outcome.risk if measured is None else measured
                progress.show(event, moved)
            trainers.wait(30)
        progress.end()
        return outcome


def computed_bytes(kind: str, elements: int, agent_bytes: list[list[int]]) -> list[tuple[int, int]]:
    """Bytes per link and direction where no interface counts them.

    For PacTrain what the agents of the outer sites say they sent and received; for plain
    DDP what a ring needs: 2 (N - 1) / N times 4 bytes.
    """
    if kind == "ddp":
        ring = int(elements * 4 * 2 * (WORLD - 1) / WORLD)
        return [(ring, ring), (ring, ring)]
    first, last = agent_bytes[0], agent_bytes[-1]
    return [(first[0], first[1]), (last[1], last[0])]


def pretrain() -> str:
    """The path of the pre-trained weights; trains them if they are not there yet."""
    # Passive: on a busy machine threads that spin at every barrier cost most of the time.
    with tempfile.TemporaryDirectory(prefix="pactrain-") as logs, Children(Path(logs)) as children:
        child = children.start("pretrain", [sys.executable, "-m", "bench.pretrain"],
                               {"OMP_WAIT_POLICY": "PASSIVE"})  # fmt: skip
        path = ""
        while child.process.poll() is None or path == "":
            line = child.line(1.0)
            if line is None:
                if child.process.poll() is not None:
                    break
                continue
            path = line if line.endswith(".pt") else ""
            if not path:
                print(line, flush=True)
        children.wait(5)
        return path


def run_demo(steps: int, keep: bool, check: bool, loopback: bool) -> int:
    why = "--loopback was given" if loopback else why_no_namespaces()
    if why is None:
        print(f"network: namespaces, two links of {RATE_MBPS} Mbps (tbf) between sites a - b - c")
    else:
        print(
            f"network: loopback without namespaces ({why}); agents limit their "
            f"egress to {RATE_MBPS} Mbps and plain DDP is paced to the same"
        )
    data_name, data_title = demo_report.data_in_use()
    print(f"data: {data_title}", flush=True)
    checkpoint = pretrain()
    OUT.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="pactrain-demo-") as name,
        (NamespaceTestbed if why is None else LoopbackTestbed)(SITES, LINKS) as bed,
        Children(Path(name)) as daemons,
    ):
        folder = Path(name)
        demo = Demo(bed, folder, checkpoint, steps)
        try:
            compute = demo.run("compute", "compute only", min(COMPUTE_STEPS, steps))
            demo_report.print_model(compute)
            ddp = demo.run("ddp", "plain DDP", steps)
            cluster = start_cluster(bed, daemons, folder, bed.hosts[1], page=True)
            door = open_door(bed, daemons, cluster)
            print(f"page: http://{door}/", flush=True)
            ours = demo.run("pactrain", "PacTrain", steps, cluster)
        except ProcessError:
            keep_logs(folder)
            raise
        met = demo_report.finish(OUT, data_name, bed.shaped, compute, ddp, ours, steps)
        if keep:
            wait_for_interrupt(cluster, bed, door)
    if check and not met:
        print("\ndemo failed: CHECK=1 and a goal is not met", file=sys.stderr, flush=True)
        return 1
    return 0


def keep_logs(folder: Path) -> None:
    logs = OUT / "failed-logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    for log in folder.glob("*.log"):
        shutil.copy(log, logs)
    print(f"\nlogs of the failed run: {logs}", flush=True)


def open_door(bed: LoopbackTestbed, daemons: Children, cluster: Cluster) -> str:
    """The page's address on this machine's own loopback, also where its host is a namespace."""
    assert cluster.page is not None
    host = bed.hosts[1]
    if host.namespace is None:
        return cluster.page
    argv = [sys.executable, "-m", "bench.page_door", host.namespace, cluster.page]
    door = daemons.start("page-door", argv, {})
    return door.wait_for("door ", 10).removeprefix("door ")


def wait_for_interrupt(cluster: Cluster, bed: LoopbackTestbed, door: str) -> None:
    print("\nKEEP=1: still running until Ctrl-C")
    print(f"  page http://{door}/")
    print(f"  coordinator {cluster.coordinator}, metrics http://{cluster.metrics}/metrics")
    for agent in cluster.agents:
        enter = f" (ip netns exec {agent.host.namespace} ...)" if agent.host.namespace else ""
        print(f"  agent {agent.host.name}{enter}: socket {agent.socket}, "
              f"metrics http://{agent.metrics}/metrics")  # fmt: skip
    sys.stdout.flush()
    while True:  # Not pause(), which would miss a signal that comes just before it.
        time.sleep(1)


def main(argv: list[str], env: Mapping[str, str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.demo", description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--loopback", action="store_true", help="no network namespaces")
    options = parser.parse_args(argv)
    interrupt_on_signals()
    os.chdir(ROOT)
    try:
        return run_demo(
            options.steps, env.get("KEEP") == "1", env.get("CHECK") == "1", options.loopback
        )
    except KeyboardInterrupt:
        print("\nstopped; everything that was started is gone", flush=True)
        return 130
    except (ProcessError, OSError, subprocess.SubprocessError) as error:
        print(f"\ndemo failed: {error}", file=sys.stderr, flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
