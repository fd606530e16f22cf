"""The rule of buckets.py, which C++ trainers share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from pactrain._library import digest_of
from pactrain.buckets import Piece, plan_buckets
from pactrain.engine import DTYPES
from pactrain.layout import LayoutCache
from pactrain.parameters import ParameterTable
from pactrain.types import DType

F, B = DType.FLOAT32, DType.BFLOAT16
SHARED = Path(__file__).parents[2] / "trainer" / "cpp" / "testdata" / "buckets.txt"


class Case:
    """One case of the file that both languages read; `expected` are its lines."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cap = 0
        self.model = nn.Module()
        self.expected: list[str] = []

    def add_parameter(self, name: str, dtype: str, shape: str, strides: str) -> None:
        sizes = [
            [int(n) for n in text.split(",") if n != "()"] for text in (shape, strides)
        ]
        # Nobody writes there, so it takes no memory: one of them has 3 GB.
        weights = torch.empty_strided(*sizes, dtype=getattr(torch, dtype))
        self.model.register_parameter(name, nn.Parameter(weights))

    def actual(self) -> list[str]:
        """The same lines for what this language makes of the parameters."""
        parameters = list(self.model.parameters())
        pieces = [Piece(p.numel(), DTYPES[p.dtype]) for p in parameters]
        plan = plan_buckets(pieces, self.cap)
        if not plan:
            return ["layout none", "model none"]
        table = ParameterTable(self.model)
        cache = LayoutCache(table, digest_of)
        layouts, lines = [], []
        for bucket in plan:
            held = [parameters[index] for index in bucket]
            elements = sum(p.numel() for p in held)
            buffer = torch.empty(elements, dtype=held[0].dtype, device="meta")
            layouts.append(cache.bucket(held, buffer))
            assert layouts[-1].parameters == tuple(bucket)
            indices = ",".join(map(str, bucket))
            dtype = str(buffer.dtype).removeprefix("torch.")
            digest = layouts[-1].digest.to_bytes().hex()
            lines.append(f"bucket {indices} {elements} {dtype} {digest}")
        step = digest_of(b"".join(layout.digest.to_bytes() for layout in layouts))
        model = table.digest(digest_of)
        return [
            *lines,
            f"layout {step.to_bytes().hex()}",
            f"model {model.to_bytes().hex()}",
        ]


def shared_cases():
    cases: list[Case] = []
    for line in SHARED.read_text().splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "case":
            cases.append(Case(rest))
        elif kind == "cap":
            cases[-1].cap = int(rest)
        elif kind == "parameter":
            cases[-1].add_parameter(*rest.split())
        elif kind in ("bucket", "layout", "model"):
            cases[-1].expected.append(line)
    return cases


@pytest.mark.parametrize("case", shared_cases(), ids=lambda case: case.name)
def test_buckets_are_those_of_cpp_trainers(case):
    assert case.actual() == case.expected


def plan(sizes, cap):
    """`sizes` are elements of float32, or (elements, dtype)."""
    pieces = [
        Piece(*size) if isinstance(size, tuple) else Piece(size, F) for size in sizes
    ]
    return [tuple(bucket) for bucket in plan_buckets(pieces, cap)]


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
