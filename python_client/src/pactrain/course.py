"""The course of a session: what its steps were, in a bounded number of points."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from .types import Codec, Decision, Mode, StepResult

MAX_POINTS = 512
MAX_CHANGES = 128
_EXACT = (Codec.FP32, Codec.BF16)
_PUT_OFF_SECONDS = 0.04  # An acknowledgement, by Linux: few bytes take as long as many.


@dataclass
class Point:
    """Some steps in a row, added up; `seconds` is when the last of them was committed,
    since the session began."""

    steps: int = 0
    seconds: float = 0.0
    exchange_seconds: float = 0.0  # From the first bucket to the commit.
    wait_seconds: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    dense_bytes: int = 0  # What FULL had sent, in fp32.
    elements: int = 0
    submitted_elements: int = 0

    @property
    def saved_bytes(self) -> int:
        """As pactrain_coordinator_saved_bytes, which is of all agents."""
        return self.dense_bytes - self.sent_bytes

    def add(self, other: Point) -> None:
        for name, value in asdict(other).items():
            if name != "seconds":
                setattr(self, name, getattr(self, name) + value)
        self.seconds = other.seconds


@dataclass(frozen=True)
class Change:
    """From the step after so many steps of this session on, `what` travels."""

    steps: int
    seconds: float
    what: str
    reason: str


class Course:
    """What the steps of a session add up to. Written by one thread at a time."""

    def __init__(
        self, decision: Decision, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._start = self._began = clock()
        self._stride = 1  # Steps of a point.
        self.points: list[Point] = []
        self.total = Point()
        self.first_compacted_step = 0  # From 1; 0: none was yet.
        self.first_ternary_step = 0
        self.failed_steps = 0
        self.retried_steps = 0
        self.dense_steps = 0
        self.buffer_syncs = 0
        self.last: StepResult | None = None
        self.reported: dict[str, float] = {}
        self.travelled: Counter[str] = Counter()  # Steps by "MODE codec".
        self.mode_seconds: dict[str, float] = {mode.name: 0.0 for mode in Mode}
        self.first_saving: Point | None = None  # Up to the first step that sent less.
        self.saving = Point()  # Steps that sent less than all in fp32 or bf16.
        self._measured_rate = 0.0  # By the agent; bytes per second.
        self._most_bytes = 0  # Of a step: such ones show what a byte takes,
        self._byte_seconds = 0.0  # at least; as savings.h of the coordinator has it.
        self._fastest_rate = 0.0  # Of a step.
        self.changes = [Change(0, 0.0, what(decision), decision.reason)]
        self.forgotten_changes = 0

    @property
    def seconds(self) -> float:
        return self._clock() - self._start

    def begin(self) -> None:
        """The first bucket of a step is there."""
        self._began = self._clock()

    def add(self, result: StepResult) -> Change | None:
        """A step was committed. Returns what changes with the next one."""
        now = self._clock()
        step = Point(
            steps=1,
            seconds=now - self._start,
            exchange_seconds=now - self._began,
            wait_seconds=result.wait_seconds,
            sent_bytes=result.sent_bytes,
            received_bytes=result.received_bytes,
            dense_bytes=result.dense_bytes,
            elements=result.elements,
            submitted_elements=result.submitted_elements,
        )
        self.mode_seconds[result.mode.name] += now - self._start - self.total.seconds
        self.total.add(step)
        self._count(result)
        self._keep(step)
        self.travelled[f"{result.mode.name} {result.codec.words}"] += 1
        self._measure(step, result)
        return self._decide(result.next)

    def _count(self, result: StepResult) -> None:
        steps = self.total.steps
        if result.mode == Mode.COMPACTED and not result.dense:
            self.first_compacted_step = self.first_compacted_step or steps
        if result.mode == Mode.TERNARY and not result.dense:
            self.first_ternary_step = self.first_ternary_step or steps
        self.retried_steps += result.attempts > 1
        self.dense_steps += result.dense
        self.last = result

    def _keep(self, step: Point) -> None:
        if self.points and self.points[-1].steps < self._stride:
            self.points[-1].add(step)
            return
        if len(self.points) == MAX_POINTS:
            self._stride *= 2
            halves = zip(self.points[::2], self.points[1::2], strict=True)
            for first, second in halves:
                first.add(second)
            self.points = self.points[::2]
        self.points.append(Point(**asdict(step)))

    def _measure(self, step: Point, result: StepResult) -> None:
        rate = self._measured_rate = max(self._measured_rate, result.link_rate)
        if rate and step.sent_bytes and 2 * step.sent_bytes >= self._most_bytes:
            self._most_bytes = max(self._most_bytes, step.sent_bytes)
            put_off = _PUT_OFF_SECONDS / step.sent_bytes
            self._byte_seconds = max(0.0, 1 / rate - put_off)
        if step.exchange_seconds > 0:
            rate = step.sent_bytes / step.exchange_seconds
            self._fastest_rate = max(self._fastest_rate, rate)
        whole = result.submitted_elements == result.elements
        if result.dense or (whole and result.codec in _EXACT):
            return
        self.saving.add(step)
        if self.first_saving is None:
            self.first_saving = Point(**asdict(self.total))

    @property
    def rate(self) -> float:
        """Bytes per second at which FULL would have left this node: the agent's best
        measured rate, or that of the fastest step if it was faster; 0: not measured."""
        if not self._measured_rate:
            return 0.0
        return max(self._measured_rate, self._fastest_rate)

    @property
    def saved_seconds(self) -> float | None:
        """Of the steps that sent less: what FULL would have taken at `rate`, less what
        they took; no more than the bytes spared are sure to have cost. Below 0: they
        took longer. None: no rate, or nothing was saved from.

        What an exchange hides behind computing is in what they took. The coordinator's
        saved_seconds is of all agents and compares with FULL as measured, or with what
        rates are sure of without round trips: it may be more, and less.
        """
        if not self.rate or not self.saving.steps:
            return None
        sure = self.saving.saved_bytes * min(self._byte_seconds, 1 / self.rate)
        return min(
            self.saving.dense_bytes / self.rate - self.saving.exchange_seconds, sure
        )

    def _decide(self, decision: Decision) -> Change | None:
        now = what(decision)
        if now == self.changes[-1].what:
            return None
        change = Change(self.total.steps, self.seconds, now, decision.reason)
        if len(self.changes) == MAX_CHANGES:
            del self.changes[1]  # How it began says more.
            self.forgotten_changes += 1
        self.changes.append(change)
        return change

    def flat(self) -> dict[str, float]:
        """For any logger: names start with "pactrain/"."""
        values: dict[str, float] = {
            "steps": self.total.steps,
            "first_compacted_step": self.first_compacted_step,
            "first_ternary_step": self.first_ternary_step,
            "failed_steps": self.failed_steps,
            "retried_steps": self.retried_steps,
            "dense_steps": self.dense_steps,
            "buffer_syncs": self.buffer_syncs,
            "sent_bytes": self.total.sent_bytes,
            "received_bytes": self.total.received_bytes,
            "wait_seconds": self.total.wait_seconds,
            **self.reported,
        }
        if self.last is not None:
            last = self.last
            values |= {
                "step": last.step,
                "mode": last.mode,
                "codec": last.codec,
                "dense": last.dense,
                "attempts": last.attempts,
                "step_sent_bytes": last.sent_bytes,
                "step_received_bytes": last.received_bytes,
                "step_wait_seconds": last.wait_seconds,
                "elements": last.elements,
                "submitted_elements": last.submitted_elements,
                "ratio": last.elements / max(1, last.submitted_elements),
            }
        return {f"pactrain/{name}": float(value) for name, value in values.items()}

    def record(self) -> dict[str, Any]:
        """Plain values, for a file."""
        fields = asdict(Point())
        return {
            "points": {f: [getattr(p, f) for p in self.points] for f in fields},
            "changes": [asdict(change) for change in self.changes],
        }


def what(decision: Decision) -> str:
    """ "COMPACTED fp32", say."""
    return f"{decision.mode.name} {decision.codec.words}"
