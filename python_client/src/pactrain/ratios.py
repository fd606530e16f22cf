"""How an amount to prune is spread over layers, and who goes first in each.

A score is a float per weight; the lowest go. Of weights with equal scores either all go
or none: an order of indices would be a choice without a reason, and cut off the first
channels of a layer whose weights are all alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from . import storage
from .scores import Pieces, Scores

SCOPES = ("layer", "global", "erk")
_FEW_TIES = 4  # Weights; or a hundredth of a layer: bfloat16 has few numbers.
_HALF = 1 << 16  # Values of half a float's bits.


@dataclass(frozen=True)
class Kept:
    """A bool mask per layer, and which layers could not be divided: `tied` are the
    places of those whose weights are too much alike."""

    masks: list[Tensor]
    tied: list[int]


def keep_highest(
    scores: Iterable[Tensor | Scores],
    amount: float,
    scope: str,
    seconds: Iterable[Tensor | Scores] | None = None,
) -> Kept:
    """A bool mask for each layer's scores; -inf, for what was pruned before, always go.

    Args:
      scores: are let go one by one where layers are not compared ("layer").
      amount: share of all weights to drop, 0 <= amount < 1.
      scope: "layer": of each layer; "global": the lowest of all layers; "erk": by
        erdos_renyi_kernel(), fewer from small layers.
      seconds: other scores, by which those of equal score are told apart.
    """
    others: Iterable[Tensor | Scores | None] = itertools.repeat(None)
    if seconds is not None:
        others = seconds
    layers: Iterator[_Layer] = (
        _Layer(Scores.of(score), None if second is None else Scores.of(second))
        for score, second in zip(scores, others, strict=False)
    )
    if scope == "global":
        return _keep(list(layers), amount, amount > 0)
    amounts: Iterable[float] = itertools.repeat(amount)
    if scope == "erk":
        listed = list(layers)
        shapes = [layer.scores.shape for layer in listed]
        amounts = [1 - share for share in erdos_renyi_kernel(shapes, 1 - amount)]
        layers = iter(listed)
    masks: list[Tensor] = []
    tied: list[int] = []
    for layer, share in zip(layers, amounts, strict=False):
        kept = _keep([layer], share, amount > 0)
        tied += [len(masks)] if kept.tied else []
        masks += kept.masks
        del layer  # Before the next one's scores are made.
    return Kept(masks, tied)


@dataclass(frozen=True)
class _Layer:
    scores: Scores
    seconds: Scores | None

    def pieces(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        seconds: Iterable[Tensor | None] = itertools.repeat(None)
        if self.seconds is not None:
            seconds = self.seconds()
        return zip(self.scores(), seconds, strict=False)


@dataclass(frozen=True)
class _Cut:
    """The highest score of which some have to go, how many are lower and as high."""

    score: float
    lower: int
    equal: int


def _few(elements: int) -> int:
    return max(elements // 100, _FEW_TIES)


def _gone(scores: Scores) -> tuple[int, bool]:
    """How many were pruned before, and whether all others have one score."""
    gone, least, most = 0, np.inf, -np.inf
    for piece in scores():
        before = storage.count(piece == -torch.inf)
        gone += before
        found = piece[piece > -torch.inf] if before else piece
        if found.numel():
            least, most = min(least, float(found.min())), max(most, float(found.max()))
    return gone, scores.elements > 1 and least == most


def _keep(layers: Sequence[_Layer], amount: float, divides: bool) -> Kept:
    """The same share of all these layers together.

    `divides`: whether anything is to be pruned in any layer. A single layer is tied
    where too many would be divided, of several those that have too many of equal score.
    """
    found = [_gone(layer.scores) for layer in layers]
    gone = sum(count for count, _ in found)
    constant = [
        i
        for i, (layer, (_, equal)) in enumerate(zip(layers, found, strict=True))
        if divides and equal and (layer.seconds is None or _gone(layer.seconds)[1])
    ]
    elements = sum(layer.scores.elements for layer in layers)
    count = max(round(amount * elements), gone)
    if count == 0:
        return Kept([y.scores.new_mask().fill_(True) for y in layers], constant)
    first = _cut(lambda: (p for y in layers for p in y.scores()), count)
    second: _Cut | None = None
    dropped = first.lower
    if first.lower + first.equal == count:
        dropped, first = count, _Cut(first.score, count, 0)
    elif all(layer.seconds is not None for layer in layers):
        missing = count - first.lower
        second = _cut(lambda: _among(layers, first.score), missing)
        dropped += second.lower
        if second.lower + second.equal == missing:
            dropped, second = count, _Cut(second.score, missing, 0)
    made = [_mask(layer, first, second) for layer in layers]
    masks, ties = [mask for mask, _ in made], [count for _, count in made]
    few = count - dropped <= _few(elements) and dropped > gone
    if dropped == count or few:
        return Kept(masks, constant)
    if len(layers) == 1:
        return Kept(masks, [0])
    tied = [
        i
        for i, layer in enumerate(layers)
        if i in constant or ties[i] > _few(layer.scores.elements)
    ]
    return Kept(masks, tied)


def _among(layers: Sequence[_Layer], score: float) -> Iterator[Tensor]:
    """The second scores of those that have this one."""
    for layer in layers:
        for piece, second in layer.pieces():
            assert second is not None
            yield second[piece == score]


def _mask(layer: _Layer, first: _Cut, second: _Cut | None) -> tuple[Tensor, int]:
    """What is kept, and how many of it have the score that was cut at."""
    mask = layer.scores.new_mask()
    flat = mask.as_strided((mask.numel(),), (1,))
    begin = ties = 0
    for piece, other in layer.pieces():
        keep = piece > first.score
        equal = piece == first.score
        if second is not None and other is not None:
            # Those that cannot all go stay.
            higher = other >= second.score if second.equal else other > second.score
            keep |= equal & higher
        elif first.equal:
            keep |= equal
        ties += storage.count(equal & keep)
        flat[begin : begin + piece.numel()] = keep
        begin += piece.numel()
    return mask, ties


def _cut(pieces: Pieces, count: int) -> _Cut:
    """At the `count`-th lowest; in two passes, since a sorted copy of a layer would
    take as much memory as its weights."""
    high = np.zeros(_HALF, dtype=np.int64)
    for keys in map(_keys, pieces()):
        high += np.bincount((keys >> 16) + _HALF // 2, minlength=_HALF)
    upper = int(np.searchsorted(high.cumsum(), count))
    lower = int(high[:upper].sum())
    low = np.zeros(_HALF, dtype=np.int64)
    for keys in map(_keys, pieces()):
        inside = keys[(keys >> 16) == upper - _HALF // 2]
        low += np.bincount(inside & (_HALF - 1), minlength=_HALF)
    last = int(np.searchsorted(low.cumsum(), count - lower))
    lower += int(low[:last].sum())
    key = np.array([(upper - _HALF // 2) * _HALF + last], dtype=np.int32)
    return _Cut(float(_swapped(key).view(np.float32)[0]), lower, int(low[last]))


def _keys(piece: Tensor) -> npt.NDArray[np.int32]:
    """Integers in the order of the scores; of -0.0 and 0.0 the same."""
    return _swapped((piece.numpy() + np.float32(0)).view(np.int32))


def _swapped(bits: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """A float's bits grow with its distance from zero, also below it. Its own
    inverse."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def erdos_renyi_kernel(
    shapes: Sequence[tuple[int, ...]], density: float
) -> list[float]:
    """The share of each layer to keep, so that `density` of all weights are kept.

    A layer's share is proportional to the sum of its dimensions over their product;
    what a layer would get beyond 1 goes to the others (Evci et al., RigL, arXiv
    1911.11134, section 3, after Mocanu et al., 2018).
    """
    sizes = [torch.Size(shape).numel() for shape in shapes]
    raw = [sum(shape) / size for shape, size in zip(shapes, sizes, strict=True)]
    dense: set[int] = set()
    while True:
        left = density * sum(sizes) - sum(sizes[i] for i in dense)
        open_ = [i for i in range(len(shapes)) if i not in dense]
        scale = left / sum(raw[i] * sizes[i] for i in open_) if open_ else 0.0
        over = {i for i in open_ if scale * raw[i] > 1}
        if not over:
            return [1.0 if i in dense else scale * raw[i] for i in range(len(shapes))]
        dense |= over
