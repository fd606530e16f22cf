"""Real trainings against what was said of them, as ratios. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MOST_OFF = 0.10

Found = Mapping[str, Any]  # Of a run, as runs.py keeps it.


def seconds_to_target(found: Found) -> float | None:
    """Of the real trainers, evaluations not counted; None: they did not arrive."""
    return None if found["steps"] is None else sum(found["seconds_of_steps"][: found["steps"]])


def steps_ratio(found: Found) -> float | None:
    return None if found["steps"] is None else found["steps"] / found["committed_steps"]


def seconds_ratio(found: Found, step: str = "predicted") -> float | None:
    """Of what steps times seconds per step had said. `step`: or "formula"."""
    taken = seconds_to_target(found)
    return None if taken is None else taken / (found["committed_steps"] * found[step])


def step_ratio(found: Found) -> float | None:
    """Of a step's predicted seconds: errors of both must not make up for each other."""
    steps, seconds = steps_ratio(found), seconds_ratio(found)
    return None if steps is None or seconds is None else seconds / steps


def off(ratio: float | None) -> float:
    return float("inf") if ratio is None else abs(ratio - 1)


def is_within(found: Found) -> bool:
    return max(map(off, (steps_ratio(found), step_ratio(found), seconds_ratio(found)))) <= MOST_OFF


def twins_equal(runs: Sequence[Found]) -> list[bool]:
    """Of those that have a twin."""
    return [one["twin_is_equal"] for one in runs if "twin_is_equal" in one]


def summary(runs: Sequence[Found]) -> dict[str, Any]:
    """The last line; a worst ratio is None where a run did not arrive, or none is there."""

    def worst(ratios: Sequence[float | None]) -> float | None:
        found = max(ratios, key=off, default=None)
        return None if found is None else round(found, 4)

    return {
        "runs": len(runs),
        "worst_steps_ratio": worst([steps_ratio(one) for one in runs]),
        "worst_step_ratio": worst([step_ratio(one) for one in runs]),
        "worst_seconds_ratio": worst([seconds_ratio(one) for one in runs]),
        "worst_ratio_by_formula": worst([seconds_ratio(one, "formula") for one in runs]),
        "topologies": sorted({one["topology"] for one in runs}),
        "outside": [f"{one['topology']}, {one['row']}" for one in runs if not is_within(one)],
        "twins_equal": all(twins) if (twins := twins_equal(runs)) else None,
    }
