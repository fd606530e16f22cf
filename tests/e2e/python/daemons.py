"""A coordinator and agents on loopback, that tests may kill and start again."""

from __future__ import annotations

import signal
import socket
from collections.abc import Sequence
from pathlib import Path

from bench.processes import Child

ROOT = Path(__file__).resolve().parents[3]
BIN = ROOT / "out" / "bin"
READY_SECONDS = 30.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        assert isinstance(port, int)
        return port


class Daemon:
    """One process that can be killed and started again with the same flags."""

    def __init__(self, name: str, argv: Sequence[str], folder: Path) -> None:
        self.name = name
        self._argv = argv
        self._folder = folder
        self._starts = 0
        self.child = self._start()

    def _start(self) -> Child:
        self._starts += 1
        log = self._folder / f"{self.name}.{self._starts}.log"
        child = Child(self.name, self._argv, {}, log)
        child.wait_for("listening", READY_SECONDS)
        return child

    def kill(self) -> None:
        self.child.process.send_signal(signal.SIGKILL)
        self.child.process.wait()

    def restart(self) -> None:
        if self.child.process.poll() is None:
            self.kill()
        self.child = self._start()

    def stop(self) -> None:
        if self.child.process.poll() is None:
            self.child.process.terminate()
            try:
                self.child.process.wait(5)
            except Exception:
                self.kill()


class Cluster:
    """One coordinator and one agent in each of `sites` sites."""

    def __init__(self, folder: Path, sites: int, agent_flags: Sequence[str] = ()) -> None:
        self.folder = folder
        self._jobs = 0
        self.address = f"127.0.0.1:{free_port()}"
        self.coordinator = Daemon(
            "coordinator",
            [
                str(BIN / "pactrain-coordinator"),
                f"--listen={self.address}",
                f"--listen-metrics=127.0.0.1:{free_port()}",
                f"--state-dir={folder / 'state'}",
                "--cluster=e2e",
            ],
            folder,
        )
        self.agents = [self._agent(number, agent_flags) for number in range(sites)]

    def _agent(self, number: int, flags: Sequence[str]) -> Daemon:
        return Daemon(
            f"agent-{number}",
            [
                str(BIN / "pactrain-agent"),
                f"--name=agent-{number}",
                f"--site=site-{number}",
                f"--coordinator={self.address}",
                f"--socket={self.socket(number)}",
                f"--listen-data=127.0.0.1:{free_port()}",
                f"--listen-metrics=127.0.0.1:{free_port()}",
                *flags,
            ],
            self.folder,
        )

    def socket(self, number: int) -> Path:
        return self.folder / f"agent-{number}.sock"

    def new_job(self) -> str:
        self._jobs += 1
        return f"job-{self._jobs}"

    def environments(self, world: int, job: str) -> list[dict[str, str]]:
        """Ranks go to the agents in order, in equal shares."""
        return [
            {
                "PACTRAIN_AGENT": f"unix:{self.socket(rank * len(self.agents) // world)}",
                "PACTRAIN_JOB_ID": job,
                "PACTRAIN_ATTACH_TIMEOUT": "30",
            }
            for rank in range(world)
        ]

    def stop(self) -> None:
        for daemon in [*self.agents, self.coordinator]:
            daemon.stop()
