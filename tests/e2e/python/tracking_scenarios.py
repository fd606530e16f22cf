"""What ranks do in the end-to-end tests of masks that other libraries make."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from launcher import Talk
from scenarios import batch, digest, mlp, sgd
from torch import nn
from torch.ao.pruning import WeightNormSparsifier
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrize, prune

import pactrain

LAYERS = (2, 4)
SETTLE = 4
SECOND = 21  # The step before which masks move again, counted from 1.


class Library:
    """Prunes before the steps 1 and SECOND, and does nothing else."""

    def __init__(self, model: nn.Sequential) -> None:
        self.layers = [model[index] for index in LAYERS]

    def before_step(self, step: int) -> None:
        if step in (1, SECOND):
            self.prune(again=step == SECOND)

    def prune(self, again: bool) -> None: ...
    def after_step(self, step: int) -> None: ...


class TorchPrune(Library):
    """torch.nn.utils.prune, iteratively: the parameter becomes weight_orig."""

    def prune(self, again: bool) -> None:
        for layer in self.layers:
            prune.l1_unstructured(layer, "weight", 0.5)


class Sparsifier(Library):
    """torch.ao.pruning: a parametrization with a mask, FakeSparsity."""

    def __init__(self, model: nn.Sequential) -> None:
        super().__init__(model)
        self.sparsifier = WeightNormSparsifier(0.5, (1, 1), 1)
        config = [{"tensor_fqn": f"{index}.weight"} for index in LAYERS]
        self.sparsifier.prepare(model, config)

    def prune(self, again: bool) -> None:
        for group in self.sparsifier.groups:
            group["sparsity_level"] = 0.7 if again else 0.5
        self.sparsifier.step()


class Pattern(nn.Module):
    """A parametrization that keeps two of four weights."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("kept", torch.ones_like(weight, dtype=torch.bool))

    def choose(self, weight: torch.Tensor) -> None:
        groups = weight.detach().abs().reshape(-1, 4)
        kept = torch.zeros_like(groups, dtype=torch.bool)
        kept.scatter_(1, groups.topk(2, dim=1).indices, True)
        self.kept.copy_(kept.reshape(weight.shape))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * self.kept


class TwoOfFour(Library):
    """N:M. The second pattern is of other numbers, so that weights come back."""

    def __init__(self, model: nn.Sequential) -> None:
        super().__init__(model)
        for layer in self.layers:
            parametrize.register_parametrization(layer, "weight", Pattern(layer.weight))

    def prune(self, again: bool) -> None:
        for layer in self.layers:
            weight = layer.parametrizations.weight.original
            layer.parametrizations.weight[0].choose(weight.roll(1) if again else weight)


class ByHand(Library):
    """Masks of a script's own, put on weights after each step, and on gradients before
    they are exchanged. The second ones are no subset of the first."""

    masks_gradients = True

    def __init__(self, model: nn.Sequential) -> None:
        super().__init__(model)
        self.masks: list[torch.Tensor] = []
        for index, layer in enumerate(self.layers):
            if self.masks_gradients:
                layer.weight.register_hook(self._hook(index))

    def _hook(self, index: int) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda gradient: gradient * self.masks[index]

    def prune(self, again: bool) -> None:
        weights = [layer.weight.detach().abs() for layer in self.layers]
        if again:
            weights = [weight.roll(1) for weight in weights]
        self.masks = [weight > weight.median() for weight in weights]
        for layer, mask in zip(self.layers, self.masks, strict=True):
            layer.weight.data.mul_(mask)
            # What comes back does so with some value.
            layer.weight.data.add_(mask & (layer.weight == 0), alpha=0.01)

    def after_step(self, step: int) -> None:
        for layer, mask in zip(self.layers, self.masks, strict=True):
            layer.weight.data.mul_(mask)


class ByHandWeightsOnly(ByHand):
    """Gradients outside the masks are not zero, and mean nothing."""

    masks_gradients = False


class RigL(ByHand):
    """Drops the smallest weights and grows those with the largest gradients, at zero:
    only in that step gradients are dense."""

    def __init__(self, model: nn.Sequential) -> None:
        super().__init__(model)
        self.dense = False
        self.grown = 0

    def _hook(self, index: int) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda gradient: gradient if self.dense else gradient * self.masks[index]

    def before_step(self, step: int) -> None:
        if step == 1:
            self.prune(again=False)
        self.dense = step == SECOND

    def after_step(self, step: int) -> None:
        for index, layer in enumerate(self.layers if self.dense else ()):
            weight, mask = layer.weight, self.masks[index]
            alive = weight.detach().abs().where(mask, torch.inf).flatten()
            gain = weight.grad.abs().where(~mask, 0).flatten()
            count = int(mask.sum()) // 4
            new = mask.flatten().clone()
            new[alive.topk(count, largest=False).indices] = False
            new[gain.topk(count).indices] = True
            self.grown += int((new & ~mask.flatten()).sum())
            self.masks[index] = new.reshape(mask.shape)
            with torch.no_grad():
                weight.mul_(mask)  # What is grown begins at zero.
        super().after_step(step)


def tracked(
    talk: Talk,
    *,
    library: type[Library],
    own: bool = False,
    steps: int = 45,
    **options: Any,
) -> dict[str, Any]:
    """A row for each step: what it was, and what is known of the masks after it."""
    model = mlp()
    pruner = library(model)
    pruner.before_step(1)
    options = {"masks": "track", "settle": SETTLE, **options}
    if own:
        os.environ |= {"RANK": str(talk.rank), "WORLD_SIZE": str(talk.world)}
        ddp: Any = pactrain.DistributedDataParallel(model, **options)
        session = ddp.session
    else:
        ddp = DistributedDataParallel(model)
        session = pactrain.attach(ddp, **options)
    optimizer = sgd(model)
    rows, digests = [], []
    for step in range(1, steps + 1):
        if step > 1:
            pruner.before_step(step)
        optimizer.zero_grad()
        mse_loss(ddp(batch(talk, step)), batch(talk, -step, (8, 4))).backward()
        optimizer.step()
        pruner.after_step(step)
        stats = session.stats()
        mode = pactrain.Mode(int(stats["pactrain/mode"])).name
        rows.append(
            (
                step,
                int(stats["pactrain/mask_steps_unchanged"]),
                "DENSE" if stats["pactrain/dense"] else mode,
                round(stats["pactrain/ratio"], 2),
            )
        )
        digests.append(digest(model))
    kept = sum(
        int((layer.weight != 0).sum())
        if not hasattr(layer, "weight_mask")
        else int(layer.weight_mask.sum())
        for layer in pruner.layers
    )
    result = {
        "rows": rows,
        "digests": digests,
        "digest": digests[-1],
        "finite": all(bool(p.isfinite().all()) for p in model.parameters()),
        "stats": session.stats(),
        "summary": session.summary(),
        "keep": session.stats()["pactrain/keep"],
        "wanted": 1 - (2 * 32 * 32 - kept) / sum(p.numel() for p in model.parameters()),
        "grown": getattr(pruner, "grown", 0),
    }
    session.close()
    return result
