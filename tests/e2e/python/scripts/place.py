"""Where a script runs, and how it hands its model to PacTrain, if it does."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

import pactrain
from pactrain.masks import registry

STEPS = 8
AMOUNT = 0.5
# By which way of torch alone each of ours is judged: those with attach() around torch's
# wrapper, and those with our own.
JUDGES = {"dense": "plain", "pruned": "by hand", "own": "plain", "own pruned": "by hand"}


@dataclass
class Place:
    """`wrap` stands where a script has DistributedDataParallel(), torch's or ours, `attach`
    where it has pactrain.attach() or, with our own, the session.

    By torch alone `attach` does nothing ("plain"), or puts masks on as anybody could ("by
    hand").
    """

    rank: int
    world: int
    way: str
    folder: Path  # Of this script and way, kept from one world to the next.
    _sessions: list[pactrain.Session] = field(default_factory=list)
    _undo: list[Callable[[], None]] = field(default_factory=list)

    @property
    def ours(self) -> bool:
        return self.way in JUDGES

    @property
    def own(self) -> bool:
        return self.way.startswith("own")

    def wrap(self, model: nn.Module, **options: Any) -> Any:
        if not self.own:
            return DistributedDataParallel(model, **options)
        os.environ |= {"RANK": str(self.rank), "WORLD_SIZE": str(self.world)}
        if self.way == "own pruned":
            pactrain.prune(model, AMOUNT)
        return pactrain.DistributedDataParallel(model, **options)

    def attach(self, ddp: nn.Module, **options: Any) -> pactrain.NullSession | pactrain.Session:
        if self.own:
            kind = pactrain.DistributedDataParallel
            wrapped = next(part for part in ddp.modules() if isinstance(part, kind))
            return self._kept(wrapped.session)
        if self.way == "by hand" or (self.way == "pruned" and not options.get("state")):
            pactrain.prune(ddp, AMOUNT)
        if self.ours:
            return self._kept(pactrain.attach(ddp, **options))
        if self.way == "by hand":
            self._undo.append(_mask_by_hand(ddp))
        return pactrain.NullSession()

    def _kept(self, session: pactrain.Session) -> pactrain.Session:
        self._sessions.append(session)
        self._undo.append(session.close)
        return session

    @property
    def mode(self) -> str:
        return " ".join(sorted({session.mode for session in self._sessions}))

    def close(self) -> None:
        """What a script that ends does."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def batch(self, step: int, shape: tuple[int, ...] = (8, 10)) -> Tensor:
        """Other numbers at each rank."""
        generator = torch.Generator().manual_seed(1000 * step + self.rank)
        return torch.randn(shape, generator=generator)


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(),
        nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4),
    )  # fmt: skip


def sgd(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)


def train_step(ddp: nn.Module, optimizer: Optimizer, inputs: Tensor) -> float:
    optimizer.zero_grad()
    loss = ddp(inputs).float().square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def _mask_by_hand(model: nn.Module) -> Callable[[], None]:
    """Gradients are masked as DDP gives them, weights after each optimizer step.

    Masks are the zeros that the weights have at the first step.
    """
    ddp = next(m for m in model.modules() if isinstance(m, DistributedDataParallel))
    pruned = [p for p in ddp.module.parameters() if registry.get(p) is not None]
    zeros: dict[int, Tensor] = {}

    def zeros_of(parameter: Tensor) -> Tensor | None:
        if not zeros:
            zeros.update({id(p): p.detach() == 0 for p in pruned})
        return zeros.get(id(parameter))

    def mask(parameter: Tensor, values: Tensor) -> None:
        if (zero := zeros_of(parameter)) is not None:
            values.masked_fill_(zero, 0)

    def exchange(state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        whole = bucket.buffer().div_(dist.get_world_size())
        future = dist.all_reduce(whole, async_op=True).get_future()

        def masked(done: torch.futures.Future[list[Tensor]]) -> Tensor:
            first = 0
            for parameter in bucket.parameters():
                part = whole[first : first + parameter.numel()]
                # In the order in memory of the parameter, which gradients() forgets.
                mask(parameter, part.as_strided(parameter.shape, parameter.stride()))
                first += parameter.numel()
            return done.value()[0]

        return future.then(masked)

    def after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for parameter in pruned:
            mask(parameter, parameter.data)

    # DDP reads the annotations as objects.
    exchange.__annotations__ = {
        "bucket": dist.GradBucket,
        "return": torch.futures.Future[Tensor],
    }
    ddp.register_comm_hook(None, exchange)
    return register_optimizer_step_post_hook(after_step).remove
