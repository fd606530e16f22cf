"""Attacks on real daemons: python tests/attack/run.py BIN [--short].

BIN: Bazel's bin folder, built. Each attack of table.txt that is a test is run as it is there
(--short: not; CI has them in its tests). The live ones are run on a coordinator, two agents and
a job that trains, beside which the attacker has a quarter of a core where there are cgroups;
all in a network namespace of its own where that may be had. The last line is one JSON object;
the exit status is 0 if no attack succeeded.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from quota import quarter_core
from table import CC, LIVE, ROOT, Attack, attacks
from victims import Victims

from bench.processes import Children, interrupt_on_signals

IN_NAMESPACE = "PACTRAIN_ATTACK_NAMESPACE"
# Another build of the daemons can be attacked with PACTRAIN_TEST_BIN.
DAEMONS = Path(os.environ.get("PACTRAIN_TEST_BIN", ROOT / "out/bin"))
MOST_RATIO = 1.2
MOST_GAP_S = 1.0
BACK_S = 1.0  # So long after an attack a step takes what it took before.
MOST_GROWTH_MIB = 256
TEST_TIMEOUT_S = 600
READY_S = 120.0
TURN_S, SHORT_TURNS, WHOLE_TURNS, TRIES = 0.7, 2, 6, 3


@dataclass
class Outcome:
    """Of one attack. `why`: how it succeeded; empty: it did not."""

    why: str
    ratio: float = 1.0
    growth_mib: float = 0.0


def own_namespace() -> None:
    """Starts this again with nothing but a loopback of its own, if that may be."""
    if IN_NAMESPACE in os.environ or os.geteuid() != 0:
        return
    os.environ[IN_NAMESPACE] = "1"
    again = [sys.executable, *sys.argv]
    script = 'ip link set lo up && exec "$@"'
    tried = subprocess.run(["unshare", "-n", "true"], check=False, capture_output=True)
    if tried.returncode == 0:
        os.execvp("unshare", ["unshare", "-n", "sh", "-c", script, "sh", *again])


def of_test(attack: Attack, bin_folder: Path) -> Outcome:
    """It succeeded if its test fails, or is not there any more."""
    with tempfile.TemporaryDirectory() as scratch:
        if attack.kind == CC:
            target, names = attack.what.split(" ", 1)
            program = bin_folder / target
            folder = Path(f"{program}.runfiles") / "pactrain"
            argv = [str(program), f"--gtest_filter={names}"]
        else:
            folder = ROOT
            argv = [sys.executable, "-m", "pytest", "-q", "-x", *attack.what.split()]
        done = subprocess.run(
            argv,
            cwd=folder,
            env={**os.environ, "TEST_TMPDIR": scratch},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TEST_TIMEOUT_S,
            check=False,
        )
    ran = (
        "[  PASSED  ] 0 tests" not in done.stdout if attack.kind == CC else " passed" in done.stdout
    )
    if done.returncode == 0 and ran:
        return Outcome("")
    return Outcome(f"exit status {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")


def scrapes(victims: Victims) -> bool:
    try:
        with urllib.request.urlopen(f"http://{victims.metrics}/metrics", timeout=3) as answer:
            return b"pactrain_coordinator_term" in answer.read()
    except OSError:
        return False


def new_job(victims: Victims) -> bool:
    with victims.job(f"late-{time.monotonic_ns()}") as job:
        return job.wait_for_steps(2)


# What has to work beside an attack, beyond the job that trains.
BESIDE: dict[str, Callable[[Victims], bool]] = {
    "waiting-jobs": new_job,
    "slow-requests": scrapes,
}


@dataclass
class Answers:
    """What an operator was told meanwhile."""

    all_given: bool = True
    slowest_s: float = 0.0

    def ask_for(self, victims: Victims, seconds: float) -> None:
        """At least once, then every fifth of a second."""
        end = time.monotonic() + seconds
        while True:
            answered, took = victims.asks("jobs")
            self.all_given = self.all_given and answered
            self.slowest_s = max(self.slowest_s, took)
            if time.monotonic() >= end:
                return
            time.sleep(0.2)


def live(attack: Attack, victims: Victims, children: Children, turns: int) -> Outcome:
    """The job's steps beside it and without it, in turns, and whether all others are served.

    Without it somebody computes in its place, with as much of a core: what is compared is what
    the daemons do for the attacker, and not what he takes of the machine himself.
    """
    where = {
        "large-slot": f"unix:{victims.sockets[0]}",
        "slow-requests": victims.metrics,
    }.get(attack.what, victims.grpc.replace("localhost", "127.0.0.1"))
    with victims.job(f"job-{attack.what}") as job, quarter_core() as processes:
        if not job.wait_for_steps(20):
            return Outcome("the job did not start")
        argv = [sys.executable, str(Path(__file__).with_name("attacker.py")), attack.what]
        who = [where, str(victims.pki), victims.attacker()]
        evil = children.start(f"evil-{attack.what}", [*argv, *who], {})
        evil.wait_for("ready", READY_S)
        idle = children.start(f"idle-{attack.what}", [sys.executable, "-c", "while True: pass"], {})
        for child in (evil, idle):
            if processes is not None:
                processes.write_text(str(child.process.pid))
        resident = victims.resident_mib()
        beside, without = Answers(), Answers()
        spans: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for turn in range(2 * turns):
            attacks_now = turn % 2 == 1
            for child, works in ((evil, attacks_now), (idle, not attacks_now)):
                child.process.send_signal(signal.SIGCONT if works else signal.SIGSTOP)
            begin = time.monotonic()
            (beside if attacks_now else without).ask_for(victims, TURN_S)
            spans[attacks_now].append((begin, time.monotonic()))
        others = attack.what not in BESIDE or BESIDE[attack.what](victims)
        attacked = evil.process.poll() is None
        evil.process.kill()
        idle.process.send_signal(signal.SIGCONT)
        ended = time.monotonic()
        without.ask_for(victims, BACK_S + TURN_S)
        afterwards = [(ended + BACK_S, time.monotonic())]
        for child in (evil, idle):
            child.process.kill()
            child.process.wait()
        before, during = job.step_seconds(spans[False]), job.step_seconds(spans[True])
        judged = turns >= WHOLE_TURNS
        ratio, back = during / before, job.step_seconds(afterwards) / before
        growth = victims.resident_mib() - resident
        gap = job.longest_gap(spans[True][0][0], spans[True][-1][1])
        whys = {
            f"an operator was not answered ({beside.slowest_s:.1f} s)": not beside.all_given,
            "others were not served": not others,
            "the attacker ended by itself": not attacked,
            "the job ended": not job.wait_for_steps(5, 10),
            # Two short turns on a machine with other work: said here, judged at night.
            f"a step took {ratio:.2f} x its median without it": judged and ratio > MOST_RATIO,
            f"a second after it a step took {back:.2f} x": judged and back > MOST_RATIO,
            f"there was no step for {gap:.1f} s": judged and gap > MOST_GAP_S,
            f"the coordinator grew by {growth:.0f} MiB": growth > MOST_GROWTH_MIB,
        }
    print(
        f"   step {before * 1e3:.1f} ms x {ratio:.2f}, a second after it x {back:.2f}, "
        f"none for {gap:.2f} s, "
        f"slowest answer {beside.slowest_s:.2f} s "
        f"(without it {without.slowest_s:.2f} s), + {growth:.0f} MiB, "
        f"{'a quarter of a core' if processes else 'no limit'}",
        flush=True,
    )
    return Outcome("; ".join(why for why, holds in whys.items() if holds), ratio, growth)


@dataclass
class Field:
    """Where attacks take place; the victims start with the first live one."""

    bin_folder: Path
    scratch: Path
    children: Children
    turns: int  # Of a live one.
    victims: Victims | None = None

    def run(self, attack: Attack) -> Outcome:
        if attack.kind != LIVE:
            try:
                return of_test(attack, self.bin_folder)
            except subprocess.TimeoutExpired:
                return Outcome(f"its test did not end within {TEST_TIMEOUT_S} s")
        if self.victims is None:
            trainer = self.bin_folder / "tests/e2e/cluster/sum_trainer"
            self.victims = Victims(self.children, DAEMONS, trainer, self.scratch)
        # Two cores and a busy machine: what is real comes again. Where the first try is above a
        # limit all are made: the last one, if that ends them, would always be the luckiest.
        tries = [live(attack, self.victims, self.children, self.turns)]
        if tries[0].why:
            print(f"   try 1 of {TRIES}: {tries[0].why}", flush=True)
            for number in range(2, TRIES + 1):
                tries.append(live(attack, self.victims, self.children, self.turns))
                print(f"   try {number} of {TRIES}: {tries[-1].why or 'within'}", flush=True)
        why = tries[-1].why if all(outcome.why for outcome in tries) else ""
        ratio = statistics.median(outcome.ratio for outcome in tries)
        return Outcome(why, ratio, max(outcome.growth_mib for outcome in tries))


def main() -> int:
    own_namespace()
    interrupt_on_signals()
    words = [word for word in sys.argv[1:] if word != "--short"]
    short = len(words) < len(sys.argv) - 1
    bin_folder = Path(words[0]).resolve()
    outcomes: dict[str, Outcome] = {}
    chosen = [a for a in attacks() if not short or (a.kind == LIVE and a.short)]
    with (
        tempfile.TemporaryDirectory(prefix="pactrain-attack-", dir="/tmp") as scratch,
        Children(Path(scratch)) as children,
    ):
        field = Field(bin_folder, Path(scratch), children, SHORT_TURNS if short else WHOLE_TURNS)
        for attack in chosen:
            print(f"== {attack.name}", flush=True)
            outcomes[attack.name] = outcome = field.run(attack)
            if outcome.why:
                print(f"   SUCCEEDED: {outcome.why}", flush=True)
    succeeded = [name for name, outcome in outcomes.items() if outcome.why]
    print(
        json.dumps(
            {
                "attacks": len(outcomes),
                "succeeded": succeeded,
                "slowest_victim_ratio": round(max(o.ratio for o in outcomes.values()), 3),
                "coordinator_rss_growth_mib": round(
                    max(o.growth_mib for o in outcomes.values()), 1
                ),
                "in_namespace": IN_NAMESPACE in os.environ,
            }
        )
    )
    return 1 if succeeded else 0


if __name__ == "__main__":
    sys.exit(main())
