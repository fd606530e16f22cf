"""The course of a session: bounded, and what can be computed from it."""

from __future__ import annotations

import dataclasses

import pytest
from fake_native import FULL

from pactrain.course import MAX_CHANGES, MAX_POINTS, Course
from pactrain.types import Codec, Mode, StepResult

COMPACTED = dataclasses.replace(
    FULL, version=1, mode=Mode.COMPACTED, reason="all ranks voted for it"
)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def course(clock):
    return Course(FULL, clock)


def step(course, clock, sent=1000, submitted=100, seconds=1.0, after=FULL, **fields):
    """One of 100 elements; a FULL one sends ten bytes per element here."""
    values = {
        "step": course.total.steps,
        "attempts": 1,
        "dense": False,
        "mode": Mode.FULL if submitted == 100 else Mode.COMPACTED,
        "codec": Codec.FP32,
        "sent_bytes": sent,
        "received_bytes": sent // 2,
        "elements": 100,
        "submitted_elements": submitted,
        "wait_seconds": seconds / 2,
        "next": after,
    }
    clock.now += 10.0  # Of compute.
    course.begin()
    clock.now += seconds
    return course.add(StepResult(**{**values, **fields}))


def test_a_change_of_mode_is_told_once_with_its_reason(course, clock):
    assert step(course, clock) is None
    change = step(course, clock, after=COMPACTED)
    assert (change.steps, change.what) == (2, "COMPACTED fp32")
    assert change.reason == "all ranks voted for it"
    again = dataclasses.replace(COMPACTED, version=2)
    assert step(course, clock, after=again) is None
    assert [change.what for change in course.changes] == ["FULL fp32", "COMPACTED fp32"]


def test_steps_are_counted_by_what_travelled(course, clock):
    step(course, clock)
    for _ in range(3):
        step(course, clock, sent=500, submitted=50)
    assert course.travelled == {"FULL fp32": 1, "COMPACTED fp32": 3}
    assert (course.full_steps, course.total.sent_bytes) == (1, 2500)
    assert course.first_saving.steps == 2
    assert course.first_saving.seconds == 22


def test_seconds_saved_are_those_of_full_steps_at_the_fastest_rate(course, clock):
    step(course, clock, seconds=2.0)
    assert course.saved_seconds is None  # Nothing was saved from.
    step(course, clock, sent=500, submitted=50, seconds=0.5)
    assert course.rate == 1000
    assert course.full_step_bytes == 1000
    assert course.saved_seconds == pytest.approx(1.0 - 0.5)


def test_without_full_steps_their_bytes_follow_from_those_of_exact_ones(course, clock):
    step(course, clock, sent=500, submitted=50)
    assert course.full_step_bytes == 1000
    other = Course(FULL, clock)
    step(other, clock, sent=250, submitted=50, codec=Codec.BF16)
    assert other.full_step_bytes == 1000
    levels = Course(FULL, clock)
    step(levels, clock, sent=30, codec=Codec.LEVELS7, mode=Mode.TERNARY)
    assert levels.full_step_bytes == 400
    assert levels.first_saving.steps == 1


def test_a_dense_step_sent_everything(course, clock):
    step(course, clock, sent=1000, submitted=50, dense=True)
    assert course.full_steps == 1
    assert course.full_step_bytes == 1000


def test_one_site_saves_nothing(course, clock):
    step(course, clock, sent=0, submitted=50)
    assert course.saved_seconds is None


def test_points_are_bounded_and_lose_nothing(course, clock):
    for _ in range(3 * MAX_POINTS + 1):
        step(course, clock)
    assert MAX_POINTS / 2 <= len(course.points) <= MAX_POINTS
    assert sum(point.steps for point in course.points) == 3 * MAX_POINTS + 1
    assert sum(point.sent_bytes for point in course.points) == course.total.sent_bytes
    assert course.points[-1].seconds == course.total.seconds


def test_changes_are_bounded(course, clock):
    for number in range(2 * MAX_CHANGES):
        step(course, clock, after=(COMPACTED, FULL)[number % 2])
    assert len(course.changes) == MAX_CHANGES
    assert course.changes[0].steps == 0
    assert course.forgotten_changes == MAX_CHANGES + 1
