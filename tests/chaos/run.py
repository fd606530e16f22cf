"""Chaos on real processes: python tests/chaos/run.py --duration=SECONDS [--seed=N] [--jobs=N].

A coordinator, three agents and jobs whose ranks come and go. At random a trainer, an agent or
the coordinator is killed or stopped, or agents are cut off from the coordinator while they train
on; every other time a newcomer joins in the midst of such a cut, elsewhere. What ranks have
written is judged afterwards: the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relay import Relay

from bench.processes import Child

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / "out" / "bin"
AGENTS = 3
BOUND_S = 60.0  # Of any wait for the next step.
RANK = Path(__file__).with_name("rank.py")


@dataclass
class Rank:
    child: Child
    log: Path
    agent: int

    def lives(self) -> bool:
        return self.child.process.poll() is None

    def end(self, how: signal.Signals) -> None:
        if self.lives():
            self.child.process.send_signal(how)


class Daemons:
    """A coordinator, and agents that reach it through relays."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._starts = 0
        self._address = "127.0.0.1:0"
        self.coordinator = self.start_coordinator()
        self.relays = [Relay(self._address) for _ in range(AGENTS)]
        self.agents = [self.start_agent(number) for number in range(AGENTS)]

    def _start(self, name: str, argv: list[str]) -> tuple[Child, dict[str, str]]:
        self._starts += 1
        log = self.folder / f"{name}.{self._starts}.log"
        child = Child(name, argv, {}, log)
        line = child.wait_for("listening", 30)
        return child, dict(part.split("=", 1) for part in line.split()[1:])

    def start_coordinator(self) -> Child:
        child, listening = self._start(
            "coordinator",
            [
                str(BIN / "pactrain-coordinator"),
                f"--listen={self._address}",
                "--listen-metrics=127.0.0.1:0",
                f"--state-dir={self.folder / 'state'}",
                "--cluster=chaos",
                "--risk=exact",
            ],
        )
        self._address = listening["grpc"]
        return child

    def socket(self, number: int) -> Path:
        return self.folder / f"agent-{number}.sock"

    def start_agent(self, number: int) -> Child:
        argv = [
            str(BIN / "pactrain-agent"),
            f"--name=agent-{number}",
            f"--site=site-{number}",
            f"--coordinator={self.relays[number].address}",
            f"--socket=unix:{self.socket(number)}",
            "--listen=127.0.0.1:0",
            "--listen-metrics=127.0.0.1:0",
            "--step-deadline=6s",
        ]
        return self._start(f"agent-{number}", argv)[0]

    def stop(self) -> None:
        for child in [*self.agents, self.coordinator]:
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGCONT)
                child.process.terminate()
        for child in [*self.agents, self.coordinator]:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(20)
        for relay in self.relays:
            relay.close()


@dataclass
class Job:
    """Ranks at agents 0 and 1; newcomers at agent 2."""

    daemons: Daemons
    name: str
    on_shrink: str
    stop: Path
    ranks: list[Rank] = field(default_factory=list)
    newcomers: list[Rank] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)
    sites: str = "site-0:1,site-1:1"

    def start(self, site: int, newcomer: bool = False) -> Rank:
        log = self.daemons.folder / f"{self.name}.{len(self.logs)}.jsonl"
        self.logs.append(log)
        env = {
            "PACTRAIN_AGENT": f"unix:{self.daemons.socket(site)}",
            "PACTRAIN_JOB_ID": self.name,
            "PACTRAIN_ATTACH_TIMEOUT": "120",
            "PACTRAIN_ON_SHRINK": self.on_shrink,
            "PYTHONPATH": f"{ROOT / 'python_client/src'}:{ROOT}",
            "OMP_NUM_THREADS": "1",
        }
        if newcomer:
            env |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
            env |= {"TORCHELASTIC_RUN_ID": f"{self.name}-{len(self.logs)}"}
        else:
            env |= {"PACTRAIN_SITE": f"site-{site}", "PACTRAIN_SITES": self.sites}
        stop = log.with_suffix(".stop") if newcomer else self.stop
        argv = [sys.executable, str(RANK), str(log), str(stop)]
        child = Child(log.stem, argv, env, log.with_suffix(".err"))
        return Rank(child, log, site)

    def begin(self) -> None:
        self.ranks = [self.start(site) for site in (0, 1)]

    def tend(self) -> None:
        """Starts ranks anew that have ended, as launchers do."""
        for place, rank in enumerate(self.ranks):
            if not rank.lives() and not self.stop.exists():
                self.ranks[place] = self.start(rank.agent)
        self.newcomers = [rank for rank in self.newcomers if rank.lives()]

    def lines(self) -> list[list[dict[str, Any]]]:
        """Of each process."""
        return [
            [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
            for log in self.logs
            if log.exists()
        ]

    def newest(self) -> float:
        """When the last step came that all of its first ranks, or who is in their place, made."""
        return min(newest(rank.log) for rank in self.ranks)


def newest(log: Path) -> float:
    """The time of the last whole line; 0: there is none."""
    if not log.exists():
        return 0.0
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 400))
        whole = [line for line in file.read().split(b"\n") if line.endswith(b"}")]
    if not whole or not whole[-1].startswith(b"{"):
        return 0.0
    time_of_it: float = json.loads(whole[-1])["time"]
    return time_of_it


@dataclass
class Verdict:
    steps: int = 0
    divergent_steps: int = 0
    lost_states: int = 0
    over_bound_waits: int = 0


def judge(processes: list[list[dict[str, Any]]]) -> Verdict:
    """Of one job: equal digests at each batch, no batch twice in one process, no new beginning."""
    verdict = Verdict()
    digests: dict[int, set[str]] = {}
    for lines in processes:
        for before, line in zip([None, *lines], lines, strict=False):
            digests.setdefault(line["batch"], set()).add(line["digest"])
            verdict.lost_states += before is not None and line["batch"] <= before["batch"]
    began = min((lines[0]["time"] for lines in processes if lines), default=0.0)
    for lines in processes:
        # Long after others had made theirs.
        verdict.lost_states += (
            bool(lines) and lines[0]["batch"] == 1 and (lines[0]["time"] > began + 5)
        )
    times = sorted(line["time"] for lines in processes for line in lines)
    verdict.over_bound_waits = sum(
        after - before > BOUND_S for before, after in itertools.pairwise(times)
    )
    verdict.steps = len(digests)
    verdict.divergent_steps = sum(len(found) > 1 for found in digests.values())
    return verdict


class Chaos:
    def __init__(self, daemons: Daemons, jobs: list[Job], seed: int) -> None:
        self.daemons = daemons
        self.jobs = jobs
        self.random = random.Random(seed)
        self.faults = 0
        self.over_bound = 0
        self.recovery: dict[str, list[float]] = {"same_members": [], "kill": []}

    def run(self, until: float) -> None:
        kinds = [self.kill_trainer, self.stop_trainer, self.kill_agent, self.stop_agent,
                 self.kill_coordinator, self.cut_one, self.stage]  # fmt: skip
        while time.monotonic() < until:
            kind = self.random.choice(kinds)
            print(f"{time.monotonic():.1f} {kind.__name__}", flush=True)
            self.faults += 1
            kind()
            for job in self.jobs:
                job.tend()
            time.sleep(self.random.uniform(0.2, 1.0))

    def _await_steps(self, recovery: str | None, since: float | None = None) -> None:
        """Of all jobs, one that all ranks made after `since` (now)."""
        start = time.monotonic() if since is None else since
        for job in self.jobs:
            while job.newest() <= start:
                job.tend()
                if time.monotonic() > start + BOUND_S:
                    self.over_bound += 1
                    print(f"job {job.name} waits for longer than {BOUND_S:.0f} s", flush=True)
                    return
                time.sleep(0.02)
        if recovery is not None:
            self.recovery[recovery].append(max(job.newest() for job in self.jobs) - start)

    def _rank(self) -> Rank:
        return self.random.choice(self.random.choice(self.jobs).ranks)

    def kill_trainer(self) -> None:
        self._rank().end(signal.SIGKILL)
        time.sleep(0.1)
        for job in self.jobs:
            job.tend()
        self._await_steps(None)

    def stop_trainer(self) -> None:
        rank = self._rank()
        rank.end(signal.SIGSTOP)
        time.sleep(self.random.uniform(0.5, 4))
        rank.end(signal.SIGCONT)
        self._await_steps("same_members")

    def kill_agent(self) -> None:
        number = self.random.randrange(2)  # Of members.
        killed = time.monotonic()
        self.daemons.agents[number].process.kill()
        self.daemons.agents[number].process.wait()
        self.daemons.agents[number] = self.daemons.start_agent(number)
        self._await_steps("kill", since=killed)

    def stop_agent(self) -> None:
        process = self.daemons.agents[self.random.randrange(AGENTS)].process
        process.send_signal(signal.SIGSTOP)
        time.sleep(self.random.uniform(0.5, 4))
        process.send_signal(signal.SIGCONT)
        self._await_steps("same_members")

    def kill_coordinator(self) -> None:
        self.daemons.coordinator.process.kill()
        self.daemons.coordinator.process.wait()
        self.daemons.coordinator = self.daemons.start_coordinator()
        self._await_steps("same_members")

    def cut_one(self) -> None:
        relay = self.random.choice(self.daemons.relays)
        relay.cut()
        time.sleep(self.random.uniform(0.5, 5))
        relay.heal()
        self._await_steps("same_members")

    def stage(self, seconds: float | None = None) -> None:
        """Members are cut off and train on; a newcomer is launched in the midst of it."""
        for relay in self.daemons.relays[:2]:
            relay.cut()
        time.sleep(1)
        job = self.random.choice(self.jobs)
        newcomer = job.start(2, newcomer=True)
        job.newcomers.append(newcomer)
        time.sleep(self.random.uniform(4, 25) if seconds is None else seconds)
        for relay in self.daemons.relays[:2]:
            relay.heal()
        self._await_steps(None)
        end = time.monotonic() + BOUND_S
        while newcomer.lives() and not newcomer.log.exists() and time.monotonic() < end:
            time.sleep(0.05)
        # It leaves by its own will: pause would wait for one in its place.
        newcomer.log.with_suffix(".stop").touch()
        with contextlib.suppress(subprocess.TimeoutExpired):
            newcomer.child.process.wait(BOUND_S)
        newcomer.end(signal.SIGKILL)
        self._await_steps(None)


def p99(values: list[float]) -> float | None:
    return round(sorted(values)[int(0.99 * (len(values) - 1))], 2) if values else None


def leftovers(folder: Path) -> int:
    """Processes of this run that are still there."""
    found = subprocess.run(["pgrep", "-cf", str(folder)], capture_output=True, text=True)
    return int(found.stdout or 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--duration", type=float, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--stages", type=int, default=0, help="Nothing but so many staged cuts")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pactrain-chaos-") as name:
        folder = Path(name)
        daemons = Daemons(folder)
        stop = folder / "STOP"
        jobs = [
            Job(daemons, f"job-{n}", ("continue", "pause")[n % 2], stop) for n in range(words.jobs)
        ]
        chaos = Chaos(daemons, jobs, words.seed)
        try:
            for job in jobs:
                job.begin()
            chaos._await_steps(None)
            if words.stages:
                for _ in range(words.stages):
                    chaos.faults += 1
                    chaos.stage(chaos.random.uniform(5, 60))
            else:
                chaos.run(time.monotonic() + words.duration)
            stop.touch()
            for job in jobs:
                for rank in [*job.ranks, *job.newcomers]:
                    try:
                        rank.child.process.wait(BOUND_S)
                    except subprocess.TimeoutExpired:
                        chaos.over_bound += 1
                        rank.end(signal.SIGKILL)
        finally:
            for job in jobs:
                for rank in [*job.ranks, *job.newcomers]:
                    rank.end(signal.SIGKILL)
            daemons.stop()
        verdicts = [judge(job.lines()) for job in jobs]
        result = {
            "faults": chaos.faults,
            "steps": sum(verdict.steps for verdict in verdicts),
            "divergent_steps": sum(verdict.divergent_steps for verdict in verdicts),
            "lost_states": sum(verdict.lost_states for verdict in verdicts),
            "over_bound_waits": chaos.over_bound + sum(v.over_bound_waits for v in verdicts),
            "recovery_same_members_p99_s": p99(chaos.recovery["same_members"]),
            "recovery_kill_p99_s": p99(chaos.recovery["kill"]),
            "leftovers": leftovers(folder),
        }
    print(json.dumps(result))
    bad = ("divergent_steps", "lost_states", "over_bound_waits", "leftovers")
    return 1 if any(result[key] for key in bad) else 0


if __name__ == "__main__":
    sys.exit(main())
