"""Peers of `make report-times --ready`: the exchanges of their methods, of ready-made bytes.

What an accelerator would do is slept: the compute, and a method's own compression (times.py). What
goes over the links is as the method sends it, by torch.distributed over Gloo, in its buckets and
order. Gloo sums on a processor, as DDP's all-reduce does. Nothing is random: no bytes are coded.

Site-hierarchical bf16 is by hand: a sum within each site, an all-reduce of the sites' first ranks,
which is a ring, and the same way back. It travels in fp16, which is as many bytes and which Gloo
can sum.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bench.evidence.clock import Clock
from bench.evidence.shapes import Network
from bench.evidence.step_times_plan import cost_of, ready_buckets
from bench.evidence.times import Cost
from bench.exchange_layout import powersgd_factors

TYPES = {8: torch.uint8, 16: torch.float16, 32: torch.float32}  # By bits of an element.


class Exchange(ABC):
    """Of one bucket."""

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def finish(self) -> None:
        """Waits until all ranks' bytes are there."""


class AllReduce(Exchange):
    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._work: Any = None

    def start(self) -> None:
        self._work = dist.all_reduce(self._tensor, async_op=True)

    def finish(self) -> None:
        self._work.wait()


class Chained(Exchange):
    """Parts that follow one another, each on a thread that does this part of all buckets in
    order: so they go on beside the thread that releases buckets."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._last: Future[None] | None = None

    def start(self) -> None:
        self._last = None
        for thread, do in self._parts:
            self._last = thread.submit(_after, self._last, do)

    def finish(self) -> None:
        assert self._last is not None
        self._last.result()


Part = tuple[ThreadPoolExecutor, Callable[[], object]]


def _after(before: Future[None] | None, do: Callable[[], object]) -> None:
    if before is not None:
        before.result()
    do()


class Gathers(Exchange):
    """Values and indices of so many elements of each rank."""

    def __init__(self, count: int) -> None:
        world = dist.get_world_size()
        self._own = [torch.zeros(count), torch.zeros(count, dtype=torch.int32)]
        self._all = [torch.zeros(world * count, dtype=own.dtype) for own in self._own]
        self._works: list[Any] = []

    def start(self) -> None:
        self._works = [dist.all_gather_into_tensor(to, own, async_op=True)
                       for to, own in zip(self._all, self._own, strict=True)]  # fmt: skip

    def finish(self) -> None:
        for work in self._works:
            work.wait()


class Sites:
    """Ranks by their sites; a site's first one leads. A group for each thread: ranks must call it
    in one order."""

    def __init__(self, sizes: Sequence[int]) -> None:
        firsts = [sum(sizes[:site]) for site in range(len(sizes))]
        rank = dist.get_rank()
        own = max(site for site, first in enumerate(firsts) if first <= rank)
        self.threads = [ThreadPoolExecutor(1) for _ in range(3)]
        self._leader = firsts[own]
        self._leaders = dist.new_group(firsts)
        self._in, self._out = (
            [dist.new_group(list(range(first, first + size)))
             for first, size in zip(firsts, sizes, strict=True)][own]
            for _ in range(2)
        )  # fmt: skip

    def by_hand(self, tensor: Tensor) -> Exchange:
        """While a bucket is between sites, the next is added up and the last handed out."""

        def among_leaders() -> None:
            if dist.get_rank() == self._leader:
                dist.all_reduce(tensor, group=self._leaders)

        parts = (partial(dist.reduce, tensor, self._leader, group=self._in), among_leaders,
                 partial(dist.broadcast, tensor, self._leader, group=self._out))  # fmt: skip
        return Chained(list(zip(self.threads, parts, strict=True)))

    def in_turn(self, tensors: Sequence[Tensor]) -> Exchange:
        """All-reduces of all ranks, as PowerSGD's: each needs what the one before brought."""
        return Chained([(self.threads[0], partial(dist.all_reduce, tensor))
                        for tensor in tensors if tensor.numel()])  # fmt: skip


def exchange_of(cost: Cost, shapes: Sequence[tuple[int, ...]], sites: Sites) -> Exchange:
    """Of a bucket of parameters of these shapes."""
    count = max(1, round(cost.keep * sum(map(math.prod, shapes))))
    if cost.powersgd:
        sizes = powersgd_factors(shapes, cost.powersgd)
        return sites.in_turn([torch.zeros(size) for size in sizes])
    if cost.how == "gather":
        return Gathers(count)
    tensor = torch.zeros(count, dtype=TYPES[int(cost.bits)])
    return sites.by_hand(tensor) if cost.how == "tree" else AllReduce(tensor)


class ReadyRow:
    """A peer's steps."""

    def __init__(self, row: str, network: Network, sites: Sites) -> None:
        self._clock = Clock()
        self._buckets = [(bucket.at, exchange_of(cost_of(row), bucket.shapes, sites))
                         for bucket in ready_buckets(row, network)]  # fmt: skip

    def take(self) -> None:
        """A step: each bucket goes when the accelerator would have it."""
        self._clock.begin()
        for at, exchange in self._buckets:
            self._clock.sleep_until(at)
            exchange.start()
        for _, exchange in self._buckets:
            exchange.finish()

    def settle(self) -> None:
        self.take()

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass
