"""What a chaos job has to come to, exactly, and the verdict on what its ranks wrote.

All gradients are multiples of 60, so means over 1 to 6 ranks are exact integers in float32,
in whichever order they are added. An element for each seat tells whose gradients are in a
step. So what every rank's weights are after each step is known from the steps alone.
rank.py and rank.cc train by the same rules.

A rank's log has a line of JSON for each committed step, and one before it attaches.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

SEATS = 8
ELEMENTS = 3000
DENSE = 1000  # Elements from here on are kept by the masks only where they are even.
MOMENTUM = 0.5
CHECKPOINT_STEPS = 10
UNIT = 60
MOST_RANKS = 6

Values = npt.NDArray[np.float32]
Line = Mapping[str, Any]

_INDEX = np.arange(ELEMENTS)
KEPT = (_INDEX < DENSE) | (_INDEX % 2 == 0)
_FACTORS = (2 * np.arange(2 * ELEMENTS, dtype=np.uint64) + np.uint64(1)) * np.uint64(
    0x9E3779B97F4A7C15
)


def seat_value(batch: int) -> int:
    return (1 + batch % 5) * (1 if batch % 2 else -1)


def common(batch: int) -> Values:
    """The mean of every step, but for the seats' elements."""
    values = np.where(KEPT, UNIT * ((batch * 31 + _INDEX * 17) % 9 - 4), 0)
    values[:SEATS] = 0
    return values.astype(np.float32)


def gradient(batch: int, seat: int) -> Values:
    values = common(batch)
    values[seat] = UNIT * seat_value(batch)
    return values


def mean(batch: int, seats: Sequence[int]) -> Values:
    """Of the gradients of these seats, exactly."""
    values = common(batch)
    values[list(seats)] = np.float32(UNIT * seat_value(batch) // len(seats))
    return values


def seats_in(batch: int, of: Values) -> list[int] | None:
    """Whose gradients a mean is of; None: it is no mean of this batch's gradients."""
    seats = [int(seat) for seat in np.flatnonzero(of[:SEATS])]
    return (
        seats if 0 < len(seats) <= MOST_RANKS and np.array_equal(of, mean(batch, seats)) else None
    )


def digest(weights: Values, velocity: Values) -> str:
    """Of the bits of both, as 16 hexadecimal digits."""
    bits = np.concatenate([weights, velocity]).view(np.uint32).astype(np.uint64)
    return f"{int((bits * _FACTORS).sum()):016x}"


@dataclass
class State:
    weights: Values = field(default_factory=lambda: np.zeros(ELEMENTS, np.float32))
    velocity: Values = field(default_factory=lambda: np.zeros(ELEMENTS, np.float32))

    def after(self, batch: int, seats: Sequence[int]) -> State:
        """As torch's SGD does it, with a learning rate of 1."""
        velocity = self.velocity * np.float32(MOMENTUM) + mean(batch, seats)
        return State(self.weights - velocity, velocity)


@dataclass
class Verdict:
    """Of one job. `why`: a line for each thing that is wrong."""

    steps: int = 0
    divergent_steps: int = 0
    lost_states: int = 0
    over_bound_waits: int = 0
    why: list[str] = field(default_factory=list)

    def lost(self, why: str) -> None:
        self.lost_states += 1
        self.why.append(f"lost state: {why}")


@dataclass
class Lineage:
    """The steps of one, by batch, with all lines about each."""

    id: str
    steps: dict[int, list[Line]] = field(default_factory=dict)
    states: dict[int, State] = field(default_factory=dict)  # After each batch.

    @property
    def first(self) -> int:
        return min(self.steps)


def steps_of(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if "batch" in line]


def lineages_of(processes: Sequence[Sequence[Line]]) -> list[Lineage]:
    """In the order in which their first steps were written."""
    lines = sorted(
        (line for process in processes for line in steps_of(process)), key=lambda line: line["time"]
    )
    found: dict[str, Lineage] = {}
    for line in lines:
        lineage = found.setdefault(line["lineage"], Lineage(line["lineage"]))
        lineage.steps.setdefault(line["batch"], []).append(line)
    return list(found.values())


def judge(processes: Sequence[Sequence[Line]], replaced: int, bound_s: float) -> Verdict:
    """`processes`: the lines of each. `replaced`: how often the job began anew from its
    checkpoint on purpose. `bound_s`: of any wait for the job's next step.
    """
    verdict = Verdict()
    for lines in processes:
        for before, line in itertools.pairwise(steps_of(lines)):
            if line["lineage"] == before["lineage"] and line["batch"] <= before["batch"]:
                verdict.lost(f"a rank went back from batch {before['batch']} to {line['batch']}")
    lineages = lineages_of(processes)
    last: Lineage | None = None
    for number, lineage in enumerate(lineages):
        state = _beginning(lineage, last)
        if state is None or number > replaced:
            verdict.lost(
                f"lineage {lineage.id[:8]} began after batch {lineage.first - 1}, as number "
                f"{number + 1} of a job that was replaced {replaced} times"
            )
        _judge_lineage(lineage, state or State(), verdict)
        last = lineage
    _judge_waits(processes, bound_s, verdict)
    return verdict


def _judge_waits(processes: Sequence[Sequence[Line]], bound_s: float, verdict: Verdict) -> None:
    """Between two steps; while a program starts nothing is waited for but the machine."""
    lines = sorted((line for lines in processes for line in lines), key=lambda line: line["time"])
    since: float | None = None
    for line in lines:
        if since is not None and "batch" in line and line["time"] - since > bound_s:
            verdict.over_bound_waits += 1
            verdict.why.append(f"no step for {line['time'] - since:.1f} s from {since:.1f} on")
        since = line["time"]


def _beginning(lineage: Lineage, last: Lineage | None) -> State | None:
    """What it began with: nothing, or the last one's checkpoint; None: neither."""
    start = lineage.first - 1
    if start == 0 and last is None:
        return State()
    if last is not None and start % CHECKPOINT_STEPS == 0 and start in last.states:
        return State(weights=last.states[start].weights)
    return None


def _judge_lineage(lineage: Lineage, state: State, verdict: Verdict) -> None:
    for batch in range(lineage.first, max(lineage.steps) + 1):
        lines = lineage.steps.get(batch)
        if lines is None:
            verdict.lost(f"nobody wrote batch {batch} of lineage {lineage.id[:8]}")
            continue
        verdict.steps += 1
        generations = {line["generation"] for line in lines}
        if len(generations) > 1:
            verdict.lost(f"batch {batch} was made in generations {sorted(generations)}")
        seats = {tuple(line["seats"] or ()) for line in lines}
        if len(seats) > 1 or not all(seats):
            verdict.divergent_steps += 1
            verdict.why.append(f"batch {batch} is no sum, or not one: of the seats {sorted(seats)}")
            continue
        (only,) = seats
        state = lineage.states[batch] = state.after(batch, only)
        expected = digest(state.weights, state.velocity)
        wrong = {line["digest"] for line in lines} - {expected}
        ranks = {line["ranks"] for line in lines} - {len(only)}
        if wrong or ranks:
            verdict.divergent_steps += 1
            verdict.why.append(
                f"batch {batch} of seats {only} came to {sorted(wrong)}, not {expected}, at "
                f"ranks of worlds of {sorted(ranks) or len(only)}"
            )
