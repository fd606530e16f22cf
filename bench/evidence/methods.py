"""What each method does to the workers' gradients: [workers, elements] in, what all apply out.

State (errors that are fed back, momentum) is the object's; randomness comes from `seed` and
the step, so a run repeats. `bytes` is what a step puts on the busiest link and direction of
the paper's chain (3 + 2 + 3 workers); flat methods cross it by a ring, as bench-exchange's
layout has it.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from bench.evidence import codec
from bench.exchange_layout import all_gather_bytes, all_reduce_bytes, parse_layout
from pactrain.types import Codec

LAYOUT = parse_layout("3,2,3", "", "")
Shapes = Sequence[tuple[int, ...]]


@dataclass
class Setup:
    """What a method is told once."""

    shapes: Shapes  # Of the parameters, in the order of the flat gradient.
    seed: int
    momentum: float = 0.9  # For those that keep it at the workers.
    steps: int = 1  # Of a whole run: warm-ups are shares of it.
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - it does not change.

    @property
    def pieces(self) -> list[slice]:
        ends = np.cumsum([math.prod(shape) for shape in self.shapes]).tolist()
        return [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)]

    def generator(self, step: int, worker: int) -> torch.Generator:
        """Each device draws its own numbers of a seed."""
        seed = (self.seed * 1_000_003 + step) * 97 + worker
        return torch.Generator(self.device).manual_seed(seed)

    def random(self, count: int, step: int, worker: int) -> Tensor:
        """[count] in [0, 1)."""
        return torch.rand(count, generator=self.generator(step, worker), device=self.device)


class Method(abc.ABC):
    """Of synchronous ones; LocalSteps below has no exchange of gradients."""

    keeps_momentum = False  # The optimizer then has none of gradients.
    carried: ClassVar[tuple[str, ...]] = ()  # What it takes along from step to step.

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    @abc.abstractmethod
    def exchange(self, gradients: Tensor, step: int) -> tuple[Tensor, float]:
        """What all apply in place of the mean, [elements], and the step's bytes."""


class Ddp(Method):
    def exchange(self, gradients: Tensor, step: int) -> tuple[Tensor, float]:
        return gradients.mean(0), all_reduce_bytes(LAYOUT, 4 * gradients.shape[1])


class Fp16(Method):
    """torch's fp16_compress_hook: halves, divided before they are added in halves."""

    def exchange(self, gradients: Tensor, step: int) -> tuple[Tensor, float]:
        halves = gradients.half().div_(len(gradients))
        total = halves[0].clone()
        for row in halves[1:]:
            total += row
        return total.float(), all_reduce_bytes(LAYOUT, 2 * gradients.shape[1])


class Agents(Method):
    """PacTrain's exchange by its own code; `kept` elements of the flat gradient, or all."""

    def __init__(
        self, setup: Setup, what: Codec, kept: Tensor | None = None, tree: codec.Tree = codec.CHAIN
    ) -> None:
        super().__init__(setup)
        self._codec, self._tree = what, tree
        self._kept = kept

    def exchange(self, gradients: Tensor, step: int) -> tuple[Tensor, float]:
        rows = gradients if self._kept is None else gradients[:, self._kept]
        # Steps of a job are counted from 1; the seed is another job's dither.
        number = self.setup.seed * 1_000_000 + step + 1
        total, sent = codec.exchange(rows, self._codec, number, tree=self._tree)
        mean = total / len(gradients)
        if self._kept is None:
            return mean, float(max(sent))
        whole = gradients.new_zeros(gradients.shape[1])
        return whole.index_copy_(0, self._kept, mean), float(max(sent))


class TopK(Method):
    """Each worker's largest elements of all, by value and 32-bit index."""

    carried = ("_left",)

    def __init__(self, setup: Setup, density: float, feedback: bool) -> None:
        super().__init__(setup)
        self._density = density
        self._feedback = feedback
        self._left: Tensor | None = None

    def exchange(self, gradients: Tensor, step: int) -> tuple[Tensor, float]:
        wanted = gradients if self._left is None else gradients + self._left
        count = max(1, round(self._density * gradients.shape[1]))
        indices = wanted.abs().topk(count, sorted=False).indices
        sent = torch.zeros_like(wanted).scatter_(1, indices, wanted.gather(1, indices))
        if self._feedback:
            self._left = wanted - sent
        return sent.mean(0), all_gather_bytes(LAYOUT, 8 * count)


class Dgc(Method):
    """Deep Gradient Compression (arXiv 1712.01887): momentum correction, momentum factor
    masking, local clipping and a density that falls while it warms up."""

    keeps_momentum = True
    carried = ("_momentum", "_left")
    DENSITIES = (0.25, 0.0625, 0.015625, 0.004)  # Then 0.001.
    LAST = 0.001
    WARM_UP = 0.1  # Of the run.

    def __init__(self, setup: Setup, clip: float = 0.0, cold: bool = False) -> None:
        """`cold`: without a warm-up."""
        super().__init__(setup)
        self._clip, self._cold = clip, cold
        self._momentum: Tensor | None = None
        self._left: Tensor | None = None

    def density(self, step: int) -> float:
        return self.LAST if self._cold else self.warming_density(step, self.setup.steps)

    @classmethod
    def warming_density(cls, step: int, steps: int) -> float:
        """Of a step of a run of `steps`."""
        stage = int(step / max(1.0, cls.WARM_UP * steps) * len(cls.DENSITIES))
        return cls.DENSITIES[stage] if stage < len(cls.DENSITIES) else cls.LAST

    def exchange(self, gradients: Tensor, step: int) -> tuple[Tensor, float]:
        if self._clip:  # Each worker to its share of the norm.
            most = self._clip / math.sqrt(len(gradients))
            norms = gradients.norm(dim=1, keepdim=True)
            gradients = gradients * (most / norms.clamp_min(1e-12)).clamp_max(1)
        if self._momentum is None or self._left is None:
            self._momentum = torch.zeros_like(gradients)
            self._left = torch.zeros_like(gradients)
        self._momentum = (self._momentum + gradients).mul_(self.setup.momentum)  # Nesterov's.
        self._left += self._momentum + gradients
        count = max(1, round(self.density(step) * gradients.shape[1]))
        indices = self._left.abs().topk(count, sorted=False).indices
        sent = torch.zeros_like(gradients).scatter_(1, indices, self._left.gather(1, indices))
        self._left.scatter_(1, indices, 0.0)
        self._momentum.scatter_(1, indices, 0.0)
        return sent.mean(0), self.bytes(count, gradients.shape[1])

    @staticmethod
    def bytes(count: int, elements: int) -> float:
        """Sparse, or dense where that is less, as in the first steps of a warm-up."""
        return min(all_gather_bytes(LAYOUT, 8 * count), all_reduce_bytes(LAYOUT, 4 * elements))


class PowerSgd(Method):
    """torch's powerSGD_hook with a warm start and error feedback, from the first step.

    It needs the mean alone: each worker's error is linear in its gradient.
    """

    carried = ("_error", "_qs")

    def __init__(self, setup: Setup, rank: int, hook_seed: int = 0) -> None:
        super().__init__(setup)
        self._rank = rank
        self._error: Tensor | None = None
        self._qs: dict[tuple[int, int], Tensor] = {}
        self._hook_seed = hook_seed

    def _worth(self, shape: tuple[int, ...]) -> bool:
        rows, columns = shape[0], math.prod(shape[1:])
        return (rows + columns) * min(rows, columns, self._rank) * 2 < rows * columns

    def _by_shape(self) -> dict[tuple[int, int], list[slice]]:
        groups: dict[tuple[int, int], list[slice]] = {}
        for shape, piece in zip(self.setup.shapes, self.setup.pieces, strict=True):
            if self._worth(shape):
                groups.setdefault((shape[0], math.prod(shape[1:])), []).append(piece)
        return groups

    def exchange(self, gradients: Tensor, step: int) -> tuple[Tensor, float]:
        mean = gradients.mean(0)
        if self._error is not None:
            mean += self._error
        result = mean.clone()
        groups = self._by_shape()
        if not self._qs:
            self._start(groups)
        for shape, pieces in groups.items():
            matrices = torch.stack([mean[piece].view(shape) for piece in pieces])
            p = orthogonal(matrices @ orthogonal(self._qs[shape]))
            q = matrices.transpose(1, 2) @ p
            self._qs[shape] = q
            for piece, matrix in zip(pieces, p @ q.transpose(1, 2), strict=True):
                result[piece] = matrix.flatten()
        self._error = mean - result
        return result, all_reduce_bytes(LAYOUT, 4 * self.elements())

    def _start(self, groups: dict[tuple[int, int], list[slice]]) -> None:
        """As the hook draws them, so that a test can hold both together."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(np.random.RandomState(self._hook_seed).randint(1_000_000_000))
            for shape, pieces in groups.items():
                rank = min(*shape, self._rank)
                drawn = torch.randn(len(pieces), shape[1], rank)
                self._qs[shape] = drawn.to(self.setup.device)

    def elements(self) -> int:
        """What a worker puts into its all-reduces."""
        small = [
            (shape[0] + math.prod(shape[1:])) * min(shape[0], math.prod(shape[1:]), self._rank)
            if self._worth(shape)
            else math.prod(shape)
            for shape in self.setup.shapes
        ]
        return sum(small)


def orthogonal(matrices: Tensor) -> Tensor:
    """Columns made orthonormal; a column of zeros stays one, where the hook's becomes NaN."""
    columns: list[Tensor] = []
    for column in matrices.unbind(2):
        for other in columns:
            column = column - (other * column).sum(1, keepdim=True) * other
        columns.append(column / column.norm(dim=1, keepdim=True).clamp_min(1e-30))
    return torch.stack(columns, 2)


class TernGrad(Method):
    """TernGrad (arXiv 1705.07878): clipped at 2.5 sigma, one scale per layer shared by all
    workers, -1, 0 or 1 at random. int8 over a flat ring. Under a mask it is what the paper
    sends (PacTrain, section III)."""

    CLIP = 2.5

    def __init__(self, setup: Setup, kept: Tensor | None = None) -> None:
        super().__init__(setup)
        self._mask = None
        if kept is not None:
            elements = sum(map(math.prod, setup.shapes))
            self._mask = torch.zeros(elements, dtype=torch.bool, device=setup.device)
            self._mask[kept] = True

    def exchange(self, gradients: Tensor, step: int) -> tuple[Tensor, float]:
        total = gradients.new_zeros(gradients.shape[1])
        scales = self._scales(gradients)
        for worker, row in enumerate(gradients):
            drawn = self.setup.random(len(row), step, worker)
            total += row.sign() * (drawn * scales < row.abs()) * scales
        count = gradients.shape[1]
        if self._mask is not None:
            total *= self._mask
            count = int(self._mask.sum())
        return total / len(gradients), all_reduce_bytes(LAYOUT, count)

    def _scales(self, gradients: Tensor) -> Tensor:
        """[elements]: per layer, the largest of all workers after clipping."""
        scales = gradients.new_empty(gradients.shape[1])
        for piece in self.setup.pieces:
            layer = gradients[:, piece]
            if self._mask is not None:
                layer = layer[:, self._mask[piece]]
            if layer.numel() == 0:
                scales[piece] = 0
                continue
            sigma = layer.square().mean(1).sqrt()
            scales[piece] = torch.minimum(layer.abs().amax(1), self.CLIP * sigma).max()
        return scales


class Thc(Method):
    """THC (arXiv 2302.08545) with its uniform table: 16 levels after a random rotation, one
    range for all workers, errors fed back. 4 bits up and 8 down at a parameter server."""

    LEVELS = 16
    RANGE = 3.0  # Standard deviations of what is rotated.
    carried = ("_left",)

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._left: Tensor | None = None

    def exchange(self, gradients: Tensor, step: int) -> tuple[Tensor, float]:
        wanted = gradients if self._left is None else gradients + self._left
        elements = wanted.shape[1]
        size = 1 << (elements - 1).bit_length()
        coin = self.setup.generator(step, 90)
        signs = torch.randint(0, 2, (size,), generator=coin, device=coin.device) * 2.0 - 1
        most = float(wanted.norm(dim=1).max()) / math.sqrt(size) * self.RANGE
        width = max(2 * most / (self.LEVELS - 1), 1e-30)
        sent = torch.empty_like(wanted)
        for worker, row in enumerate(wanted):
            rotated = hadamard(torch.nn.functional.pad(row, (0, size - elements)) * signs)
            places = (rotated.clamp(-most, most) + most) / width
            drawn = self.setup.random(size, step, worker)
            back = hadamard((places + drawn).floor() * width - most) * signs
            sent[worker] = back[:elements]
        self._left = wanted - sent
        return sent.mean(0), 3.0 * elements  # The site of three: 4 bits up, 8 down; its worst.


def hadamard(x: Tensor) -> Tensor:
    """The orthonormal Walsh-Hadamard transform of 2^n numbers: its own inverse."""
    size, half = len(x), 1
    while half < size:
        pairs = x.view(-1, 2, half)
        x = torch.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], 1).flatten()
        half *= 2
    return x / math.sqrt(size)


# Of the outer step, both its authors'. Less does no better here: experiments of group "outer".
DILOCO_RATE, DILOCO_MOMENTUM = 0.7, 0.9


@dataclass
class LocalSteps:
    """Local SGD (outer rate 1), or DiLoCo (arXiv 2311.08105): `period` own steps, then the
    mean of the workers' moves is applied, with Nesterov's momentum where `outer` > 0."""

    period: int
    outer: float = 0.0
    outer_rate: float = 1.0
    carried: ClassVar[tuple[str, ...]] = ("_momentum",)
    _momentum: Tensor | None = field(default=None, repr=False)

    def merge(self, start: Tensor, workers: Tensor) -> Tensor:
        """The common weights after the workers' [workers, elements]."""
        move = start - workers.mean(0)
        if self.outer:
            before = torch.zeros_like(move) if self._momentum is None else self._momentum
            self._momentum = self.outer * before + move
            move = self.outer * self._momentum + move
        return start - self.outer_rate * move

    def bytes(self, elements: int) -> float:
        """Of a step, on the average."""
        return all_reduce_bytes(LAYOUT, 4 * elements) / self.period


@dataclass(frozen=True)
class Row:
    """A method of the tables. `make` gets the setup and what the mask keeps."""

    title: str
    make: Callable[[Setup, Tensor | None], Method | LocalSteps]
    keep: float = 1.0  # 1 - prune()'s amount.
    only: str = ""  # The one optimizer that it goes with.
    ours: bool = False
    # Of experiments: prune()'s other arguments, the share of the steps after which it is
    # called, whether it begins with fresh weights, as many times the workload's steps, and
    # whether the rate falls to 0 after its warm-up.
    prune: Mapping[str, str] = field(default_factory=dict)
    mask_at: float = 0.0
    random_start: bool = False
    steps: int = 1
    decays: bool = False


def _ours(what: Codec, keep: float, title: str) -> Row:
    return Row(title, lambda setup, kept: Agents(setup, what, kept), keep, ours=True)


def _topk(density: float, feedback: bool) -> Row:
    return Row(f"TopK-{density:g}{' with error feedback' if feedback else ''}",
               lambda setup, kept: TopK(setup, density, feedback))  # fmt: skip


def _powersgd(rank: int) -> Row:
    return Row(f"PowerSGD of rank {rank}", lambda setup, kept: PowerSgd(setup, rank))


def _local(period: int) -> Row:
    return Row(f"local SGD, H = {period}", lambda setup, kept: LocalSteps(period))


def diloco(period: int, outer: float) -> Row:
    return Row(f"DiLoCo, H = {period}",
               lambda setup, kept: LocalSteps(period, outer, DILOCO_RATE))  # fmt: skip


ROWS: dict[str, Row] = {
    "ddp": Row("DDP all-reduce, fp32", lambda setup, kept: Ddp(setup)),
    "fp16": Row("DDP, fp16 hook", lambda setup, kept: Fp16(setup)),
    "hier_bf16": Row("site-hierarchical all-reduce, bf16",
                     lambda setup, kept: Agents(setup, Codec.BF16)),
    "topk0.1": _topk(0.1, False),
    "topk0.1ef": _topk(0.1, True),
    "topk0.01": _topk(0.01, False),
    "topk0.01ef": _topk(0.01, True),
    "dgc": Row("DGC, density 0.001", lambda setup, kept: Dgc(setup), only="sgd"),
    "dgc_cold": Row("DGC, density 0.001, no warm-up",
                    lambda setup, kept: Dgc(setup, cold=True), only="sgd"),
    "powersgd1": _powersgd(1),
    "powersgd2": _powersgd(2),
    "powersgd4": _powersgd(4),
    "terngrad": Row("TernGrad, int8 ring", lambda setup, kept: TernGrad(setup)),
    "paper": Row("the paper's ternary, int8 ring, keep 0.5",
                 lambda setup, kept: TernGrad(setup, kept), keep=0.5),
    "thc": Row("THC, uniform table", lambda setup, kept: Thc(setup)),
    "local8": _local(8),
    "local30": _local(30),
    "diloco8": diloco(8, DILOCO_MOMENTUM),
    "diloco30": diloco(30, DILOCO_MOMENTUM),
    "levels7": _ours(Codec.LEVELS7, 1.0, "PacTrain, 7 levels, no mask"),
    "exact-0.5": _ours(Codec.FP32, 0.5, "PacTrain, exact, keep 0.5"),
    "levels7-0.5": _ours(Codec.LEVELS7, 0.5, "PacTrain, 7 levels, keep 0.5"),
    "levels3-0.5": _ours(Codec.LEVELS3, 0.5, "PacTrain, 3 levels, keep 0.5"),
    "exact-0.2": _ours(Codec.FP32, 0.2, "PacTrain, exact, keep 0.2"),
    "levels7-0.2": _ours(Codec.LEVELS7, 0.2, "PacTrain, 7 levels, keep 0.2"),
}  # fmt: skip
