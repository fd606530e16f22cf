"""What the weights of a layer are worth: the lowest scores are pruned."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from . import storage
from .errors import InvalidArgument

Loss: TypeAlias = "Callable[..., Tensor]"
Pieces: TypeAlias = "Callable[[], Iterator[Tensor]]"
PIECE = 1 << 16  # Elements.
# What torch raises for wrong arguments, shapes and dtypes.
_MISFITS = (TypeError, ValueError, IndexError, RuntimeError)


@dataclass(frozen=True)
class Scores:
    """A float32 for each weight of a layer, on the CPU and in pieces: a whole layer's
    would take as much memory as it. A call gives flat pieces in the order of memory
    that `strides` have, the same ones each time.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    pieces: Pieces

    def __call__(self) -> Iterator[Tensor]:
        return self.pieces()

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    def new_mask(self) -> Tensor:
        """In the same order, not filled."""
        return torch.empty_strided(self.shape, self.strides, dtype=torch.bool)

    def without(self, kept: Tensor) -> Scores:
        """-inf outside a mask."""
        kept = kept.cpu()
        ordered = self.new_mask().copy_(kept) if kept.stride() != self.strides else kept
        flat = ordered.as_strided((self.elements,), (1,))

        def pieces() -> Iterator[Tensor]:
            begin = 0
            for piece in self():
                end = begin + piece.numel()
                yield piece.masked_fill(~flat[begin:end], -torch.inf)
                begin = end

        return Scores(self.shape, self.strides, pieces)

    @staticmethod
    def of(values: Tensor | Scores) -> Scores:
        if isinstance(values, Scores):
            return values
        strides = torch.empty(values.shape, device="meta").stride()
        flat = values.reshape(-1).cpu()
        return Scores(
            tuple(values.shape), strides, lambda: iter(torch.split(flat, PIECE))
        )


def magnitude(parameters: Sequence[Tensor]) -> Iterator[Scores]:
    """|w|, one after the other."""
    return map(_magnitude, parameters)


def _magnitude(parameter: Tensor) -> Scores:
    def pieces() -> Iterator[Tensor]:
        flat = storage.flatten(parameter.detach(), parameter)
        return (piece.abs().float().cpu() for piece in torch.split(flat, PIECE))

    strides = storage.bucket_strides(parameter)
    return Scores(tuple(parameter.shape), strides, pieces)


def random(parameters: Sequence[Tensor], seed: int) -> Iterator[Tensor]:
    """Uniform in [0, 1): equal at all ranks for equal seeds, and at each call."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(p.shape, generator=generator) for p in parameters)


def grasp(
    model: nn.Module,
    parameters: Sequence[Tensor],
    loss: Loss,
    batch: Sequence[Any] | None,
) -> list[Tensor]:
    """theta * (H g): minus the score of GraSP (Wang et al., ICLR 2020, equation 8).

    g and H are gradient and Hessian of the loss over all parameters. Removing weight i
    changes the squared norm of the gradient by about -2 theta_i (H g)_i; the paper
    drops where that is highest, so that training keeps its speed.

    Buffers and random states are afterwards as before.

    Args:
      loss: of (model) alone, or, with a batch, of (output, target): a scalar.
      batch: (inputs, target).

    Raises:
      InvalidArgument: the model or the loss does not take these arguments, or the loss
        is not a scalar that depends on the weights.
    """
    plain = _plain(model)
    trained = [p for p in plain.parameters() if p.requires_grad]
    with _left_as_it_was(plain), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        value = _value_of(loss, plain, batch)
        gradients = [
            g
            for g in torch.autograd.grad(
                value, trained, create_graph=True, allow_unused=True
            )
            if g is not None
        ]
        # d/dw of (g . constant g) is H g.
        flow = torch.stack([(g * g.detach()).sum() for g in gradients]).sum()
        products: Sequence[Tensor | None] = [None] * len(parameters)
        if flow.requires_grad:  # Not if the loss is linear in the weights: H is 0.
            products = torch.autograd.grad(flow, parameters, allow_unused=True)
    return [
        torch.zeros(p.shape) if hg is None else (p.detach() * hg).float()
        for p, hg in zip(parameters, products, strict=True)
    ]


def _plain(model: nn.Module) -> nn.Module:
    """Without DDP, whose reducer would wait for gradients, and torch.compile, which
    cannot differentiate twice."""
    inner = model
    while True:
        if isinstance(inner, nn.parallel.DistributedDataParallel):
            inner = inner.module
        elif isinstance(getattr(inner, "_orig_mod", None), nn.Module):
            inner = inner._orig_mod  # type: ignore[assignment]
        else:
            return inner


@contextlib.contextmanager
def _left_as_it_was(model: nn.Module) -> Iterator[None]:
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    device = next(model.parameters()).device
    try:
        with storage.same_random_numbers(device):
            yield
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


def _value_of(loss: Loss, model: nn.Module, batch: Sequence[Any] | None) -> Tensor:
    if batch is None:
        arguments, called = [model], "the model alone, since no batch was given"
    else:
        inputs, target = batch
        arguments = [_output_of(model, inputs), target]
        called = "(model(inputs), target), since a batch was given"
    try:
        value = loss(*arguments)
    except _MISFITS as error:
        raise InvalidArgument(
            f"loss raised {error!r}; it is called with {called}.\n"
            "Give for example loss=cross_entropy with batch=(inputs, labels), or "
            "without a batch a function of the model."
        ) from error
    _check_loss(value)
    return value


def _output_of(model: nn.Module, inputs: Any) -> Any:
    try:
        return model(inputs)
    except _MISFITS as error:
        raise InvalidArgument(
            f"batch: the model raised {error!r} for its inputs.\n"
            "Give batch=(inputs, target) with inputs that the model takes."
        ) from error


def _check_loss(value: object) -> None:
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        what = (
            f"a tensor of shape {tuple(value.shape)}"
            + ("" if value.requires_grad else " without a gradient")
            if isinstance(value, Tensor)
            else type(value).__name__
        )
        raise InvalidArgument(
            f"loss returned {what}; allowed is a scalar tensor that depends on the "
            "weights.\nGive for example loss=cross_entropy with batch=(inputs, labels)."
        )
