"""A coordinator and agents on loopback, that tests may kill and start again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from patience import PATIENCE, PATIENCE_SECONDS

from bench.processes import Child

ROOT = Path(__file__).resolve().parents[3]
# Another build of the daemons can be tested with PACTRAIN_TEST_BIN.
BIN = Path(os.environ.get("PACTRAIN_TEST_BIN", ROOT / "out" / "bin"))
MEMORY_FILE = "/memfd:pactrain"


def why_no_mounts() -> str:
    """Why no file systems can be mounted for one process alone; empty: they can."""
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stderr.strip() if done.returncode != 0 else ""


no_mounts = pytest.mark.skipif(why_no_mounts() != "", reason=f"no mounts: {why_no_mounts()}")


def certificates(folder: Path, *who: str, by: Sequence[str] = ()) -> None:
    """Of tools/certs: `who` as "--agent", "a"; by the CA in `folder`, made if missing.

    `by`: words before the command.
    """
    command = [*by, str(ROOT / "tools" / "certs"), str(folder), *who]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def tls_flags(folder: Path, name: str) -> list[str]:
    return [
        f"--tls-cert={folder / name}.pem",
        f"--tls-key={folder / name}.key",
        f"--tls-ca={folder / 'ca.pem'}",
    ]


class Daemon:
    """One process that can be killed and started again with the same flags."""

    def __init__(self, name: str, argv: Sequence[str], folder: Path) -> None:
        self.name = name
        self.argv = argv
        self._folder = folder
        self._starts = 0
        self.child = self._start()

    def _start(self) -> Child:
        self._starts += 1
        log = self._folder / f"{self.name}.{self._starts}.log"
        child = Child(self.name, self.argv, {}, log)
        line = child.wait_for("listening", PATIENCE_SECONDS)
        self.listening = dict(part.split("=", 1) for part in line.split()[1:])
        return child

    def kill(self) -> None:
        self.child.process.send_signal(signal.SIGKILL)
        self.child.process.wait()

    def restart(self) -> None:
        """With the flags of now; on the address that it had, where they name it."""
        if self.child.process.poll() is None:
            self.kill()
        self.child = self._start()

    def restart_by(self, *words: str) -> None:
        """By a program that becomes it."""
        self.argv = [*words, *self.argv]
        self.restart()

    def memory_files(self) -> set[str]:
        """The memory files that it shares with trainers: those that it has mapped or open."""
        process = Path("/proc") / str(self.child.process.pid)
        mapped = (line.split(maxsplit=5) for line in (process / "maps").read_text().splitlines())
        files = {f"{m[5]} inode {m[4]}" for m in mapped if len(m) == 6}
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # Closed since it was listed.
                files.add(f"{descriptor.readlink()} inode {descriptor.stat().st_ino}")
        return {file for file in files if file.startswith(MEMORY_FILE)}

    def terminate(self) -> None:
        if self.child.process.poll() is None:
            self.child.process.terminate()

    def wait(self) -> int:
        """Its exit status; -9 if it had to be killed."""
        try:
            return self.child.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.child.process.wait()


class Cluster:
    """One coordinator and one agent in each of `sites` sites."""

    def __init__(
        self,
        folder: Path,
        sites: int,
        agent_flags: Sequence[str] = (),
        coordinator_flags: Sequence[str] = (),
        risk: str = "exact",  # How soon a policy goes TERNARY depends on the machine.
        keyed: bool = False,  # With TLS, by a job key.
        certified: bool = False,  # With TLS, by certificates of a CA.
    ) -> None:
        self.folder = folder
        self.protection = "--insecure-local"
        if keyed:
            key = folder / "job.key"
            argv = [str(BIN / "pactrain-admin"), "new-key", str(key)]
            subprocess.run(argv, check=True, capture_output=True)
            self.protection = f"--job-key-file={key}"
        self._certified, self.pki = certified, folder / "pki"
        self._coordinator_flags = [*coordinator_flags, f"--risk={risk}"]
        if certified:
            who = [word for number in range(sites) for word in ("--agent", f"agent-{number}")]
            certificates(self.pki, "--coordinator", "--operator", *who)
            self._coordinator_flags.append(f"--policy-file={self.pki / 'policy.yaml'}")
        self._jobs = 0
        self.coordinator = Daemon("coordinator", self._coordinator("127.0.0.1:0"), folder)
        self.address = self.coordinator.listening["grpc"]
        self.coordinator.argv = self._coordinator(self.address)
        self.agents = [self.start_agent(number, number, agent_flags) for number in range(sites)]

    def _protection(self, who: str) -> list[str]:
        return tls_flags(self.pki, who) if self._certified else [self.protection]

    def _coordinator(self, address: str) -> list[str]:
        return [
            str(BIN / "pactrain-coordinator"),
            *self._protection("coordinator"),
            f"--listen={address}",
            "--listen-metrics=127.0.0.1:0",
            f"--state-dir={self.folder / 'state'}",
            "--cluster=e2e",
            *self._coordinator_flags,
        ]

    def start_agent(self, number: int, site: int, flags: Sequence[str] = ()) -> Daemon:
        return Daemon(
            f"agent-{number}",
            [
                str(BIN / "pactrain-agent"),
                *self._protection(f"agent-agent-{number}"),
                f"--name=agent-{number}",
                f"--site=site-{site}",
                f"--coordinator={self.address}",
                f"--socket=unix:{self.socket(number)}",
                "--listen=127.0.0.1:0",
                "--listen-metrics=127.0.0.1:0",
                *flags,
            ],
            self.folder,
        )

    def socket(self, number: int) -> Path:
        return self.folder / f"agent-{number}.sock"

    def admin(self, *words: str) -> list[str]:
        """The command line of pactrain-admin."""
        shown = [word for word in self._protection("operator") if not word.startswith("--insecure")]
        return [str(BIN / "pactrain-admin"), f"--coordinator={self.address}", *shown, *words]

    def new_job(self) -> str:
        self._jobs += 1
        return f"job-{self._jobs}"

    def environments(self, world: int, job: str) -> list[dict[str, str]]:
        """Ranks go to the agents in order, in equal shares."""
        return [
            {
                "PACTRAIN_AGENT": f"unix:{self.socket(rank * len(self.agents) // world)}",
                "PACTRAIN_JOB_ID": job,
                "PACTRAIN_ATTACH_TIMEOUT": PATIENCE,
            }
            for rank in range(world)
        ]

    def stop(self) -> None:
        daemons = [*self.agents, self.coordinator]
        for daemon in daemons:
            daemon.terminate()
        for daemon in daemons:
            daemon.wait()
