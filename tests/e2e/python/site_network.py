"""Sites in network namespaces: slow links between them, firewalls, certificates.

    with SiteNetwork(folder, ["a", "b"]) as network:
        sites = [network.start_site(name) for name in network.names]
        launches = [site.torchrun(log, job, "a:2,b:2", SCRIPT) for site in sites]

Every site has one machine, with an agent; the first site's has the coordinator, too. Out
of a site and into it only the ports of agents and coordinator are open: nftables drops
and counts everything else. Another machine hangs on the last site's switch, a stranger's:
it has no firewall of its own and no certificate of the CA. A site may be started at any
time, while others train.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from daemons import BIN, Daemon, certificates, tls_flags
from patience import PATIENCE, PATIENCE_SECONDS
from test_torchrun import Torchrun

from bench.closing import Closing
from bench.testbed import (
    Host,
    Link,
    NamespaceTestbed,
    run,
)

RATE_MBPS = 50
GRPC_PORT = 7070
DATA_PORT = 7072
PER_SOURCE = 30  # Connections of one address that a daemon takes.
DROPPED = ("dropped_in", "dropped_out")
# Stateful, so that nobody gets in by sending from one of our ports.
FIREWALL = """
table inet site {{
    counter dropped_in {{ }}
    counter dropped_out {{ }}
    chain input {{
        type filter hook input priority filter; policy drop;
        iif lo accept
        tcp dport {{ {served} }} accept
        tcp sport {{ {ports} }} ct state established accept
        meta l4proto {{ tcp, udp, icmp }} counter name dropped_in
    }}
    chain output {{
        type filter hook output priority filter; policy drop;
        oif lo accept
        tcp dport {{ {ports} }} accept
        tcp sport {{ {served} }} ct state established accept
        meta l4proto {{ tcp, udp, icmp }} counter name dropped_out
    }}
}}
"""


@dataclass
class Site:
    """A site whose agent runs."""

    network: SiteNetwork
    name: str
    agent: Daemon
    socket: Path

    def torchrun(self, log: Path, job: str, sites: str, *script: str | Path) -> Torchrun:
        """A launch of two trainers; it is killed with the network if it still runs."""
        environment = {
            "PACTRAIN_AGENT": f"unix:{self.socket}",
            "PACTRAIN_JOB_ID": job,
            "PACTRAIN_ATTACH_TIMEOUT": PATIENCE,
            "PACTRAIN_SITE": self.name,
            "PACTRAIN_SITES": sites,
            "OMP_NUM_THREADS": "1",
        }
        within = self.network.bed.command(self.network.host(self.name), [])
        options = ("--standalone", "--nproc-per-node=2")
        launch = Torchrun(log, environment, *options, *script, within=within)
        self.network.launches.append(launch)
        return launch


class SiteNetwork(Closing):
    """The machines, their links and firewalls, and the coordinator."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder = folder
        self.names = tuple(names)
        self.pki = folder / "pki"  # The CA and all certificates.
        self.launches: list[Torchrun] = []
        self._daemons: list[Daemon] = []
        links = [Link(a, b, RATE_MBPS) for a, b in pairwise(names)]
        hosts = dict.fromkeys(names, 1) | {names[-1]: 2}
        self.bed = NamespaceTestbed(hosts, links)
        try:
            self.stranger = self.bed.hosts[-1]
            certificates(self.pki, "--coordinator")
            self.coordinator = self._start_coordinator()
        except BaseException:
            self.close()
            raise

    def host(self, site: str) -> Host:
        return next(host for host in self.bed.hosts if host.site == site)

    def start_site(self, name: str, reached: bool = True) -> Site:
        """Closes its borders and starts its agent, with a certificate.

        Unless it is `reached` it has a way to the coordinator, but to no agent.
        """
        if not reached:
            self._close_borders(name, [GRPC_PORT], [GRPC_PORT])
        elif name != self.names[0]:
            self._close_borders(name, [DATA_PORT])
        certificates(self.pki, "--agent", f"node-{name}")
        socket = self.folder / f"{name}.sock"
        agent = self._start(
            name,
            f"node-{name}",
            f"--name=node-{name}",
            f"--site={name}",
            f"--coordinator={self.host(self.names[0]).address}:{GRPC_PORT}",
            f"--socket=unix:{socket}",
            f"--listen={self.host(name).address}:{DATA_PORT}",
            *tls_flags(self.pki, f"agent-node-{name}"),
        )
        return Site(self, name, agent, socket)

    def inside(self, host: Host, *command: str) -> str:
        """What a command prints that runs on `host`; TestbedError if it fails."""
        return run(*self.bed.command(host, command))

    def stranger_addresses(self, count: int) -> list[str]:
        """More addresses of the stranger's machine: somebody else each, as others see it."""
        # Those of the testbed end at 200.
        addresses = [f"10.77.0.{201 + number}" for number in range(count)]
        for address in addresses:
            self.inside(self.stranger, *f"ip addr add {address}/24 dev e0".split())
        return addresses

    def dropped(self, site: str) -> dict[str, int]:
        """Packets that the site's firewall has dropped, by counter."""
        shown = self.inside(self.host(site), "nft", "-j", "list", "counters")
        counters = [
            entry["counter"] for entry in json.loads(shown)["nftables"] if "counter" in entry
        ]
        return {counter["name"]: counter["packets"] for counter in counters}

    def _start_coordinator(self) -> Daemon:
        first = self.names[0]
        self._close_borders(first, [GRPC_PORT, DATA_PORT])
        return self._start(
            first,
            "coordinator",
            f"--listen={self.host(first).address}:{GRPC_PORT}",
            f"--state-dir={self.folder / 'state'}",
            "--cluster=sites",
            "--risk=exact",
            f"--policy-file={self.pki / 'policy.yaml'}",
            *tls_flags(self.pki, "coordinator"),
        )

    def _start(self, site: str, name: str, *flags: str) -> Daemon:
        program = "pactrain-coordinator" if name == "coordinator" else "pactrain-agent"
        common = ["--listen-metrics=127.0.0.1:0", f"--connections-per-source={PER_SOURCE}"]
        argv = [str(BIN / program), *common, *flags]
        daemon = Daemon(name, self.bed.command(self.host(site), argv), self.folder)
        self._daemons.append(daemon)
        return daemon

    def _close_borders(
        self, site: str, served: Sequence[int], dialled: Sequence[int] = (GRPC_PORT, DATA_PORT)
    ) -> None:
        text = FIREWALL.format(
            served=", ".join(map(str, served)), ports=", ".join(map(str, dialled))
        )
        argv = self.bed.command(self.host(site), ["nft", "-f", "-"])
        subprocess.run(argv, input=text, text=True, check=True, timeout=PATIENCE_SECONDS)

    def close(self) -> None:
        for launch in self.launches:
            launch.process.terminate()  # It ends its ranks, too.
            launch.process.wait(PATIENCE_SECONDS)
        for daemon in self._daemons:
            daemon.terminate()
        for daemon in self._daemons:
            daemon.wait()
        self.bed.close()
