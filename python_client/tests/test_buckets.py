"""The rule of buckets.py, which C++ trainers share."""

from __future__ import annotations

import pytest

from pactrain.buckets import Piece, PlannedBucket, plan_buckets
from pactrain.types import DType

F, B = DType.FLOAT32, DType.BFLOAT16


def plan(sizes, cap):
    """`sizes` are elements of float32, or (elements, dtype)."""
    pieces = [
        Piece(*size) if isinstance(size, tuple) else Piece(size, F) for size in sizes
    ]
    return [bucket.parameters for bucket in plan_buckets(pieces, cap)]


@pytest.mark.parametrize(
    ("cap", "expected"),
    [
        (1000, [(0, 1, 2, 3)]),
        (160, [(0, 1, 2, 3)]),  # 4 x 10 elements of 4 bytes: just the cap.
        (159, [(3,), (0, 1, 2)]),
        (80, [(2, 3), (0, 1)]),
        (40, [(3,), (2,), (1,), (0,)]),
        (1, [(3,), (2,), (1,), (0,)]),  # One parameter at least.
    ],
)
def test_a_bucket_holds_at_most_the_cap_and_the_last_comes_first(cap, expected):
    assert plan([10, 10, 10, 10], cap) == expected


def test_a_parameter_above_the_cap_is_alone():
    assert plan([5, 100, 5, 5], 40) == [(2, 3), (1,), (0,)]


def test_each_dtype_fills_buckets_of_its_own():
    sizes = [(10, B), (2, F), (10, B), (2, F), (10, B)]
    # 40 bytes: two of bfloat16; the bucket of float32 opens second.
    assert plan(sizes, 40) == [(4,), (1, 3), (0, 2)]


def test_empty_parameters_are_in_no_bucket():
    assert plan([0, 4, 0, 4], 100) == [(1, 3)]
    assert plan([0], 100) == []


def test_a_bucket_knows_its_elements_and_dtype():
    assert plan_buckets([Piece(3, B), Piece(4, B)], 100) == [
        PlannedBucket((0, 1), 7, B)
    ]
