"""Ranks that do not all do the same."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .place import STEPS, Place, net, sgd, train_step


def _normed() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(10, 16), nn.BatchNorm1d(16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)
    )


def evaluation(place: Place) -> Any:
    """On rank 0 alone, through the model inside, while the others wait or go on."""
    model = _normed()
    ddp = place.wrap(model)
    place.attach(ddp)
    optimizer = sgd(model)
    scores = []
    for step in range(STEPS):
        train_step(ddp, optimizer, place.batch(step))
        if place.rank == 0 and step % 3 == 2:
            ddp.eval()
            with torch.no_grad():
                scores.append(ddp.module(place.batch(99)).sum())
            ddp.train()
    return model, scores


def evaluation_wrapped(place: Place) -> Any:
    """Through the wrapper, which plain DDP takes only without buffers."""
    model = net()
    ddp = place.wrap(model)
    place.attach(ddp)
    optimizer = sgd(model)
    scores = []
    for step in range(STEPS):
        train_step(ddp, optimizer, place.batch(step))
        if place.rank == 0:
            with torch.no_grad():
                scores.append(ddp(place.batch(99)).sum())
    return model, scores


def joined(place: Place) -> Any:
    return _joined(place, batches=3 + 5 * place.rank)


def joined_first(place: Place) -> Any:
    return _joined(place, batches=8 - 5 * place.rank)


def _joined(place: Place, batches: int) -> Any:
    model = _normed()
    ddp = place.wrap(model)
    place.attach(ddp)
    # Momentum would be behind at the rank that ends first, as with plain DDP.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with ddp.join():
        for step in range(batches):
            train_step(ddp, optimizer, place.batch(step))
    joined = [parameter.clone() for parameter in model.parameters()]
    train_step(ddp, optimizer, place.batch(99))
    return model, joined


def uneven(place: Place) -> Any:
    """Rank 1 has fewer batches, and nobody says so."""
    model = net()
    ddp = place.wrap(model)
    session = place.attach(ddp)
    optimizer = sgd(model)
    with session.guard():
        for step in range(STEPS - 3 * place.rank):
            train_step(ddp, optimizer, place.batch(step))
    return model


def early_stop(place: Place) -> Any:
    """What rank 1 wants, all ranks do."""
    model = net()
    ddp = place.wrap(model)
    place.attach(ddp)
    optimizer = sgd(model)
    for step in range(STEPS):
        train_step(ddp, optimizer, place.batch(step))
        stop = torch.tensor(float(place.rank == 1 and step == 4))
        dist.all_reduce(stop)
        if stop > 0:
            break
    return model, step


def early_stop_alone(place: Place) -> Any:
    model = net()
    ddp = place.wrap(model)
    session = place.attach(ddp)
    optimizer = sgd(model)
    with session.guard():
        for step in range(STEPS):
            train_step(ddp, optimizer, place.batch(step))
            if place.rank == 1 and step == 4:
                break
    return model


class _Hungry(torch.autograd.Function):
    """Runs out of memory in the backward pass."""

    @staticmethod
    def forward(context: Any, inputs: Tensor) -> Tensor:
        return inputs.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("DefaultCPUAllocator: can't allocate memory")


class _Net(nn.Module):
    """`fails` says where the next pass runs out of memory."""

    def __init__(self) -> None:
        super().__init__()
        layers = net()
        self.first, self.last = layers[:4], layers[4:]
        self.fails = ""

    def forward(self, inputs: Tensor) -> Any:
        hidden = self.first(inputs)
        if self.fails == "forward":
            raise torch.OutOfMemoryError("DefaultCPUAllocator: can't allocate memory")
        if self.fails == "backward":
            hidden = _Hungry.apply(hidden)
        return self.last(hidden)


def _out_of_memory(place: Place, where: str, ranks: set[int], dummy: bool = False) -> Any:
    """The batch is left out, as fairseq does, or a small one takes its place."""
    model = _Net()
    ddp = place.wrap(model, bucket_cap_mb=0.004)
    session = place.attach(ddp)
    optimizer = sgd(model)
    with session.guard():
        for step in range(STEPS):
            model.fails = where if step == 4 and place.rank in ranks else ""
            optimizer.zero_grad()
            try:
                ddp(place.batch(step)).square().mean().backward()
            except torch.OutOfMemoryError:
                model.fails = ""
                optimizer.zero_grad()
                if not dummy:
                    continue
                (ddp(place.batch(step, (1, 10))).mean() * 0).backward()
            optimizer.step()
    return model


def out_of_memory(place: Place) -> Any:
    return _out_of_memory(place, "forward", {0, 1})


def out_of_memory_dummy(place: Place) -> Any:
    return _out_of_memory(place, "forward", {1}, dummy=True)


def out_of_memory_alone(place: Place) -> Any:
    return _out_of_memory(place, "forward", {1})


def out_of_memory_backward(place: Place) -> Any:
    return _out_of_memory(place, "backward", {0, 1})


def out_of_memory_backward_alone(place: Place) -> Any:
    return _out_of_memory(place, "backward", {1})
