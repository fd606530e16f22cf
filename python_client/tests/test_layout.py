from __future__ import annotations

from unittest import mock

import torch
from fake_native import digest_of
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pactrain import layout, storage
from pactrain.layout import LayoutCache, bucket_bits
from pactrain.masks import Declared, make_mask_set
from pactrain.parameters import ParameterTable


def test_bits_follow_the_bucket_in_storage_order():
    model = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
    table = ParameterTable(model)
    weight, bias = model.weight, model.bias
    mask = torch.rand_like(weight) > 0.5
    masks = make_mask_set(table, Declared({"weight": mask}), digest_of)
    cache = LayoutCache(table, digest_of)
    bucket = cache.bucket([bias, weight], torch.empty(52))
    bits = bucket_bits(bucket, table, masks)
    expected = torch.cat([torch.ones(4) > 0, mask.permute(0, 2, 3, 1).reshape(-1)])
    assert bits.tolist() == storage.pack(expected).tolist()


@given(st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=6))
def test_bits_of_parameters_of_any_size_share_bytes(sizes):
    parts = [
        torch.rand(n) > 0.5 if masked else torch.ones(n) > 0 for n, masked in sizes
    ]
    model = nn.ParameterList([nn.Parameter(torch.zeros(n)) for n, _ in sizes])
    table = ParameterTable(model)
    masked = {name: parts[int(name)] for name in table.names if sizes[int(name)][1]}
    masks = make_mask_set(table, Declared(masked), digest_of)
    whole = torch.cat(parts)
    cache = LayoutCache(table, digest_of)
    bucket = cache.bucket(list(model), torch.empty(whole.numel()))
    with mock.patch.object(layout, "_PIECE", 7):
        bits = bucket_bits(bucket, table, masks)
    assert bits.tolist() == storage.pack(whole).tolist()


def test_a_layout_depends_on_order_and_dtype(net):
    table = ParameterTable(net)
    cache = LayoutCache(table, digest_of)
    first, second = net[0].bias, net[2].bias
    both = torch.empty(16)
    layouts = [
        cache.bucket([first, second], both),
        cache.bucket([second, first], both),
        cache.bucket([first, second], both.bfloat16()),
    ]
    assert len({layout.digest for layout in layouts}) == 3


def test_the_same_buckets_are_the_same_layout_object(net):
    cache = LayoutCache(ParameterTable(net), digest_of)
    bucket = cache.bucket([net[0].bias], torch.empty(8))
    assert cache.bucket([net[0].bias], torch.empty(8)) is bucket


def test_a_model_is_summed_up_with_its_dtypes():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    summary = ParameterTable(model).summary
    assert summary == "Sequential: 4 parameters of float32, 26 elements"
    model[1].bfloat16()
    assert ParameterTable(model).summary == (
        "Sequential: 4 parameters of bfloat16 (2) and float32 (2), 26 elements"
    )
