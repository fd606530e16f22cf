"""What ranks do in the end-to-end tests of ranks that differ from each other."""

from __future__ import annotations

import os
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from launcher import Talk
from scenarios import batch, mlp, sgd
from torch import nn
from torch.ao.pruning import WeightNormSparsifier
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import prune

import pactrain
from pactrain.mask_keeper import MaskKeeper

DIFFERS = 6  # The step before which ranks prune, counted from 1.
STEPS = 20


class Pruner:
    """Layer 2 of a model, pruned at each rank in another way."""

    name = "2.weight"

    def __init__(self, model: nn.Sequential, rank: int) -> None:
        self.layer = model[2]
        self.rank = rank

    def prune(self) -> None: ...


class BySeed(Pruner):
    """As plain DDP forgives, whose buffers are rank 0's before each forward pass."""

    what = "weight"

    def prune(self) -> None:
        torch.manual_seed(self.rank)
        prune.random_unstructured(self.layer, self.what, 0.5)


class BiasBySeed(BySeed):
    name = "2.bias"
    what = "bias"


class Alone(Pruner):
    def prune(self) -> None:
        if self.rank == 1:
            prune.l1_unstructured(self.layer, "weight", 0.5)


class SparsifierAlone(Pruner):
    """FakeSparsity, of torch.ao.pruning."""

    name = "2.parametrizations.weight.original"

    def __init__(self, model: nn.Sequential, rank: int) -> None:
        super().__init__(model, rank)
        self.sparsifier = WeightNormSparsifier(0.5, (1, 1), 1)
        self.sparsifier.prepare(model, [{"tensor_fqn": "2.weight"}])

    def prune(self) -> None:
        if self.rank == 1:
            self.sparsifier.step()


class ByHandAlone(Pruner):
    def prune(self) -> None:
        if self.rank == 1:
            self.layer.weight.data[: len(self.layer.weight) // 2] = 0


def differs(
    talk: Talk,
    pruner: type[Pruner],
    own: bool = False,
    syncs: bool = False,
    before: bool = False,
    masks: str | None = "track",
) -> dict[str, Any]:
    """Trains until an error comes, and says which and in which step."""
    model = mlp()
    pruning = pruner(model, talk.rank)
    if own:
        os.environ |= {"RANK": str(talk.rank), "WORLD_SIZE": str(talk.world)}
        ddp: Any = pactrain.DistributedDataParallel(model, masks=masks, settle=4)
        session = ddp.session
    else:
        ddp = DistributedDataParallel(model)
        if before:
            pruning.prune()
        session = pactrain.attach(ddp, masks=masks, settle=4)
    optimizer = sgd(model)
    result = {"error": "none", "text": "", "step": 0}
    for step in range(1, STEPS + 1):
        if step == DIFFERS and not before:
            pruning.prune()
            if syncs:
                (session.sync_buffers if masks else session.sync_masks)()
        optimizer.zero_grad()
        try:
            with session.guard():
                ddp(batch(talk, step)).square().mean().backward()
        except pactrain.PacTrainError as error:
            result = {"error": type(error).__name__, "text": str(error), "step": step}
            break
        optimizer.step()
    session.close()
    mask = getattr(pruning.layer, "weight_mask", None)
    return result | {"mask": None if mask is None else mask.tolist()}


def fails_alone(
    talk: Talk,
    own: bool,
    grouped: bool,
    failing: int,
    variables: dict[str, str] | None = None,
    late: bool = False,
    **arguments: Any,
) -> None:
    """One rank attaches with arguments or variables that are refused, or fails when it is
    `late` in attach(): when agents know it already."""
    model = mlp()
    given = arguments if talk.rank == failing else {}
    if talk.rank == failing:
        os.environ |= variables or {}
        if late:
            MaskKeeper.start = _fails  # type: ignore[method-assign]
    if not grouped:
        dist.barrier()  # or a rank that fails at once goes while others still connect
        dist.destroy_process_group()
    if own:
        os.environ |= {"RANK": str(talk.rank), "WORLD_SIZE": str(talk.world)}
        ddp: Any = pactrain.DistributedDataParallel(model, **given)
    else:
        ddp = DistributedDataParallel(model)
        pactrain.attach(ddp, **given)
    ddp(batch(talk, 0)).sum().backward()


def _fails(keeper: MaskKeeper, origin: object) -> NoReturn:
    raise ValueError("no place for masks")


def attaches_with(talk: Talk, by_rank: list[dict[str, Any]], own: bool = False) -> None:
    model = mlp()
    if own:
        os.environ |= {"RANK": str(talk.rank), "WORLD_SIZE": str(talk.world)}
        pactrain.DistributedDataParallel(model, **by_rank[talk.rank])
    else:
        pactrain.attach(DistributedDataParallel(model), **by_rank[talk.rank])


def ends_apart(talk: Talk, how: str, own: bool = False) -> str:
    """Few steps; after the last one rank 1 goes on alone. Returns the summary."""
    model = mlp()
    if own:
        os.environ |= {"RANK": str(talk.rank), "WORLD_SIZE": str(talk.world)}
        ddp: Any = pactrain.DistributedDataParallel(model)
        session = ddp.session
    else:
        ddp = DistributedDataParallel(model)
        session = pactrain.attach(ddp)
    optimizer = sgd(model)
    for step in range(1, 4):
        optimizer.zero_grad()
        ddp(batch(talk, step)).square().mean().backward()
        optimizer.step()
    if how == "weights" and talk.rank == 1:
        model[0].weight.data.mul_(1.01)
    if how == "masks" and talk.rank == 1:
        prune.l1_unstructured(model[2], "bias", 0.5)
    session.close()
    return str(session.summary())
