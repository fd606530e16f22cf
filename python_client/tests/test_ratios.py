from __future__ import annotations

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pactrain import ratios, scores
from pactrain.ratios import erdos_renyi_kernel


def keep_highest(scores, amount, scope):
    found = ratios.keep_highest(scores, amount, scope)
    assert not found.tied
    return found.masks


def kept(masks):
    return [int(mask.sum()) for mask in masks]


def test_the_lowest_of_each_layer_go():
    scores = [torch.tensor([3.0, 1.0, 2.0, 4.0]), torch.tensor([10.0, 40.0])]
    masks = keep_highest(scores, 0.5, "layer")
    assert [m.tolist() for m in masks] == [[True, False, False, True], [False, True]]


def test_the_lowest_of_all_layers_go():
    scores = [torch.tensor([3.0, 1.0, 2.0, 4.0]), torch.tensor([10.0, 40.0])]
    assert kept(keep_highest(scores, 0.5, "global")) == [1, 2]


@pytest.mark.parametrize("scope", ["layer", "global", "erk"])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_layers_of_equal_scores_are_not_divided(scope, value):
    score = torch.full((4, 6), value)
    for before in (0, 3):
        score.view(-1)[:before] = -torch.inf
        other = torch.rand(4, 6)
        assert ratios.keep_highest([other, score], 0.5, scope).tied == [1]
        assert ratios.keep_highest([other, score], 0.0, scope).tied == []


def test_ties_that_an_amount_would_divide_are_kept_whole():
    few = torch.arange(1000).float().clamp(min=495)  # 496 zeros' worth of ties.
    many = torch.arange(1000).float().round(decimals=-2)
    assert ratios.keep_highest([few], 0.4, "layer").tied == [0]
    assert ratios.keep_highest([many], 0.5, "layer").tied == [0]
    close = torch.arange(1000).float()
    close[498:502] = 498
    assert kept(keep_highest([close], 0.5, "layer")) == [502]
    assert kept(keep_highest([few], 0.496, "layer")) == [504]  # All of them.


def test_bfloat16_has_few_numbers_and_can_be_pruned():
    torch.manual_seed(0)
    score = torch.randn(256, 256).abs().bfloat16().float()
    (mask,) = keep_highest([score], 0.7, "layer")
    assert abs(1 - float(mask.float().mean()) - 0.7) < 0.01


def test_what_was_pruned_goes_first_and_never_comes_back():
    score = torch.tensor([5.0, -torch.inf, 1.0, -torch.inf])
    assert keep_highest([score], 0.25, "layer")[0].tolist() == [
        True,
        False,
        True,
        False,
    ]
    assert kept(keep_highest([score, score], 0.0, "global")) == [2, 2]
    assert kept(keep_highest([score], 0.75, "layer")) == [1]


def test_erk_by_hand():
    # Sums over products: 6/8, 8/16, 40/400. 0.25 x 424 weights are to be kept.
    shapes = [(2, 4), (4, 4), (20, 20)]
    scale = 0.25 * 424 / (6 + 8 + 40)
    first, second, third = erdos_renyi_kernel(shapes, 0.25)
    assert first == 1.0  # scale x 0.75 is over 1: the rest goes to the others.
    scale = (0.25 * 424 - 8) / (8 + 40)
    assert second == 1.0
    scale = (0.25 * 424 - 8 - 16) / 40
    assert third == pytest.approx(scale * 0.1)


def test_erk_counts_the_dimensions_of_a_kernel():
    wide, deep = erdos_renyi_kernel([(64, 64, 1, 1), (64, 64, 3, 3)], 0.1)
    assert wide / deep == pytest.approx((130 / 4096) / (134 / 36864))


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.integers(1, 40), min_size=2, max_size=4).map(tuple),
        min_size=1,
        max_size=8,
    ),
    st.floats(0.01, 1.0),
)
def test_erk_keeps_what_it_should(shapes, density):
    shares = erdos_renyi_kernel(shapes, density)
    sizes = [torch.Size(shape).numel() for shape in shapes]
    assert all(0 <= share <= 1 for share in shares)
    whole = sum(share * size for share, size in zip(shares, sizes, strict=True))
    assert whole == pytest.approx(density * sum(sizes))


@settings(deadline=None)
@given(st.floats(0.05, 0.9), st.floats(0.05, 0.9))
def test_more_pruning_lies_inside_less_in_every_scope(first, second):
    less, more = sorted((first, second))
    generator = torch.Generator().manual_seed(0)
    scores = [
        torch.rand(shape, generator=generator) for shape in ((4, 6), (16, 16), (2, 9))
    ]
    for scope in ("layer", "global", "erk"):
        large = keep_highest(scores, less, scope)
        small = keep_highest(scores, more, scope)
        assert not any(bool((s & ~b).any()) for s, b in zip(small, large, strict=True))


@settings(deadline=None)
@given(
    st.lists(st.integers(-3, 3), min_size=2, max_size=60),
    st.floats(0.05, 0.9),
    st.sampled_from(["layer", "global", "erk"]),
)
def test_the_size_of_pieces_and_the_sign_of_zero_change_nothing(values, amount, scope):
    score = torch.tensor(values).float().reshape(1, -1)
    others = [score, torch.rand(3, 7, generator=torch.Generator().manual_seed(1))]
    whole = ratios.keep_highest(others, amount, scope)
    others[0] = torch.where(score == 0, -0.0, score)
    with mock.patch.object(scores, "PIECE", 5):
        pieces = ratios.keep_highest(others, amount, scope)
    assert whole.tied == pieces.tied
    for a, b in zip(whole.masks, pieces.masks, strict=True):
        assert torch.equal(a, b)


@settings(deadline=None)
@given(
    st.lists(
        st.floats(width=32, allow_nan=False) | st.just(-float("inf")),
        min_size=1,
        max_size=50,
        unique=True,
    ),
    st.data(),
)
def test_as_many_of_the_lowest_go_as_were_asked_for(values, data):
    values = sorted(set(torch.tensor(values).add(0.0).tolist()))
    count = data.draw(st.integers(0, len(values) - 1))
    order = data.draw(st.permutations(values))
    (mask,) = ratios.keep_highest(
        [torch.tensor(order)], count / len(values), "layer"
    ).masks
    gone = max(count, int(-float("inf") in values))
    assert (
        torch.tensor(order)[mask].tolist() == [v for v in order if v >= values[gone]]
        if gone < len(values)
        else not mask.any()
    )
