"""Three hosts in network namespaces with firewalls between: two agents, a coordinator."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from daemons import BIN, ROOT
from patience import PATIENCE, PATIENCE_SECONDS

from bench.processes import Child, Children
from bench.testbed import Host, Link, NamespaceTestbed

# As docs/network.md has them.
OPEN, CLOSED = re.findall(r"```nft\n(.*?)```", (ROOT / "docs/network.md").read_text(), re.DOTALL)
PORTS = "7072-7079"


class Firewalled:
    """Agent a0 of site a, agent b0 of site b; the coordinator is on a third host.

    `closed`: sites whose nodes let no connection in. `advertise`: by site.
    """

    def __init__(
        self,
        bed: NamespaceTestbed,
        children: Children,
        folder: Path,
        closed: Sequence[str] = (),
        advertise: Mapping[str, str] | None = None,
        tls: bool = False,
    ) -> None:
        self.bed = bed
        self.folder = folder
        self._tls = tls
        self._children = children
        *self.hosts, head = bed.hosts
        for host in bed.hosts:
            rules = CLOSED if host.site in closed else OPEN
            subprocess.run(
                bed.command(host, ["nft", "-f", "-"]), input=rules, text=True, check=True
            )
        if tls:
            names = [word for host in self.hosts for word in ("--agent", host.name)]
            command = [str(ROOT / "tools/certs"), str(folder / "pki"), "--coordinator", "--reader"]
            subprocess.run([*command, *names], check=True, stdout=subprocess.DEVNULL)
        self.coordinator = f"{head.address}:7070"
        self._start(
            head,
            "coordinator",
            [
                f"--listen={self.coordinator}",
                f"--state-dir={folder / 'state'}",
                "--risk=exact",
                *([f"--policy-file={folder / 'pki' / 'policy.yaml'}"] if tls else []),
            ],
        )
        self.agents = {
            host.site: self._agent(host, (advertise or {}).get(host.site)) for host in self.hosts
        }

    def flags(self, who: str) -> list[str]:
        if not self._tls:
            return ["--insecure-network"]
        pki = self.folder / "pki"
        return [f"--tls-cert={pki / who}.pem", f"--tls-key={pki / who}.key",
                f"--tls-ca={pki / 'ca.pem'}"]  # fmt: skip

    def _agent(self, host: Host, advertise: str | None) -> Child:
        words = [f"--name={host.name}", f"--site={host.site}", f"--coordinator={self.coordinator}",
                 f"--socket=unix:{self.socket(host)}", f"--listen={host.address}:{PORTS}",
                 "--log-level=debug"]  # fmt: skip
        if advertise is not None:
            words.append(f"--advertise-address={advertise}")
        return self._start(host, f"agent-{host.name}", words)

    def _start(self, host: Host, name: str, words: list[str]) -> Child:
        program = "pactrain-" + name.partition("-")[0]
        argv = [str(BIN / program), "--listen-metrics=127.0.0.1:0", *words, *self.flags(name)]
        child = self._children.start(name, self.bed.command(host, argv), {})
        child.wait_for("listening", PATIENCE_SECONDS)
        return child

    def socket(self, host: Host) -> Path:
        return self.folder / f"{host.name}.sock"

    def doctor(self, site: str) -> subprocess.CompletedProcess[str]:
        """`pactrain doctor` on that site's node."""
        (host,) = (host for host in self.hosts if host.site == site)
        argv = [str(BIN / "pactrain-admin"), "doctor", *self.flags("reader")]
        environment = {**os.environ, "PACTRAIN_AGENT": f"unix:{self.socket(host)}"}
        return subprocess.run(
            self.bed.command(host, argv),
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )

    # What launch() asks of a cluster.
    def new_job(self) -> str:
        return "reach"

    def environments(self, world: int, job: str) -> list[dict[str, str]]:
        return [
            {
                "PACTRAIN_AGENT": f"unix:{self.socket(self.hosts[rank * 2 // world])}",
                "PACTRAIN_JOB_ID": job,
                "PACTRAIN_ATTACH_TIMEOUT": PATIENCE,
            }
            for rank in range(world)
        ]


def make_bed() -> NamespaceTestbed:
    links = [Link("a", "head", 100), Link("b", "head", 100)]
    return NamespaceTestbed({"a": 1, "b": 1, "head": 1}, links)
