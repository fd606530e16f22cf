"""A model without compute: its backward() brings given Gaussian gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bench.exchange_layout import gradients


class Source:
    """The gradients of one rank, in the shapes of a model."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], rank: int) -> None:
        self._shapes = shapes
        self._sizes = [math.prod(shape) for shape in shapes]
        self._flat = [self._make(rank, step) for step in range(gradients(sum(self._sizes)))]
        self._next = 0

    def _make(self, rank: int, step: int) -> Tensor:
        generator = torch.Generator().manual_seed(1000 * rank + step)
        return torch.randn(sum(self._sizes), generator=generator)

    def take(self) -> list[Tensor]:
        """Of the next step: new views, so that autograd takes them without a copy."""
        flat = self._flat[self._next % len(self._flat)]
        self._next += 1
        pieces = torch.split(flat, self._sizes)
        return [p.view(own) for p, own in zip(pieces, self._shapes, strict=True)]

    def exact_mean(self, world: int) -> Tensor:
        """Over all ranks, of what was taken last."""
        step = (self._next - 1) % len(self._flat)
        mean = torch.zeros(sum(self._sizes))
        for rank in range(world):
            mean += self._make(rank, step)
        return mean.div_(world)


class Given(torch.autograd.Function):
    """A scalar whose gradients are those of a Source."""

    @staticmethod
    def forward(ctx: Any, source: Source, *parameters: Tensor) -> Tensor:
        ctx.source = source
        return parameters[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        return (None, *ctx.source.take())


class Parameters(nn.Module):
    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        # numpy's zeros, unlike torch's, take no memory until somebody writes.
        zeros = [torch.from_numpy(numpy.zeros(shape, numpy.float32)) for shape in shapes]
        self.weights = nn.ParameterList([nn.Parameter(zero) for zero in zeros])

    def forward(self, source: Source) -> Tensor:
        loss: Tensor = Given.apply(source, *self.weights)  # type: ignore[no-untyped-call]
        return loss

    def masks(self, keep: float) -> dict[str, Tensor]:
        """Keeps that share of each parameter, chosen at random, equally on all ranks."""
        masks = {}
        for number, (name, parameter) in enumerate(self.named_parameters()):
            generator = torch.Generator().manual_seed(number)
            order = torch.randperm(parameter.numel(), generator=generator)
            mask = torch.zeros(parameter.numel(), dtype=torch.bool)
            mask[order[: round(keep * parameter.numel())]] = True
            masks[name] = mask.view_as(parameter)
        return masks


def wrap(
    shapes: Sequence[tuple[int, ...]], bucket_cap_mb: float | None = None
) -> DistributedDataParallel:
    return DistributedDataParallel(Parameters(shapes), bucket_cap_mb=bucket_cap_mb,
                                   gradient_as_bucket_view=True, init_sync=False)  # fmt: skip


def step(model: nn.Module, source: Source) -> None:
    model.zero_grad()
    torch.autograd.backward(model(source))
