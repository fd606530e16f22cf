"""The course of a session: bounded, and what can be computed from it."""

from __future__ import annotations

import dataclasses

import pytest
from fake_native import FULL
from hypothesis import given, settings
from hypothesis import strategies as st

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
        "dense_bytes": 1000,
        "link_rate": 0.0,
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
    assert (course.saving.steps, course.total.sent_bytes) == (3, 2500)
    assert course.first_saving.steps == 2
    assert course.first_saving.seconds == 22


def test_time_is_counted_by_the_mode_that_a_step_was_in(course, clock):
    step(course, clock)
    for _ in range(3):
        step(course, clock, sent=500, submitted=50)
    assert course.mode_seconds == {"FULL": 11, "COMPACTED": 33, "TERNARY": 0}
    assert sum(course.mode_seconds.values()) == course.total.seconds


def test_bytes_saved_are_fulls_less_what_was_sent(course, clock):
    step(course, clock, sent=1100)  # Headers cost FULL steps something.
    assert course.total.saved_bytes == -100
    step(course, clock, sent=300, submitted=30)
    assert course.total.saved_bytes == 600


def test_seconds_saved_are_those_of_full_steps_at_the_measured_rate(course, clock):
    step(course, clock, seconds=10.0, link_rate=400.0)
    assert course.saved_seconds is None  # Nothing was saved from.
    step(course, clock, sent=300, submitted=30, seconds=1.0, link_rate=500.0)
    step(course, clock, sent=300, submitted=30, seconds=1.0, link_rate=400.0)
    assert course.rate == 500  # The best one.
    assert course.saved_seconds == pytest.approx(2 * 1000 / 500 - 2 * 1.0)


def test_a_step_that_was_faster_than_the_measured_rate_counts_as_one(course, clock):
    step(course, clock, seconds=0.5, link_rate=100.0)
    step(course, clock, sent=500, submitted=50, seconds=0.4)
    assert course.rate == 2000
    assert course.saved_seconds == pytest.approx(0.5 - 0.4)


def test_without_a_measured_rate_nothing_is_claimed(course, clock):
    step(course, clock, seconds=2.0)
    step(course, clock, sent=500, submitted=50, seconds=0.5)
    assert course.saved_seconds is None


def test_what_fast_links_would_have_carried_sooner_is_no_saving(course, clock):
    for _ in range(3):
        step(course, clock, sent=500, submitted=50, seconds=1.0, link_rate=1e9)
    assert course.saved_seconds == pytest.approx(-3.0)


def test_few_bytes_show_no_rate_and_claim_nothing(course, clock):
    for _ in range(3):
        step(course, clock, sent=40, submitted=50, seconds=0.04, link_rate=1000.0)
    assert course.saved_seconds == 0  # 1000 bytes may take 40 ms as well.


def test_what_large_steps_have_shown_counts_for_small_ones(course, clock):
    step(course, clock, sent=500, submitted=50, seconds=1.0, link_rate=500.0)
    step(course, clock, sent=10, submitted=50, seconds=0.1, link_rate=501.0)
    sure = (1 - 0.04) / 500  # Seconds of a byte, by the first step.
    assert course.saved_seconds == pytest.approx((2000 - 510) * sure)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0.1, 100), st.integers(0, 1000), st.floats(1, 1e6)),
        min_size=1,
        max_size=20,
    )
)
def test_it_claims_no_more_than_bytes_spared_at_the_same_rate(steps):
    clock = Clock()
    course = Course(FULL, clock)
    for seconds, sent, rate in steps:
        step(course, clock, sent, 50, seconds, link_rate=rate)
    spared = course.saving.dense_bytes - course.saving.sent_bytes
    assert course.saved_seconds <= spared / course.rate + 1e-6


@pytest.mark.parametrize("codec", [Codec.FP32, Codec.BF16, Codec.LEVELS7])
def test_full_bytes_are_what_the_agent_says(course, clock, codec):
    sent = {"sent": 30, "submitted": 50, "codec": codec, "link_rate": 100.0}
    for _ in range(2):
        step(course, clock, **sent)
    assert course.saving.dense_bytes == 2000
    sure = 1 / 100 - 0.04 / 30  # Seconds of a byte.
    assert course.saved_seconds == pytest.approx((2000 - 60) * sure)
    assert course.first_saving.steps == 1


def test_a_dense_step_sent_everything(course, clock):
    step(course, clock, sent=1000, submitted=50, dense=True, link_rate=100.0)
    assert (course.total.steps, course.saving.steps) == (1, 0)


def test_one_site_saves_nothing(course, clock):
    step(course, clock, sent=0, submitted=50, dense_bytes=0)
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
