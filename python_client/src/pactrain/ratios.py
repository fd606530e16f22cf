"""How an amount to prune is spread over layers, and who goes first in each.

A score is a float per weight; the lowest go. Of weights with equal scores either all go
or none: an order of indices would be a choice without a reason, and cut off the first
channels of a layer whose weights are all alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    scores: Sequence[Tensor],
    amount: float,
    scope: str,
    seconds: Sequence[Tensor] | None = None,
) -> Kept:
    """A bool mask for each layer's scores; -inf, for what was pruned before, always go.

    Args:
      amount: share of all weights to drop, 0 <= amount < 1.
      scope: "layer": of each layer; "global": the lowest of all layers; "erk": by
        erdos_renyi_kernel(), fewer from small layers.
      seconds: other scores, by which those of equal score are told apart.
    """
    flat = [score.reshape(-1) for score in scores]
    others = flat if seconds is None else [second.reshape(-1) for second in seconds]
    tied = {
        i
        for i, (score, second) in enumerate(zip(flat, others, strict=True))
        if amount > 0 and _all_equal(score) and _all_equal(second)
    }
    if scope == "global":
        sizes = [score.numel() for score in scores]
        joined = torch.cat(flat)
        kept, ties = _keep(
            joined, joined if others is flat else torch.cat(others), amount
        )
        masks = list(torch.split(kept, sizes))
        if ties is not None:
            counts = [int(part.sum()) for part in torch.split(ties, sizes)]
            tied |= {i for i, n in enumerate(sizes) if counts[i] > _few(n)}
    else:
        amounts = [amount] * len(scores)
        if scope == "erk":
            shapes = [tuple(score.shape) for score in scores]
            amounts = [1 - share for share in erdos_renyi_kernel(shapes, 1 - amount)]
        masks = []
        for i, share in enumerate(amounts):
            mask, ties = _keep(flat[i], others[i], share)
            masks.append(mask)
            if ties is not None:
                tied.add(i)
    shaped = [m.reshape(score.shape) for m, score in zip(masks, scores, strict=True)]
    return Kept(shaped, sorted(tied))


def _few(elements: int) -> int:
    return max(elements // 100, _FEW_TIES)


def _all_equal(score: Tensor) -> bool:
    """Of those that were not pruned before."""
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
    last = flat.kthvalue(count).values
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
