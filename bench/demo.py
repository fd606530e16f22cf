"""make demo: three sites in a chain of two 100 Mbps links, plain DDP against PacTrain.

Trains one pre-trained and pruned network for the same number of steps twice and writes
out/demo/summary.json and plot.png. KEEP=1 leaves coordinator, agents and links up until
Ctrl-C. Whatever ends it, no process, namespace or temporary file stays.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from bench import demo_report
from bench.cluster import Cluster, free_port, start_cluster
from bench.demo_report import Outcome
from bench.processes import Child, Children, ProcessError
from bench.progress import Progress
from bench.testbed import Link, LoopbackTestbed, open_testbed, why_no_namespaces

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "out" / "demo"
RATE_MBPS = 100
SITES = {"a": 1, "b": 1, "c": 1}
LINKS = [Link("a", "b", RATE_MBPS), Link("b", "c", RATE_MBPS)]
TRAINERS_PER_HOST = 2
WORLD = len(SITES) * TRAINERS_PER_HOST
STEPS = 120
COMPUTE_STEPS = 20
SILENT_SECONDS = 120.0  # A run that prints nothing for so long has failed.


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
        with Children(self.folder) as trainers:
            first = self._start_trainers(trainers, kind, steps, cluster)
            silent_since = time.monotonic()
            before = None
            while True:
                line = first.line(0.5)
                if line is None:
                    trainers.check()
                    if first.process.poll() is not None:
                        break
                    if time.monotonic() - silent_since > SILENT_SECONDS:
                        raise first.error(f"was silent for {SILENT_SECONDS:.0f} s")
                    continue
                silent_since = time.monotonic()
                event = json.loads(line)
                if event["event"] == "start":
                    before = self.bed.link_bytes()
                if event["event"] == "done":
                    outcome.link_bytes = difference(before, self.bed.link_bytes())
                outcome.add(event)
                progress.show(event, self.bed.link_bytes())
            trainers.wait(30)
        progress.end()
        return outcome

    def _start_trainers(
        self, trainers: Children, kind: str, steps: int, cluster: Cluster | None
    ) -> Child:
        address = self.bed.hosts[0].address
        port = 29500 if self.bed.shaped else free_port(address)
        started = []
        for rank in range(WORLD):
            host = self.bed.hosts[rank // TRAINERS_PER_HOST]
            env = {
                "RANK": str(rank), "LOCAL_RANK": str(rank % TRAINERS_PER_HOST),
                "WORLD_SIZE": str(WORLD), "LOCAL_WORLD_SIZE": str(TRAINERS_PER_HOST),
                "MASTER_ADDR": address, "MASTER_PORT": str(port),
                "GLOO_SOCKET_IFNAME": host.interface, "OMP_NUM_THREADS": "1",
                "PACTRAIN_JOB_ID": "demo",
            }  # fmt: skip
            if cluster is not None:
                env |= cluster.agents[rank // TRAINERS_PER_HOST].trainer_env
            argv = [sys.executable, "-m", "bench.demo_train", "--run", kind,
                    "--checkpoint", self.checkpoint, "--steps", str(steps)]  # fmt: skip
            if kind == "ddp" and not self.bed.shaped:
                argv += ["--pace-mbps", str(RATE_MBPS)]
            name = f"{kind}-trainer-{rank}"
            started.append(trainers.start(name, self.bed.command(host, argv), env))
        return started[0]


def difference(
    before: list[tuple[int, int]] | None, after: list[tuple[int, int]] | None
) -> list[tuple[int, int]] | None:
    if before is None or after is None:
        return None
    return [(c - a, d - b) for (a, b), (c, d) in zip(before, after, strict=True)]


def pretrain() -> str:
    """The path of the pre-trained weights; trains them if they are not there yet."""
    with tempfile.TemporaryDirectory(prefix="pactrain-") as logs, Children(Path(logs)) as children:
        child = children.start("pretrain", [sys.executable, "-m", "bench.pretrain"], {})
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


def run_demo(steps: int, keep: bool) -> int:
    why = why_no_namespaces()
    if why is None:
        print(f"network: namespaces, two links of {RATE_MBPS} Mbps (tbf) between sites a - b - c")
    else:
        print(
            f"network: loopback, since namespaces cannot be made ({why}); agents limit their "
            f"egress to {RATE_MBPS} Mbps and plain DDP is paced to the same"
        )
    data_name, data_title = demo_report.data_in_use()
    print(f"data: {data_title}", flush=True)
    checkpoint = pretrain()
    OUT.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="pactrain-demo-") as name,
        open_testbed(SITES, LINKS) as bed,
        Children(Path(name)) as daemons,
    ):
        folder = Path(name)
        demo = Demo(bed, folder, checkpoint, steps)
        try:
            compute = demo.run("compute", "compute only", min(COMPUTE_STEPS, steps))
            demo_report.print_network(compute, steps)
            ddp = demo.run("ddp", "plain DDP", steps)
            cluster = start_cluster(bed, daemons, folder, bed.hosts[1])
            ours = demo.run("pactrain", "PacTrain", steps, cluster)
        except ProcessError:
            keep_logs(folder)
            raise
        demo_report.finish(OUT, data_name, bed.shaped, compute, ddp, ours, steps)
        if keep:
            wait_for_interrupt(cluster, bed)
    return 0


def keep_logs(folder: Path) -> None:
    logs = OUT / "failed-logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    for log in folder.glob("*.log"):
        shutil.copy(log, logs)
    print(f"\nlogs of the failed run: {logs}", flush=True)


def wait_for_interrupt(cluster: Cluster, bed: LoopbackTestbed) -> None:
    print("\nKEEP=1: still running until Ctrl-C")
    print(f"  coordinator {cluster.coordinator}, metrics http://{cluster.metrics}/metrics")
    for agent in cluster.agents:
        enter = f" (ip netns exec {agent.host.namespace} ...)" if agent.host.namespace else ""
        print(f"  agent {agent.host.name}{enter}: socket {agent.socket}, "
              f"metrics http://{agent.metrics}/metrics")  # fmt: skip
    sys.stdout.flush()
    signal.pause()


def interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(argv: list[str], env: Mapping[str, str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.demo", description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args(argv)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    os.chdir(ROOT)
    try:
        return run_demo(options.steps, env.get("KEEP") == "1")
    except KeyboardInterrupt:
        print("\nstopped; everything that was started is gone", flush=True)
        return 130
    except (ProcessError, OSError, subprocess.SubprocessError) as error:
        print(f"\ndemo failed: {error}", file=sys.stderr, flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
