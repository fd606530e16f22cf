"""What can be sent of a state, what cannot, and bytes that are no state."""

from __future__ import annotations

import json
import math
import struct
from collections import Counter, OrderedDict, namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pactrain
from pactrain.state_codec import decode, encode

SHARED = Path(__file__).parents[2] / "trainer" / "cpp" / "testdata" / "state.txt"
DTYPES = [
    *(torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
]


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    size = math.prod(shape) * dtype.itemsize
    if dtype == torch.bool:
        bits = draw(st.lists(st.booleans(), min_size=size, max_size=size))
        return torch.tensor(bits, dtype=dtype).reshape(shape)
    raw = bytearray(draw(st.binary(min_size=size, max_size=size)))
    flat = torch.frombuffer(raw, dtype=dtype) if size else torch.empty(0, dtype=dtype)
    return flat.reshape(shape)


keys = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
leaves = keys | tensors() | st.just(-0.0)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(st.text(), inner, max_size=3).map(OrderedDict)
        | st.dictionaries(st.integers(), st.integers(), max_size=3).map(Counter)
    ),
    max_leaves=12,
)


def same(a, b):
    """Equal in type, order and bits; any nan equals any other."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        bits = [t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
        return (a.dtype, a.shape) == (b.dtype, b.shape) and torch.equal(*bits)
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or struct.pack("d", a) == struct.pack(
            "d", b
        )
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


@given(values)
def test_what_is_encoded_comes_back(value):
    assert same(decode(encode(value)), value)


@given(values)
def test_equal_values_have_equal_bytes(value):
    assert encode(value).tobytes() == encode(decode(encode(value))).tobytes()


@given(st.binary(max_size=200))
def test_any_other_bytes_are_an_error(data):
    blob = np.frombuffer(struct.pack("<Q", len(data)) + data, dtype=np.uint8)
    with pytest.raises(pactrain.InvalidArgument, match="cannot be read"):
        decode(blob)


@pytest.mark.parametrize(
    "text",
    [
        *('[["float", "x"], []]', '[["tensor", 0], []]', '[["tensor", -1], []]'),
        *('[["dict", [1]], []]', '[["set", 1], []]', "[1.5, []]", "[{}, []]"),
        *('[1, [["float32", [-1]]]]', '[1, [["object", [1]]]]'),
        *('[1, [["float32", [1099511627776]]]]', '[1, [["float32", [true]]]]'),
    ],
)
def test_a_structure_that_lies_is_an_error(text):
    blob = np.frombuffer(struct.pack("<Q", len(text)) + text.encode(), dtype=np.uint8)
    json.loads(text)
    with pytest.raises(pactrain.InvalidArgument, match="cannot be read"):
        decode(blob)


def test_a_state_that_is_cut_off_is_an_error():
    blob = encode({"weight": torch.ones(5)})
    for size in range(blob.size - 8):
        with pytest.raises(pactrain.InvalidArgument, match="cannot be read"):
            decode(blob[:size])


def test_optimizers_and_schedulers_keep_their_state():
    weight = torch.nn.Parameter(torch.randn(3, 4))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 2, 5])
    for _ in range(3):
        weight.grad = torch.randn(3, 4)
        optimizer.step()
        scheduler.step()
    for stateful in (optimizer, scheduler):
        assert same(decode(encode(stateful.state_dict())), stateful.state_dict())


def test_a_view_comes_with_its_values_only():
    view = torch.arange(12).reshape(3, 4).t()[1:]
    assert torch.equal(decode(encode(view)), view)
    assert decode(encode(view)).untyped_storage().nbytes() == view.numel() * 8


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": [1, object()]}, r"state\['a'\]\[1\] is of type builtins.object"),
        ({"lr": np.float32(1)}, r"state\['lr'\] is of type numpy.float32"),
        ({"f": (len,)}, r"state\['f'\]\[0\] is of type builtins.builtin_function"),
        (Point(1, 2), "state is of type test_state_codec.Point"),
        ({frozenset(): 1}, "state has a key of type frozenset"),
        (
            [torch.ones(2).to_sparse()],
            r"state\[0\] is a tensor of torch.float32, torch",
        ),
    ],
)
def test_what_cannot_be_sent_is_named_with_its_place(value, words):
    with pytest.raises(pactrain.InvalidArgument, match=words):
        encode(value)


def test_a_value_inside_itself_is_refused():
    value: list[object] = []
    value.append(value)
    with pytest.raises(pactrain.InvalidArgument, match="nested deeper than 64"):
        encode(value)


def test_a_number_that_python_cannot_print_is_refused():
    with pytest.raises(pactrain.InvalidArgument, match="a number that cannot be sent"):
        encode(10**5000)


def test_cpp_trainers_read_what_is_written_here():
    """state_codec_test.cc reads the same bytes."""
    state = {
        "none": None,
        "flags": [True, False],
        "whole": (-3, 2**62),
        "rate": 0.1,
        "edges": [0.0, -0.0, math.inf, 5e-324],
        "text": 'ä "\\\n€😀',
        3: OrderedDict(a=1),
        "tensors": {
            "w": torch.tensor([[1.0, 2.0], [3.0, -4.0]]),
            "n": torch.tensor(7),
            "empty": torch.empty(0, 3),
            "b": torch.tensor([True, False, True]),
        },
    }
    assert encode(state).tobytes() == bytes.fromhex("".join(SHARED.read_text().split()))
