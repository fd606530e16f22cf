"""How an amount to prune is spread over layers, and who goes first in each.

A score is a float per weight; the lowest go. Ties go in the order of indices, so that
all machines choose the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

SCOPES = ("layer", "global", "erk")


def keep_highest(scores: Sequence[Tensor], amount: float, scope: str) -> list[Tensor]:
    """A bool mask for each layer's scores; -inf, for what was pruned before, always go.

    Args:
      amount: share of all weights to drop, 0 <= amount < 1.
      scope: "layer": of each layer; "global": the lowest of all layers; "erk": by
        erdos_renyi_kernel(), fewer from small layers.
    """
    if scope == "global":
        kept = _keep(torch.cat([score.reshape(-1) for score in scores]), amount)
        masks = list(torch.split(kept, [score.numel() for score in scores]))
    else:
        amounts = [amount] * len(scores)
        if scope == "erk":
            shapes = [tuple(score.shape) for score in scores]
            amounts = [1 - share for share in erdos_renyi_kernel(shapes, 1 - amount)]
        masks = [
            _keep(score.reshape(-1), share)
            for score, share in zip(scores, amounts, strict=True)
        ]
    return [
        mask.reshape(score.shape) for mask, score in zip(masks, scores, strict=True)
    ]


def _keep(flat: Tensor, amount: float) -> Tensor:
    gone = int((flat == -torch.inf).sum())
    count = max(round(amount * flat.numel()), gone)
    if count == 0:
        return torch.ones_like(flat, dtype=torch.bool)
    last = flat.kthvalue(count).values
    keep = flat > last
    ties = (flat == last).nonzero().reshape(-1)
    keep[ties[count - int((flat < last).sum()) :]] = True
    return keep


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
