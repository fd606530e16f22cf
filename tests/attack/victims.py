"""Those who are attacked: a coordinator and two agents with certificates, and a job that trains."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from bench.closing import Closing
from bench.processes import Child, Children

PATIENCE_S = 60.0
ADMIN_PATIENCE_S = 30.0
ATTACKERS = 64


class Job(Closing):
    """Two ranks that check each sum; when each of rank 1's steps was committed."""

    def __init__(
        self, children: Children, trainer: Path, sockets: Sequence[Path], name: str
    ) -> None:
        self.name = name
        self._stamps: list[float] = []
        self._ended = False
        self._ranks = [
            children.start(
                f"{name}-{rank}",
                [str(trainer), f"unix:{socket}", name, str(rank), "2", "1000000000"],
                {},
            )
            for rank, socket in enumerate(sockets)
        ]
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while not self._ended:
            line = self._ranks[1].line(0.2)
            if line is not None and line.endswith(" ok"):
                self._stamps.append(time.monotonic())

    def lives(self) -> bool:
        return all(rank.process.poll() is None for rank in self._ranks)

    def wait_for_steps(self, count: int, timeout_s: float = PATIENCE_S) -> bool:
        """Whether so many more were committed in time."""
        wanted = len(self._stamps) + count
        end = time.monotonic() + timeout_s
        while len(self._stamps) < wanted and self.lives() and time.monotonic() < end:
            time.sleep(0.05)
        return len(self._stamps) >= wanted

    def step_seconds(self, spans: Sequence[tuple[float, float]]) -> float:
        """The median of those committed within them; all of the time where none was."""
        steps: list[float] = []
        for begin, end in spans:
            inside = [at for at in self._stamps if begin <= at <= end]
            steps += [later - at for at, later in itertools.pairwise(inside)]
        return statistics.median(steps or [sum(end - begin for begin, end in spans)])

    def longest_gap(self, begin: float, end: float) -> float:
        """Seconds without a step."""
        inside = [begin, *(at for at in self._stamps if begin <= at <= end), end]
        return max(later - at for at, later in itertools.pairwise(inside))

    def close(self) -> None:
        self._ended = True
        for rank in self._ranks:
            rank.process.kill()
            rank.process.wait()


class Victims:
    """The daemons, below `folder`; started by `children`, which end them."""

    def __init__(self, children: Children, programs: Path, trainer: Path, folder: Path) -> None:
        self.pki = folder / "pki"
        self._children = children
        self._programs = programs
        self._trainer = trainer
        self._folder = folder
        root = Path(__file__).resolve().parents[2]
        who: list[str | Path] = ["--coordinator", "--operator"]
        self._attackers = (f"agent-evil{number}" for number in range(ATTACKERS))
        for agent in ("a", "b", *(f"evil{number}" for number in range(ATTACKERS))):
            who += ["--agent", agent]
        subprocess.run(
            [root / "tools/certs", self.pki, *who], check=True, stdout=subprocess.DEVNULL
        )
        self.coordinator = self._start(
            "coordinator",
            "--listen=127.0.0.1:0",
            f"--state-dir={folder / 'state'}",
            f"--policy-file={self.pki / 'policy.yaml'}",
            "--risk=exact",
        )
        self.grpc = self._said["grpc"].replace("127.0.0.1", "localhost")
        self.metrics = self._said["metrics"]
        self.sockets = [folder / f"{name}.sock" for name in ("a", "b")]
        for name, socket in zip(("a", "b"), self.sockets, strict=True):
            self._start(
                f"agent-{name}",
                f"--name={name}",
                f"--site={name}",
                f"--socket=unix:{socket}",
                f"--coordinator={self.grpc}",
                "--listen=127.0.0.1:0",
            )

    def _tls(self, name: str) -> list[str]:
        files = {"cert": f"{name}.pem", "key": f"{name}.key", "ca": "ca.pem"}
        return [f"--tls-{kind}={self.pki / file}" for kind, file in files.items()]

    def _start(self, name: str, *flags: str) -> Child:
        program = self._programs / f"pactrain-{name.split('-')[0]}"
        argv = [str(program), "--listen-metrics=127.0.0.1:0", *self._tls(name), *flags]
        child = self._children.start(name, argv, {})
        line = child.wait_for("listening", PATIENCE_S)
        self._said = dict(part.split("=", 1) for part in line.split()[1:])
        return child

    def attacker(self) -> str:
        """Whose certificate an attack may use: nobody's before, for his budgets are full."""
        return next(self._attackers)

    def job(self, name: str) -> Job:
        return Job(self._children, self._trainer, self.sockets, name)

    def asks(self, *words: str) -> tuple[bool, float]:
        """Whether the coordinator answers an operator, and after how many seconds."""
        argv = [str(self._programs / "pactrain-admin"), f"--coordinator={self.grpc}"]
        begin = time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = subprocess.run(
                [*argv, *words, *self._tls("operator")],
                capture_output=True,
                timeout=ADMIN_PATIENCE_S,
                check=False,
            )
            return done.returncode == 0, time.monotonic() - begin
        return False, time.monotonic() - begin

    def resident_mib(self) -> float:
        """Of the coordinator."""
        status = Path(f"/proc/{self.coordinator.process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) / 1024
