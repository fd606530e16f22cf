"""A coordinator and one agent per host of a testbed, from out/bin."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.processes import Children
from bench.testbed import Host, LoopbackTestbed, run

ROOT = Path(__file__).resolve().parent.parent
BIN = ROOT / "out" / "bin"
READY_SECONDS = 30.0


@dataclass(frozen=True)
class Agent:
    host: Host
    socket: Path
    metrics: str  # "address:port".
    pid: int

    @property
    def trainer_env(self) -> dict[str, str]:
        """What a trainer on this host needs to find its agent."""
        return {"PACTRAIN_AGENT": f"unix:{self.socket}"}


@dataclass(frozen=True)
class Cluster:
    coordinator: str  # "address:port" of its gRPC service.
    metrics: str
    agents: tuple[Agent, ...]
    page: str | None = None  # The coordinator's, on loopback of its host.


# Prints the value of the first series of a metric, or nothing.
READ_METRIC = """
import re, sys, urllib.request
text = urllib.request.urlopen(sys.argv[1], timeout=5).read().decode()
lines = [l for l in text.splitlines() if re.split("[ {]", l)[0] == sys.argv[2]]
print(*(l.split()[-1] for l in lines))
"""


def read_metric(bed: LoopbackTestbed, host: Host, address: str, name: str) -> float | None:
    """The first series of a metric of a daemon on `host`; None: there is none."""
    return next(iter(read_metrics(bed, host, address, name)), None)


def read_metrics(bed: LoopbackTestbed, host: Host, address: str, name: str) -> list[float]:
    """All series of it; none: the daemon cannot be asked, or has not got it."""
    argv = [sys.executable, "-c", READ_METRIC, f"http://{address}/metrics", name]
    done = subprocess.run(bed.command(host, argv), capture_output=True, text=True, timeout=30)
    return [float(value) for value in done.stdout.split()] if done.returncode == 0 else []


def risk(bed: LoopbackTestbed, coordinator_host: Host, cluster: Cluster) -> float | None:
    """r of the decision in force, as the coordinator's metrics have it; None: not known."""
    return read_metric(bed, coordinator_host, cluster.metrics, "pactrain_coordinator_risk")


def free_port(address: str) -> int:
    """A port that was free a moment ago (loopback only: namespaces are ours alone)."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port = probe.getsockname()[1]
        assert isinstance(port, int)
        return port


def certificates(bed: LoopbackTestbed, pki: Path) -> None:
    """Makes a CA in `pki`, and what start_cluster() and pin() need of it."""
    agents = [word for host in bed.hosts for word in ("--agent", host.name)]
    run(str(ROOT / "tools" / "certs"), str(pki), "--coordinator", "--operator", *agents)


def pin(
    bed: LoopbackTestbed,
    host: Host,
    cluster: Cluster,
    pki: Path | None,
    job: str,
    *what: str,
    verb: str = "pin",
) -> None:
    """An operator's word, given on `host`, on what travels; TestbedError if it is refused.

    `pki`: as of start_cluster().
    """
    argv = [str(BIN / "pactrain-admin"), verb, job, *what, f"--coordinator={cluster.coordinator}"]
    if pki is not None:
        argv += [f"--tls-cert={pki / 'operator.pem'}", f"--tls-key={pki / 'operator.key'}",
                 f"--tls-ca={pki / 'ca.pem'}"]  # fmt: skip
    run(*bed.command(host, argv))


def start_cluster(
    bed: LoopbackTestbed,
    children: Children,
    folder: Path,
    coordinator_host: Host,
    agent_flags: Sequence[str] = (),
    risk: str = "balanced",
    pki: Path | None = None,
    first_port: int = 7440,
    metrics_token: Path | None = None,
    relayed: Callable[[str, str], str] | None = None,
    page: bool = False,
    coordinator_flags: Sequence[str] = (),
) -> Cluster:
    """Starts all daemons and returns when all are listening.

    Without shaped links every agent limits what it sends to each other site. `pki` is
    what certificates() made: with it all speak TLS, and with `metrics_token` /metrics and
    the page do, too. `relayed`: of a host's name and address, where the others reach it.
    Clusters side by side on one bed need `first_port`s that are 20 apart, and folders of
    their own.
    """

    def security(name: str) -> list[str]:
        if pki is None:
            return ["--insecure-network"] if bed.shaped else ["--insecure-local"]
        return [f"--tls-cert={pki / name}.pem", f"--tls-key={pki / name}.key",
                f"--tls-ca={pki / 'ca.pem'}"]  # fmt: skip

    reading = [f"--metrics-token-file={metrics_token}"] if metrics_token else []
    # The planner hears of no core without agents.
    with_agents = {host.site for host in bed.hosts}
    links = ",".join(f"{k.a}-{k.b}" for k in bed.links if {k.a, k.b} <= with_agents)
    address = coordinator_host.address
    coordinator = f"{address}:{port_on(bed, address, first_port)}"
    # Loopback: without a token /metrics has no TLS.
    metrics = f"127.0.0.1:{port_on(bed, '127.0.0.1', first_port + 1)}"
    argv = [str(BIN / "pactrain-coordinator"), f"--listen={coordinator}",
            f"--listen-metrics={metrics}", f"--state-dir={folder / 'state'}",
            "--cluster=bench", f"--risk={risk}",
            *([f"--links={links}"] if links else []), *security("coordinator"),
            *([f"--policy-file={pki / 'policy.yaml'}"] if pki else []),
            *reading, *coordinator_flags]  # fmt: skip
    page_address = None
    if page:
        page_address = f"127.0.0.1:{port_on(bed, '127.0.0.1', first_port + 2)}"
        argv.append(f"--listen-page={page_address}")
        argv += [f"--page-token-file={metrics_token}"] if metrics_token else []
    child = children.start("coordinator", bed.command(coordinator_host, argv), {})
    child.wait_for("listening", READY_SECONDS)
    limit = []
    if not bed.shaped and bed.links:
        limit = [f"--egress-limit=*={min(k.rate_mbps for k in bed.links):g}mbit"]
    agents = []
    for host in bed.hosts:
        path = folder / f"{host.name}.sock"
        own_metrics = f"127.0.0.1:{port_on(bed, '127.0.0.1', first_port + 11)}"
        listen = f"{host.address}:{port_on(bed, host.address, first_port + 10)}"
        told = [f"--advertise-address={relayed(host.name, listen)}"] if relayed else []
        argv = [str(BIN / "pactrain-agent"), f"--name={host.name}", f"--site={host.site}",
                f"--coordinator={coordinator}", f"--socket=unix:{path}",
                f"--listen={listen}", *told, *reading,
                f"--listen-metrics={own_metrics}", *limit, *security(f"agent-{host.name}"),
                *agent_flags]  # fmt: skip
        child = children.start(f"agent-{host.name}", bed.command(host, argv), {})
        child.wait_for("listening", READY_SECONDS)
        agents.append(Agent(host, path, own_metrics, child.process.pid))
    return Cluster(coordinator, metrics, tuple(agents), page_address)


def port_on(bed: LoopbackTestbed, address: str, preferred: int) -> int:
    return preferred if bed.shaped else free_port(address)
