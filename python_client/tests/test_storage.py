from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pactrain import storage

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@given(SHAPES, st.randoms(use_true_random=False))
def test_flatten_is_memory_order_for_any_permutation(shape, random):
    order = random.sample(range(len(shape)), len(shape))
    inverse = [order.index(i) for i in range(len(shape))]
    parameter = torch.empty([shape[i] for i in order]).permute(inverse)
    assert storage.is_dense(parameter)
    count = parameter.numel()
    parameter.as_strided((count,), (1,)).copy_(torch.arange(count))
    flat = storage.flatten(parameter, parameter)
    assert torch.equal(flat, torch.arange(count, dtype=torch.float))
    assert torch.equal(storage.unflatten(flat, parameter), parameter)


def test_a_channels_last_weight_is_in_nhwc_order():
    weight = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    expected = weight.permute(0, 2, 3, 1).reshape(-1)
    assert torch.equal(storage.flatten(weight, weight), expected)


def test_a_slice_with_gaps_is_taken_in_index_order():
    sliced = torch.arange(12.0).reshape(3, 4)[:, :2]
    assert not storage.is_dense(sliced)
    expected = [0.0, 1, 4, 5, 8, 9]
    assert storage.flatten(sliced, sliced).tolist() == expected


@given(st.lists(st.booleans(), max_size=40))
def test_unpack_reverses_pack(bits):
    flat = torch.tensor(bits, dtype=torch.bool)
    assert torch.equal(storage.unpack(storage.pack(flat), len(bits)), flat)


def test_bits_are_least_significant_first():
    flat = torch.tensor([True] + [False] * 7 + [False, True])
    assert storage.pack(flat).tolist() == [1, 2]


def test_raw_bytes_of_a_scalar():
    assert storage.raw_bytes(torch.tensor(3, dtype=torch.int64)).tolist()[0] == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_outside_a_mask_become_zero_in_any_order_of_memory(dtype):
    for layout in (torch.contiguous_format, torch.channels_last):
        values = torch.randn(4, 3, 5, 5, dtype=dtype).to(memory_format=layout)
        values.requires_grad_()
        mask = torch.rand(values.shape) > 0.5
        expected = values.detach() * mask
        storage.zero_outside(values, mask)
        assert torch.equal(values, expected)


@pytest.mark.parametrize("value", [True, False])
def test_some_places_are_found_where_there_are_next_to_none(monkeypatch, value):
    monkeypatch.setattr(storage, "_LOOKED_AT", 1000)
    which = torch.full((100, 100), not value)
    assert storage.some_places(which, 3, value).numel() == 0
    generator = torch.Generator().manual_seed(10_000)
    taken = set(torch.randint(10_000, (storage._DRAWN,), generator=generator).tolist())
    hidden = [place for place in range(2500, 10_000) if place not in taken][:5]
    which.view(-1)[torch.tensor(hidden)] = value
    assert storage.some_places(which, 3, value).tolist() == hidden[:3]


@pytest.mark.parametrize("size", [100, 20_000])
def test_some_places_of_false_are_those_of_its_opposite(size):
    which = torch.rand(size) > 0.3
    places = storage.some_places(which, 64, value=False)
    assert places.numel() > 20
    assert torch.equal(places, storage.some_places(~which))
