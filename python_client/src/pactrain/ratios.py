"""How an amount to prune is spread over layers, and who goes first in each.

A score is a float per weight; the lowest go. Of weights with equal scores either all go
or none: an order of indices would be a choice without a reason, and cut off the first
channels of a layer whose weights are all alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

SCOPES = ("layer", "global", "erk")
_FEW_TIES = 4  # Weights; or a hundredth of a layer: bfloat16 has few numbers.


@dataclass(frozen=True)
class Kept:
    """A bool mask per layer, and which layers could not be divided: `tied` are the
    places of those whose weights are too much alike."""

    masks: list[Tensor]
    tied: list[int]


def keep_highest(
    scores: Iterable[Tensor],
    amount: float,
    scope: str,
    seconds: Iterable[Tensor] | None = None,
) -> Kept:
    """A bool mask for each layer's scores; -inf, for what was pruned before, always go.

    Args:
      scores: are let go one by one where layers are not compared ("layer"): those of a
        whole model are as large as its weights.
      amount: share of all weights to drop, 0 <= amount < 1.
      scope: "layer": of each layer; "global": the lowest of all layers; "erk": by
        erdos_renyi_kernel(), fewer from small layers.
      seconds: other scores, by which those of equal score are told apart.
    """
    pairs: Iterable[tuple[Tensor, Tensor]] = ((score, score) for score in scores)
    if seconds is not None:
        pairs = zip(scores, seconds, strict=True)
    if scope == "global":
        return _keep_of_all(list(pairs), amount)
    amounts: Iterable[float] = itertools.repeat(amount)
    if scope == "erk":
        pairs = list(pairs)
        shapes = [tuple(score.shape) for score, _ in pairs]
        amounts = [1 - share for share in erdos_renyi_kernel(shapes, 1 - amount)]
    masks: list[Tensor] = []
    tied: list[int] = []
    for (score, second), share in zip(pairs, amounts, strict=False):
        flat = score.reshape(-1)
        other = flat if second is score else second.reshape(-1)
        mask, ties = _keep(flat, other, share)
        if ties is not None or (amount > 0 and _all_equal(score, second)):
            tied.append(len(masks))
        masks.append(mask.reshape(score.shape))
    return Kept(masks, tied)


def _keep_of_all(pairs: Sequence[tuple[Tensor, Tensor]], amount: float) -> Kept:
    sizes = [score.numel() for score, _ in pairs]
    joined = torch.cat([score.reshape(-1) for score, _ in pairs])
    seconds = joined
    if any(second is not score for score, second in pairs):
        seconds = torch.cat([second.reshape(-1) for _, second in pairs])
    kept, ties = _keep(joined, seconds, amount)
    counts = [0] * len(sizes)
    if ties is not None:
        counts = [int(part.sum()) for part in torch.split(ties, sizes)]
    tied = [
        i
        for i, (score, second) in enumerate(pairs)
        if counts[i] > _few(sizes[i]) or (amount > 0 and _all_equal(score, second))
    ]
    masks = zip(torch.split(kept, sizes), pairs, strict=True)
    return Kept([mask.reshape(score.shape) for mask, (score, _) in masks], tied)


def _few(elements: int) -> int:
    return max(elements // 100, _FEW_TIES)


def _all_equal(*scores: Tensor) -> bool:
    """Of those that were not pruned before, by each of the scores."""
    return all(map(_is_constant, scores))


def _is_constant(score: Tensor) -> bool:
    least, most = score.min(), score.max()
    if bool(least == -torch.inf) and bool(most > -torch.inf):
        least = score[score > -torch.inf].min()
    return score.numel() > 1 and bool(least == most) and bool(least > -torch.inf)


def _keep(flat: Tensor, second: Tensor, amount: float) -> tuple[Tensor, Tensor | None]:
    """The mask, and those of equal score if too many were to be divided."""
    gone = int((flat == -torch.inf).sum())
    count = max(round(amount * flat.numel()), gone)
    if count == 0:
        return torch.ones_like(flat, dtype=torch.bool), None
    keep, ties = _lowest(flat, count)
    if ties is not None and second is not flat:
        missing = count - int((~keep).sum())
        places = ties.nonzero().reshape(-1)
        chosen, again = _lowest(second[places], missing)
        keep[places] = chosen
        ties = None if again is None else ties & keep
    if ties is None:
        return keep, None
    dropped = int((~keep).sum())
    too_many = count - dropped > _few(flat.numel()) or dropped == gone
    return keep, ties if too_many else None


def _lowest(flat: Tensor, count: int) -> tuple[Tensor, Tensor | None]:
    """What is left without the `count` lowest; with those of equal score that cannot
    all go, if there are any, which stay."""
    # By numpy, which needs no list of places beside a copy.
    last = float(np.partition(flat.numpy(), count - 1)[count - 1])
    keep = flat > last
    if int((~keep).sum()) == count:
        return keep, None
    keep = flat >= last
    return keep, flat == last


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
