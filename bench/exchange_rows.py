"""The rows of bench/exchange.py: what each exchanges, and the bytes that this must cost.

Peers are hooks of torch's DDP over Gloo: torch's own, and top-k as it is commonly
written, since torch has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from bench.exchange_layout import (
    LEVELS_BITS,
    Layout,
    all_gather_bytes,
    all_reduce_bytes,
    model_shapes,
    powersgd_bytes,
)

GradientHook = Callable[[GradBucket], torch.futures.Future[Tensor]]


@dataclass(frozen=True)
class Ours:
    """What PacTrain shall do: `levels` 0 is fp32; keep 1 means no masks."""

    mode: str
    keep: float = 1.0
    levels: int = 0

    def link_bytes(self, elements: int) -> float:
        """Of one sum: an exact one needs every kept element once."""
        bits = LEVELS_BITS[self.levels] if self.levels else 32
        return elements * self.keep * bits / 8


@dataclass(frozen=True)
class Peer:
    """One rank puts `own_bytes` of so many elements into all-reduces, or an all-gather.

    Those without a hook are DDP as it comes, in buckets of its own choice.
    """

    make_hook: Callable[[], GradientHook] | None
    own_bytes: Callable[[int], float]
    gathers: bool = False

    def link_bytes(self, layout: Layout, elements: int) -> float:
        """On the busiest link and direction."""
        count = all_gather_bytes if self.gathers else all_reduce_bytes
        return count(layout, self.own_bytes(elements))


def powersgd(rank: int) -> GradientHook:
    # Compresses from the third step on, as early as torch allows with bucket rebuilding.
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank,
                                        start_powerSGD_iter=2)  # fmt: skip

    def hook(bucket: GradBucket) -> torch.futures.Future[Tensor]:
        return powerSGD_hook.powerSGD_hook(state, bucket)

    return hook


@dataclass
class TopK:
    """Each rank's largest elements of a bucket, gathered by all; the rest is kept for later.

    Deep Gradient Compression's exchange (arXiv 1712.01887) without its momentum terms.
    Indices travel in 32 bits.
    """

    density: float
    left: dict[int, Tensor] = field(default_factory=dict)  # Of a bucket.

    def __call__(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        buffer = bucket.buffer()
        left = self.left.get(bucket.index())
        if left is not None and left.numel() == buffer.numel():
            buffer.add_(left)
        world = dist.get_world_size()
        count = max(1, round(self.density * buffer.numel()))
        indices = torch.topk(buffer.abs(), count, sorted=False).indices
        values = buffer[indices]
        self.left[bucket.index()] = buffer.index_fill(0, indices, 0)
        all_values = values.new_empty(world * count)
        all_indices = torch.empty(world * count, dtype=torch.int32)
        works = [
            dist.all_gather_into_tensor(to, own, async_op=True)
            for to, own in ((all_values, values), (all_indices, indices.int()))
        ]

        def add(_: Any) -> Tensor:
            return buffer.zero_().index_add_(0, all_indices, all_values).div_(world)

        gathered = torch.futures.collect_all([work.get_future() for work in works])
        result: torch.futures.Future[Tensor] = gathered.then(add)
        return result


def _world_hook(hook: Callable[[Any, GradBucket], Any]) -> GradientHook:
    return lambda bucket: hook(dist.group.WORLD, bucket)


def _powersgd_peer(rank: int) -> Peer:
    return Peer(lambda: powersgd(rank), lambda n: powersgd_bytes(model_shapes(n), rank))


def _topk_peer(density: float) -> Peer:
    return Peer(lambda: TopK(density), lambda n: 8 * math.ceil(density * n), gathers=True)


DDP = "ddp-gloo"  # The row that the others are compared with.
PEERS = {
    DDP: Peer(lambda: _world_hook(default_hooks.allreduce_hook), lambda n: 4 * n),
    "ddp-default": Peer(None, lambda n: 4 * n),
    "fp16": Peer(lambda: _world_hook(default_hooks.fp16_compress_hook), lambda n: 2 * n),
    "powersgd1": _powersgd_peer(1),
    "powersgd4": _powersgd_peer(4),
    "topk0.1": _topk_peer(0.1),
    "topk0.01": _topk_peer(0.01),
}
OURS = {
    "full": Ours("FULL"),
    "compacted-0.5": Ours("COMPACTED", 0.5),
    "levels7-0.5": Ours("TERNARY", 0.5, 7),
    "levels7-0.2": Ours("TERNARY", 0.2, 7),
    "levels15-0.5": Ours("TERNARY", 0.5, 15),
}
ROWS = (*PEERS, *OURS)
# Squared error of the result over the exact mean's squares, three sites in a chain.
NMSE_GOALS = {7: 0.15, 15: 0.03}


def link_bytes(name: str, layout: Layout, elements: int) -> float:
    """Codec bytes of a row on the busiest link and direction."""
    if name in OURS:
        return layout.tree_crossings * OURS[name].link_bytes(elements)
    return PEERS[name].link_bytes(layout, elements)
