"""The ranks of one chaos job: started, started again as launchers do, and read."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from oracle import Line

from bench.processes import Child

ROOT = Path(__file__).resolve().parents[2]
PYTHON_RANK = Path(__file__).with_name("rank.py")
SITES = 2  # Of members, by agent; the next agent is for newcomers.
LAST_STEPS = 40  # So many are still made when a job is told to end.
AGAIN_S = 1.0  # No rank is started again sooner after its last start.


@dataclass(frozen=True)
class Kind:
    """The languages, "python" or "cpp", of a job's ranks.

    A rank takes the state of optimizers from one of its own language. So that one is left
    there are two of each.
    """

    sites: tuple[tuple[str, ...], tuple[str, ...]]
    newcomer: str
    on_shrink: str

    @property
    def words(self) -> str:
        languages = dict.fromkeys(language for site in self.sites for language in site)
        return f"{' and '.join(languages)}, {self.on_shrink}"


class Rank:
    """One process. `seat`: which of the job's ranks; the last one is the newcomer's."""

    def __init__(self, child: Child, log: Path, seat: int) -> None:
        self.child = child
        self.seat = seat
        self.started = time.monotonic()
        self.killed = False  # By us.
        self.lines: list[Line] = []
        self._log = log
        self._offset = 0

    def lives(self) -> bool:
        return self.child.process.poll() is None

    def send(self, what: signal.Signals) -> None:
        if self.lives():
            self.killed |= what == signal.SIGKILL
            self.child.process.send_signal(what)

    def read(self) -> list[Line]:
        """All whole lines so far."""
        if self._log.exists():
            with self._log.open("rb") as file:
                file.seek(self._offset)
                *whole, rest = file.read().split(b"\n")
                self._offset = file.tell() - len(rest)
            self.lines += [json.loads(line) for line in whole]
        return self.lines

    def first(self, after: float, batch: int) -> float | None:
        """When it made its first step after a moment, of this batch or a later one."""
        for line in self.read():
            if line["time"] > after and line.get("batch", -1) >= batch:
                return float(line["time"])
        return None

    def newest(self) -> Line | None:
        """Its last step."""
        lines = self.read()
        return lines[-1] if lines and "batch" in lines[-1] else None

    def attached(self) -> float:
        """When it began to attach, with Python and torch loaded; 0: not yet."""
        return float(next((line["time"] for line in self.read() if "attaches" in line), 0.0))


class Job:
    """Members at agents 0 and 1; newcomers at agent 2."""

    def __init__(
        self,
        name: str,
        folder: Path,
        kind: Kind,
        socket: Callable[[int], Path],
        cpp_rank: Path,
    ) -> None:
        self.name = name
        self.replaced = 0
        self.surprises: list[str] = []  # Ranks that ended by themselves before the end.
        self.all: list[Rank] = []
        self._folder = folder
        self._kind = kind
        # By seat: the agent, the rank within the site and the language.
        self._seats = [
            (site, rank, language)
            for site, languages in enumerate((*kind.sites, (kind.newcomer,)))
            for rank, language in enumerate(languages)
        ]
        self._socket = socket
        self._cpp_rank = cpp_rank
        self._began_with = b""  # The checkpoint, if it was replaced.
        self._until = folder / f"{name}.until"
        self.members = [self._start(seat) for seat in range(self._newcomer)]

    @property
    def words(self) -> str:
        return f"{self.name} ({self._kind.words})"

    @property
    def _newcomer(self) -> int:
        return len(self._seats) - 1

    @property
    def checkpoint(self) -> Path:
        return self._folder / f"{self.name}.{self.replaced}.checkpoint"

    def _start(self, seat: int) -> Rank:
        name = f"{self.name}.{len(self.all)}"
        site, rank_there, language = self._seats[seat]
        log = self._folder / f"{name}.jsonl"
        env = {
            "PACTRAIN_AGENT": f"unix:{self._socket(site)}",
            "PACTRAIN_JOB_ID": self.name,
            "PACTRAIN_ATTACH_TIMEOUT": "120",
            "PACTRAIN_ON_SHRINK": self._kind.on_shrink,
            "CHAOS_CHECKPOINT": str(self.checkpoint),
            "PYTHONPATH": f"{ROOT / 'python_client/src'}:{ROOT}",
            "OMP_NUM_THREADS": "1",
        }
        until = self._until
        ranks = 1
        if seat == self._newcomer:
            until = log.with_suffix(".until")
            env["TORCHELASTIC_RUN_ID"] = name
        else:
            ranks = len(self._kind.sites[site])
            # As launchers do: of who is started again later, too.
            env["PACTRAIN_REPLACE"] = str(int(self.replaced > 0))
            env["PACTRAIN_SITE"] = f"site-{site}"
            env["PACTRAIN_SITES"] = ",".join(
                f"site-{number}:{len(there)}" for number, there in enumerate(self._kind.sites)
            )
        env |= {"RANK": str(rank_there), "LOCAL_RANK": str(rank_there)}
        env |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        python = [sys.executable, str(PYTHON_RANK)]
        program = python if language == "python" else [str(self._cpp_rank)]
        argv = [*program, str(log), str(until), str(seat)]
        rank = Rank(Child(name, argv, env, log.with_suffix(".err")), log, seat)
        self.all.append(rank)
        return rank

    def tend(self) -> None:
        """Starts members anew that have ended, as launchers do."""
        for place, rank in enumerate(self.members):
            if rank.lives() or self._until.exists():
                continue
            if time.monotonic() > rank.started + AGAIN_S:
                self.note(rank)
                self.members[place] = self._start(rank.seat)

    def note(self, rank: Rank) -> None:
        """Of a rank that has ended: by itself?"""
        status = rank.child.process.poll()
        if rank.killed or status == 0:
            return
        said = rank.child.log.read_text(errors="replace").strip().splitlines()
        self.surprises.append(
            f"{rank.child.name} ended with status {status}: {' '.join(said[-2:])[-400:]}"
        )

    def saved(self) -> bool:
        """Whether the ranks of now have written the checkpoint."""
        return self.checkpoint.exists() and self.checkpoint.read_bytes() != self._began_with

    def replace(self) -> None:
        """Begins anew from the checkpoint. REQUIRES: no member lives at the agents of now."""
        self._began_with = self.checkpoint.read_bytes()
        self.replaced += 1
        # One of their own: of those that are replaced one may write yet.
        self.checkpoint.write_bytes(self._began_with)
        self.members = [self._start(rank.seat) for rank in self.members]

    def members_of(self, site: int) -> list[Rank]:
        return [rank for rank in self.members if self._seats[rank.seat][0] == site]

    def join(self) -> Rank:
        return self._start(self._newcomer)

    def dismiss(self, rank: Rank) -> None:
        """It leaves by its own will: `pause` would wait for one in its place."""
        (self._folder / f"{rank.child.name}.until").write_text("0")

    def batch(self, at: float) -> int:
        """The last batch that any of its ranks had made at a moment, or 0."""
        newest = [[line for line in rank.read() if line["time"] <= at] for rank in self.living()]
        return max((lines[-1].get("batch", 0) for lines in newest if lines), default=0)

    def recovered(self, since: float, batch: int) -> float | None:
        """When all members had made a step after `since`; None: not yet.

        `batch`: the last one before that. The one after it may have been on its way.
        """
        times = [rank.first(since, 0 if rank.started > since else batch + 2)
                 for rank in self.members]  # fmt: skip
        whole = [time_of_it for time_of_it in times if time_of_it is not None]
        return max(whole) if len(whole) == len(times) else None

    def living(self) -> list[Rank]:
        return [rank for rank in self.all if rank.lives()]

    def end(self) -> None:
        """All ranks end after the same step, a few from now."""
        newest = [line["batch"] for rank in self.members if (line := rank.newest()) is not None]
        file = self._until.with_suffix(".new")
        file.write_text(str(max(newest, default=0) + LAST_STEPS))
        file.replace(self._until)
