"""One cell of a chaos run: a coordinator, three agents and jobs that share them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from job import ROOT, SITES, Job, Kind, Rank
from network import Network

from bench.processes import Child

# Another build of the daemons can be tested with PACTRAIN_TEST_BIN.
BIN = Path(os.environ.get("PACTRAIN_TEST_BIN", ROOT / "out" / "bin"))
AGENTS = SITES + 1
HOSTS = AGENTS + SITES  # One more for each site of members.
START_S = 60.0
STOP_S = 20.0


class ChaosError(RuntimeError):
    """The run itself went wrong, or a daemon ended that nobody had ended."""


class Cell:
    """Used, from its start to its end, by one thread: with that one its processes end."""

    def __init__(self, folder: Path, network: Network, stop: threading.Event) -> None:
        """`stop` is set where the run is to end before its time."""
        self.folder = folder
        self.network = network
        self.jobs: list[Job] = []
        self.hosts = list(range(AGENTS))  # Of each agent.
        self._left: list[Child] = []  # Agents that others took the place of.
        self._stop = stop
        self._starts = 0
        self.coordinator = self.start_coordinator()
        self.agents = [self.start_agent(number) for number in range(AGENTS)]

    def add_job(self, name: str, kind: Kind, cpp_rank: Path) -> None:
        self.jobs.append(Job(name, self.folder, kind, self.socket, cpp_rank))

    def jobs_members(self) -> list[Rank]:
        return [rank for job in self.jobs for rank in job.members]

    def socket(self, number: int) -> Path:
        return self.folder / f"agent-{self.hosts[number]}.sock"

    def forget(self, number: int) -> None:
        """What a dead agent had written of its trainers is gone with its node."""
        Path(f"{self.socket(number)}.trainers").unlink()

    def _start(self, name: str, argv: Sequence[str]) -> tuple[Child, str]:
        """The daemon, and what it said when it listened."""
        self._starts += 1
        child = Child(name, argv, {}, self.folder / f"{name}.{self._starts}.log")
        return child, child.wait_for("listening", START_S)

    def start_coordinator(self) -> Child:
        argv = [
            str(BIN / "pactrain-coordinator"),
            "--listen-metrics=127.0.0.1:0",
            f"--state-dir={self.folder / 'state'}",
            "--cluster=chaos",
            "--risk=exact",
            *self.network.daemon_flags,
        ]
        child, said = self._start("coordinator", self.network.coordinator(argv))
        self.network.listens(dict(part.split("=", 1) for part in said.split()[1:])["grpc"])
        return child

    def start_agent(self, number: int) -> Child:
        host = self.hosts[number]
        argv = [
            str(BIN / "pactrain-agent"),
            f"--name=agent-{host}",
            f"--site=site-{number}",
            f"--socket=unix:{self.socket(number)}",
            "--listen-metrics=127.0.0.1:0",
            "--step-deadline=6s",
            *self.network.daemon_flags,
        ]
        return self._start(f"agent-{host}", self.network.agent(host, argv))[0]

    def move_agent(self, number: int) -> Child:
        """A site of members gets another node; the agent of the one before, which lives on."""
        left = self.agents[number]
        self._left.append(left)
        self.hosts[number] = 2 * number + AGENTS - self.hosts[number]  # Its other one.
        self.agents[number] = self.start_agent(number)
        return left

    def tend(self) -> None:
        """ChaosError: a daemon has ended by itself, or the run is to end."""
        if self._stop.is_set():
            raise ChaosError("The run was stopped.")
        for child in [self.coordinator, *self.agents]:
            if child.process.poll() is not None:
                raise ChaosError(str(child.error("ended by itself")))
        for job in self.jobs:
            job.tend()

    def wait(self, done: Callable[[], bool], until: float) -> bool:
        """Whether it was done in time; ranks are tended meanwhile."""
        while not done():
            self.tend()
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True

    def end_ranks(self, bound_s: float) -> list[str]:
        """All jobs end after a few steps more; a line for each rank that did not."""
        for job in self.jobs:
            job.end()
        late = []
        end = time.monotonic() + bound_s
        for job in self.jobs:
            for rank in job.living():
                try:
                    status = rank.child.process.wait(max(0.1, end - time.monotonic()))
                except subprocess.TimeoutExpired:
                    late.append(f"{rank.child.name} did not end within {bound_s:.0f} s")
                    continue
                if status != 0:
                    late.append(str(rank.child.error("did not end well")))
        return late

    def close(self) -> None:
        """ChaosError: a daemon did not stop in order."""
        for job in self.jobs:
            for rank in job.living():
                rank.send(signal.SIGKILL)
                rank.child.process.wait()
        children = [*self._left, *self.agents, self.coordinator]
        for child in children:
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGCONT)
                child.process.terminate()
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(STOP_S)
        self.network.close()
        for child in children:
            status = child.process.poll()
            if status is None:
                child.process.kill()
                child.process.wait()
            if status != 0:
                raise ChaosError(str(child.error("did not stop in order")))
