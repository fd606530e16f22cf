"""What happens to a cell: one fault after the other, and how long each job takes to train again."""

from __future__ import annotations

import math
import random
import re
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable

from cell import AGENTS, Cell, ChaosError
from job import SITES, Job, Rank

BOUND_S = 60.0  # Of any wait for the next step; while programs start it does not run,
START_S = 180.0  # but for so long.
REPLACED_S = 30.0  # Of that of a launch that replaces, without the start of its programs.
MOST_CUT_S = 30.0  # In a mix of faults; stages take up to:
MOST_STAGE_S = 60.0

# What ranks of both languages end with.
REPLACED = re.compile(r"is over: launch '.*' of \d+ ranks replaced it on purpose .* at \d{4}-")

Fault = Callable[[], float | None]


class Chaos:
    """Faults of one cell. `faults` and `recovered_s` are by kind; times are in seconds."""

    def __init__(self, cell: Cell, seed: str, say: Callable[[str], None]) -> None:
        self.cell = cell
        self.faults: dict[str, int] = defaultdict(int)
        self.recovered_s: dict[str, list[float]] = defaultdict(list)
        self.late: list[str] = []  # A line for each wait over its bound.
        self._random = random.Random(seed)
        self._say = say
        self._often: dict[Fault, int] = {  # In each round.
            self.kill_trainer: 3,
            self.stop_trainer: 4,
            self.stop_trainer_past_deadline: 1,
            self.kill_agent: 5,
            self.stop_agent: 3,
            self.restart_agent: 2,
            self.kill_coordinator: 3,
            self.cut_off: 4,
            self.newcomers_in_a_cut: 1,
            self.kill_all: 1,
            self.replace_the_living: 1,
        }

    def mix(self, until: float) -> None:
        """Rounds of all kinds of faults; the stages come first, so that each run has them."""
        first: list[Fault] = [self.kill_all, self.replace_the_living, self.newcomers_in_a_cut]
        while time.monotonic() < until:
            faults = [fault for fault, times in self._often.items() for _ in range(times)]
            self._random.shuffle(faults)
            for fault in [*first, *(fault for fault in faults if fault not in first)]:
                if time.monotonic() >= until and fault not in first:
                    return
                self._make(fault)
            first = []

    def stage(self, rounds: int) -> None:
        """Newcomers of all jobs, each round in a cut of their members."""
        for _ in range(rounds):
            self._make(lambda: self.newcomers_in_a_cut(MOST_STAGE_S), "newcomers_in_a_cut")

    def begin(self) -> None:
        if self._await_steps("the first", time.monotonic()) is None:
            raise ChaosError("The jobs did not begin: see the logs.")

    def _make(self, fault: Fault, name: str = "") -> None:
        kind = name or fault.__name__
        self._say(kind)
        # Each job whose newcomer comes in the midst of a cut is a sequence of its own.
        self.faults[kind] += len(self.cell.jobs) if kind == "newcomers_in_a_cut" else 1
        seconds = fault()
        if seconds is not None:
            self.recovered_s[kind].append(seconds)
        self._sleep(self._random.uniform(0.1, 0.6))

    def _sleep(self, seconds: float) -> None:
        self.cell.wait(lambda: False, time.monotonic() + seconds)

    def _over(self, what: str) -> None:
        self.late.append(what)
        self._say(f"OVER ITS BOUND: {what}")

    def _await_steps(self, what: str, since: float) -> float | None:
        """Seconds from `since` until all members of all jobs have made a step."""
        batches = {job.name: job.batch(since) for job in self.cell.jobs}

        def slowest() -> float | None:
            found = [job.recovered(since, batches[job.name]) for job in self.cell.jobs]
            whole = [moment for moment in found if moment is not None]
            return max(whole) if len(whole) == len(found) else None

        if not self._waits(lambda: slowest() is not None, self.cell.jobs_members):
            waiting = [job.words for job in self.cell.jobs
                       if job.recovered(since, batches[job.name]) is None]  # fmt: skip
            self._over(f"{what}: no step for {BOUND_S:.0f} s in {', '.join(waiting)}")
        last = slowest()
        return None if last is None else last - since

    def _waits(self, done: Callable[[], bool], ranks: Callable[[], list[Rank]]) -> bool:
        """Whether it was done within the bound, from when all these programs had started."""
        start = time.monotonic()

        def over() -> bool:
            now = time.monotonic()
            attached = [rank.attached() for rank in ranks()]
            since = now if 0 in attached else max([start, *attached])
            return now > min(since, start + START_S) + BOUND_S

        self.cell.wait(lambda: done() or over(), math.inf)
        return done()

    def _member(self) -> Rank:
        return self._random.choice(self._random.choice(self.cell.jobs).members)

    def _members_agent(self) -> int:
        return self._random.randrange(SITES)

    def kill_trainer(self) -> float | None:
        killed = time.monotonic()
        self._member().send(signal.SIGKILL)
        return self._await_steps("kill_trainer", killed)

    def _stop_trainer(self, low: float, high: float) -> float | None:
        rank = self._member()
        rank.send(signal.SIGSTOP)
        time.sleep(self._random.uniform(low, high))
        rank.send(signal.SIGCONT)
        return self._await_steps("stop_trainer", time.monotonic())

    def stop_trainer(self) -> float | None:
        return self._stop_trainer(0.5, 4)

    def stop_trainer_past_deadline(self) -> float | None:
        return self._stop_trainer(8, 10)

    def kill_agent(self) -> float | None:
        number = self._members_agent()
        process = self.cell.agents[number].process
        killed = time.monotonic()
        process.kill()
        process.wait()
        self.cell.agents[number] = self.cell.start_agent(number)
        return self._await_steps("kill_agent", killed)

    def restart_agent(self) -> float | None:
        number = self._random.randrange(AGENTS)
        process = self.cell.agents[number].process
        ended = time.monotonic()
        process.terminate()
        if process.wait(BOUND_S) != 0:
            raise ChaosError(str(self.cell.agents[number].error("did not stop in order")))
        self.cell.agents[number] = self.cell.start_agent(number)
        return self._await_steps("restart_agent", ended)

    def stop_agent(self) -> float | None:
        process = self.cell.agents[self._members_agent()].process
        process.send_signal(signal.SIGSTOP)
        time.sleep(self._random.uniform(0.5, 4))
        process.send_signal(signal.SIGCONT)
        return self._await_steps("stop_agent", time.monotonic())

    def kill_coordinator(self) -> float | None:
        killed = time.monotonic()
        self.cell.coordinator.process.kill()
        self.cell.coordinator.process.wait()
        self.cell.coordinator = self.cell.start_coordinator()
        return self._await_steps("kill_coordinator", killed)

    def cut_off(self) -> float | None:
        agent = self._members_agent()
        self._cut(agent, self._how())
        self._sleep(self._random.uniform(0.5, 5))
        self.cell.network.heal(self.cell.hosts[agent])
        return self._await_steps("cut_off", time.monotonic())

    def _cut(self, agent: int, how: str) -> None:
        self.cell.network.cut(self.cell.hosts[agent], how)

    def _how(self) -> str:
        return self._random.choice(("drop", "reset"))

    def newcomers_in_a_cut(self, most_s: float = MOST_CUT_S) -> float | None:
        """Members are cut off and train on; a newcomer of each job is launched meanwhile."""
        cut_s = self._random.uniform(5, most_s)
        launched_s = self._random.uniform(0.5, cut_s / 2)
        how = self._how()
        cut = time.monotonic()
        for agent in range(SITES):
            self._cut(agent, how)
        self._sleep(launched_s)
        newcomers = {job.name: job.join() for job in self.cell.jobs}
        self._sleep(cut_s - launched_s)
        for job in self.cell.jobs:
            if job.recovered(cut + cut_s / 2, job.batch(cut)) is None:
                self._over(f"{job.words} did not train while it was cut off")
        passed = [self.cell.network.heal(self.cell.hosts[agent]) for agent in range(SITES)]
        if not all(passed):
            raise ChaosError(f"A cut of {cut_s:.0f} s ({how}) cut nothing: {passed} packets.")
        recovered = self._await_steps("newcomers_in_a_cut", time.monotonic())
        for job in self.cell.jobs:
            self._see_off(job, newcomers[job.name])
        self._await_steps("newcomers_in_a_cut, when they had left", time.monotonic())
        return recovered

    def _see_off(self, job: Job, newcomer: Rank) -> None:
        """It has trained, too, and leaves."""
        trained = self._waits(
            lambda: newcomer.first(0, 0) is not None or not newcomer.lives(), lambda: [newcomer]
        )
        job.dismiss(newcomer)
        ended = self.cell.wait(lambda: not newcomer.lives(), time.monotonic() + BOUND_S)
        if not trained or not ended:
            what = "ended" if trained else "made a step"
            self._over(f"the newcomer of {job.words} had not {what} after {BOUND_S:.0f} s")
        newcomer.send(signal.SIGKILL)
        job.note(newcomer)

    def kill_all(self) -> float | None:
        """All nodes of the jobs are gone at once; they go on elsewhere, from checkpoints."""
        if not self._all_saved():
            return None
        killed = time.monotonic()
        self._take_away(range(SITES))
        return self._replace("kill_all", killed)

    def replace_the_living(self) -> float | None:
        """The same, but one site's nodes are there again once others have taken their place."""
        if not self._all_saved():
            return None
        site = self._random.randrange(SITES)
        host = self.cell.hosts[site]
        ranks = [rank for job in self.cell.jobs for rank in job.members_of(site)]
        is_cut = self._random.random() < 0.5
        processes = [self.cell.agents[site].process, *(rank.child.process for rank in ranks)]
        lost = time.monotonic()
        if is_cut:
            self._cut(site, self._how())
        else:
            for process in processes:
                process.send_signal(signal.SIGSTOP)
        self._say(f"site {site} is {'cut off' if is_cut else 'stopped'}, the other one killed")
        self._take_away([other for other in range(SITES) if other != site])
        agent = self.cell.move_agent(site)
        slowest = self._replace("replace_the_living", lost)
        if is_cut and not self.cell.network.heal(host):
            raise ChaosError("A cut of those that were replaced cut nothing.")
        if not is_cut:
            for process in processes:
                process.send_signal(signal.SIGCONT)
        self.cell.wait(lambda: not any(rank.lives() for rank in ranks), time.monotonic() + BOUND_S)
        for rank in ranks:
            self._check_replaced(rank)
        agent.process.terminate()
        if agent.process.wait(BOUND_S) != 0:
            raise ChaosError(str(agent.error("did not stop in order")))
        return slowest

    def _check_replaced(self, rank: Rank) -> None:
        """It has ended by itself, with who has replaced it and when (pactrain.ReplacedError)."""
        said = rank.child.log.read_text(errors="replace")
        if rank.lives() or not REPLACED.search(said):
            how = "lives" if rank.lives() else f"ended with {rank.child.process.poll()}"
            self._over(f"{rank.child.name} was replaced, and {how}: {said[-400:]!r}")
        rank.send(signal.SIGKILL)

    def _all_saved(self) -> bool:
        for job in self.cell.jobs:
            if not self.cell.wait(job.saved, time.monotonic() + BOUND_S):
                self._over(f"{job.words} wrote no checkpoint")
                return False
        return True

    def _take_away(self, sites: Iterable[int]) -> None:
        """The nodes of members with all that is on them; so nobody says that they are dead."""
        sites = list(sites)
        ranks = [rank for job in self.cell.jobs for site in sites for rank in job.members_of(site)]
        for site in sites:
            self.cell.agents[site].process.kill()
        for rank in ranks:
            rank.send(signal.SIGKILL)
        for process in [*(rank.child.process for rank in ranks),
                        *(self.cell.agents[site].process for site in sites)]:  # fmt: skip
            process.wait()
        for site in sites:
            self.cell.forget(site)
            self.cell.agents[site] = self.cell.start_agent(site)

    def _replace(self, what: str, since: float) -> float:
        """How long the slowest job takes to its first step, without the start of its programs."""
        for job in self.cell.jobs:
            job.replace()
        self._await_steps(what, since)
        slowest = 0.0
        for job in self.cell.jobs:
            steps = [step for rank in job.members if (step := rank.first(since, 0)) is not None]
            if steps:
                slowest = max(slowest, min(steps) - max(rank.attached() for rank in job.members))
        if slowest > REPLACED_S:
            self._over(f"{what}: the first step came after {slowest:.0f} s")
        return slowest
