"""Peers of `make report-times --ready`: the exchanges of their methods, of ready-made bytes.

What an accelerator would do is slept: the compute, and a method's own compression (times.py). What
goes over the links is as the method sends it, by torch.distributed over Gloo, in its buckets and
order. Gloo sums on a processor, as DDP's all-reduce does. Nothing is random: no bytes are coded.

Site-hierarchical bf16 is by hand: a sum within each site, an all-reduce of the sites' first ranks,
which is a ring, and the same way back. It travels in fp16, which is as many bytes and which Gloo
can sum. (A sum in the middle site, chunk by chunk there and back, sends a quarter less. Over TCP as
it comes it took longer: the directions of a link hold each other up.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
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


class AllReduces(Exchange):
    """One after the other, as PowerSGD's: each needs what the one before brought."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = [tensor for tensor in tensors if tensor.numel()]
        self._first: Any = None

    def start(self) -> None:
        self._first = dist.all_reduce(self._tensors[0], async_op=True)

    def finish(self) -> None:
        self._first.wait()
        for tensor in self._tensors[1:]:
            dist.all_reduce(tensor)


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
    """Ranks by their sites; a site's first one leads."""

    def __init__(self, sizes: Sequence[int]) -> None:
        firsts = [sum(sizes[:site]) for site in range(len(sizes))]
        groups = [dist.new_group(list(range(first, first + size)))
                  for first, size in zip(firsts, sizes, strict=True)]  # fmt: skip
        rank = dist.get_rank()
        own = max(site for site, first in enumerate(firsts) if first <= rank)
        self.group, self.leader = groups[own], firsts[own]
        self.leaders = dist.new_group(firsts)
        # Buckets one after the other, beside the thread that releases them.
        self.thread = ThreadPoolExecutor(1)


class ByHand(Exchange):
    def __init__(self, sites: Sites, tensor: Tensor) -> None:
        self._sites, self._tensor = sites, tensor
        self._found: Future[None] | None = None

    def start(self) -> None:
        self._found = self._sites.thread.submit(self._run)

    def finish(self) -> None:
        assert self._found is not None
        self._found.result()

    def _run(self) -> None:
        sites = self._sites
        dist.reduce(self._tensor, sites.leader, group=sites.group)
        if dist.get_rank() == sites.leader:
            dist.all_reduce(self._tensor, group=sites.leaders)
        dist.broadcast(self._tensor, sites.leader, group=sites.group)


def exchange_of(cost: Cost, network: Network, elements: int, sites: Sites | None) -> Exchange:
    """Of a bucket of so many elements, of which one with PowerSGD is the whole network."""
    count = max(1, round(cost.keep * elements))
    if cost.powersgd:
        sizes = powersgd_factors(network.shapes, cost.powersgd)
        return AllReduces([torch.zeros(size) for size in sizes])
    if cost.how == "gather":
        return Gathers(count)
    tensor = torch.zeros(count, dtype=TYPES[int(cost.bits)])
    if cost.how == "tree":
        assert sites is not None
        return ByHand(sites, tensor)
    return AllReduces([tensor])


class ReadyRow:
    """A peer's steps."""

    def __init__(self, row: str, network: Network, sites: Sites | None) -> None:
        self._clock = Clock()
        make = partial(exchange_of, cost_of(row), network, sites=sites)
        self._buckets = [(bucket.at, make(bucket.elements))
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
