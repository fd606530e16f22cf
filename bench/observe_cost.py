"""make bench-observe: what a Prometheus and 200 viewers of the page cost a job.

The job of observe-check, on three sites. In each round some of its steps are timed while a
Prometheus scrapes all daemons every second and VIEWERS streams of the page are read, and as many
without either; which comes first changes. They run on this machine, where they would be elsewhere,
so at the lowest priority. The last line is JSON: the median of the rounds' ratios, how far they
lie apart, and the most memory that the coordinator had, all of it. Exit status 1: a step took more
than 1 % longer, or the coordinator had more than 64 MiB.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.observe import observed
from bench.observe_faults import JOB, Stage
from bench.observe_servers import Notices
from bench.processes import Child, interrupt_on_signals

VIEWERS = 200
MOST_RATIO = 1.01
MOST_MIB = 64
LOWEST = 19
SILENT_SECONDS = 60.0


def peak_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = next(line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(kib) / 1024


@contextmanager
def looked_at(stage: Stage, viewers: int) -> Iterator[None]:
    """Prometheus scrapes, and so many look at the page."""
    prometheus = stage.daemons.named("prometheus").process
    prometheus.send_signal(signal.SIGCONT)
    assert stage.cluster.page is not None
    argv = ["-m", "bench.page_viewers", stage.cluster.page, JOB, str(viewers), str(stage.token)]
    child = stage.extras.start("viewers", [sys.executable, *argv], {})
    child.wait_for("watching", SILENT_SECONDS)
    os.setpriority(os.PRIO_PGRP, child.process.pid, LOWEST)
    yield
    if child.process.poll() is not None:
        raise child.error("ended before it was told to")
    child.process.kill()
    child.process.wait()
    prometheus.send_signal(signal.SIGSTOP)


def steps_from_now(trainer: Child, count: int) -> list[float]:
    """What the next steps take, in seconds; those that were told before are left out."""
    while trainer.line(0) is not None:
        pass
    took: list[float] = []
    batches = -1  # The first has steps of before.
    end = time.monotonic() + SILENT_SECONDS
    while len(took) < count:
        line = trainer.line(1)
        if line is None:
            if time.monotonic() > end:
                raise trainer.error(f"told of no step for {SILENT_SECONDS:.0f} s")
            continue
        end = time.monotonic() + SILENT_SECONDS
        batches += 1
        if batches > 0:
            took += json.loads(line)["steps"]
    return took


@dataclass
class Cost:
    viewers: int
    usual: list[float] = field(default_factory=list)  # Seconds of a step, by round.
    ratios: list[float] = field(default_factory=list)
    coordinator_mib: float = 0

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def good(self) -> bool:
        return self.ratio <= MOST_RATIO and self.coordinator_mib <= MOST_MIB

    def line(self) -> str:
        return json.dumps({
            "step_ms": round(statistics.median(self.usual) * 1000, 2),
            "ratio": round(self.ratio, 4),
            "least": round(min(self.ratios), 4),
            "most": round(max(self.ratios), 4),
            "viewers": self.viewers,
            "coordinator_mib": round(self.coordinator_mib, 1),
        })  # fmt: skip


def measure(rounds: int, steps: int, viewers: int) -> Cost:
    cost = Cost(viewers)
    with (
        tempfile.TemporaryDirectory(prefix="pactrain-cost-") as name,
        Notices() as notices,
        observed(Path(name), notices) as (stage, trainers),
    ):
        trainer = trainers.named(f"{JOB}-trainer-0")
        prometheus = stage.daemons.named("prometheus").process
        os.setpriority(os.PRIO_PGRP, prometheus.pid, LOWEST)  # All its threads.
        prometheus.send_signal(signal.SIGSTOP)
        for number in range(rounds):
            took: dict[bool, float] = {}
            for watched in (False, True) if number % 2 else (True, False):
                if watched:
                    with looked_at(stage, viewers):
                        took[watched] = statistics.median(steps_from_now(trainer, steps))
                else:
                    took[watched] = statistics.median(steps_from_now(trainer, steps))
            cost.ratios.append(took[True] / took[False])
            cost.usual.append(took[False])
            print(f"  round {number + 1}: a step takes {took[False] * 1000:.2f} ms, looked at "
                  f"{took[True] * 1000:.2f} ms", flush=True)  # fmt: skip
        prometheus.send_signal(signal.SIGCONT)
        cost.coordinator_mib = peak_mib(stage.coordinator.process.pid)
    return cost


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.observe_cost", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=200, help="timed in each half of a round")
    parser.add_argument("--viewers", type=int, default=VIEWERS)
    options = parser.parse_args(argv)
    interrupt_on_signals()
    cost = measure(options.rounds, options.steps, options.viewers)
    print(cost.line())
    return 0 if cost.good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
