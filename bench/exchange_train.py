"""One trainer of bench/exchange.py: exchanges given gradients by each row in turn.

No compute: backward() hands Gaussian gradients to DDP. Rows of peers share one DDP over
Gloo, whose hook is changed between rounds; each of ours has a DDP and an attached session
of its own. Rank 0 prints lines of JSON: "attached", then "round" and "raw" events.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

import pactrain
from bench.exchange_layout import model_shapes
from bench.exchange_rows import OURS, PEERS, GradientHook, Ours
from bench.testbed import shape, shaped_counters
from pactrain.types import Codec, Mode

GRADIENTS = 2  # Different ones, used in turn.
ROUND_SECONDS = 1.0  # A round has as many steps as this takes, and at least one.
MOST_STEPS = 20
SETTLE_STEPS = 100  # Until the coordinator's decision is what a row wants.
KEEP_ROUNDING = 1e-3  # Each parameter keeps whole elements.
PEER_WARM_UP = 4  # DDP rebuilds its buckets, PowerSGD starts to compress.
RAW_SECONDS = 1.0
RAW_SKIP = 0.2  # Share of it that is not counted: TCP's start and tbf's burst.


class Source:
    """The gradients of one rank, in the shapes of a model."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], rank: int) -> None:
        self._shapes = shapes
        self._sizes = [math.prod(shape) for shape in shapes]
        self._flat = []
        for step in range(GRADIENTS):
            generator = torch.Generator().manual_seed(1000 * rank + step)
            self._flat.append(torch.randn(sum(self._sizes), generator=generator))
        self._next = 0

    def take(self) -> list[Tensor]:
        """Of the next step: new views, so that autograd takes them without a copy."""
        flat = self._flat[self._next % GRADIENTS]
        self._next += 1
        pieces = torch.split(flat, self._sizes)
        return [p.view(own) for p, own in zip(pieces, self._shapes, strict=True)]


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
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(s)) for s in shapes])

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
                                   gradient_as_bucket_view=True)  # fmt: skip


def step(model: DistributedDataParallel, source: Source) -> None:
    model.zero_grad()
    torch.autograd.backward(model(source))


class Peers:
    """One DDP whose gradients are exchanged by the hook of the moment."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], names: Sequence[str]) -> None:
        self._hooks = {name: PEERS[name].make_hook() for name in names}
        self._hook: GradientHook | None = None
        # One bucket: with several, torch's PowerSGD hook waits for Gloo within Gloo's threads
        # until all of them wait.
        self._model = wrap(shapes, 1 + sum(map(math.prod, shapes)) * 4 / 2**20)
        self._model.register_comm_hook(self, _dispatch)

    def hook(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        assert self._hook is not None
        return self._hook(bucket)

    def warm_up(self, source: Source) -> None:
        for name in self._hooks:
            for _ in range(PEER_WARM_UP):
                self.step(name, source)

    def step(self, name: str, source: Source) -> None:
        self._hook = self._hooks[name]
        step(self._model, source)


def _dispatch(state: Peers, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    return state.hook(bucket)


# DDP wants these annotations as objects.
_dispatch.__annotations__ = {"bucket": GradBucket,
                             "return": torch.futures.Future[torch.Tensor]}  # fmt: skip


class Attached:
    """A row of ours: one more attached model of the job."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], row: Ours) -> None:
        self._row = row
        self.model = wrap(shapes)
        masks = self.model.module.masks(row.keep) if row.keep < 1 else None
        self.session = pactrain.attach(self.model, masks=masks)

    def settle(self, name: str, source: Source) -> None:
        """Steps until they travel as the row wants; all ranks see that at the same one.

        SystemExit: that does not happen.
        """
        for _ in range(SETTLE_STEPS):
            step(self.model, source)
            if self.is_as_wanted():
                return
        raise SystemExit(f"{name}: still {self.session.decision}")

    def is_as_wanted(self) -> bool:
        """Whether the last step was."""
        stats = self.session.stats()
        kept = 1 / stats["pactrain/ratio"]
        codec = f"LEVELS{self._row.levels}" if self._row.levels else "FP32"
        return (
            stats["pactrain/mode"] == Mode[self._row.mode]
            and stats["pactrain/codec"] == Codec[codec]
            and abs(kept - self._row.keep) < KEEP_ROUNDING
        )


class Meter:
    """Times rows; rank 0 reads the bytes on the links and the agents' CPU time."""

    def __init__(self, source: Source, core: str, links: int, agents: Sequence[int]) -> None:
        self._source = source
        self._core = core
        self._links = links
        self._agents = agents
        self._rank, self._world = dist.get_rank(), dist.get_world_size()

    def measure(self, take_step: Callable[[Source], None], steps: int) -> dict[str, Any] | None:
        """One step to get into step with the others, then `steps` timed ones; at rank 0."""
        before, agents_before, cpu = self._counters(), self._agents_cpu(), time.process_time()
        times = []
        for _ in range(steps + 1):
            take_step(self._source)
            times.append(time.monotonic())
        dist.barrier()
        cpu = time.process_time() - cpu
        after = self._counters()
        agents_cpu = self._agents_cpu() - agents_before
        ranks: list[Any] = [None] * self._world
        dist.all_gather_object(ranks, (times[-1] - times[0], cpu))
        if self._rank != 0:
            return None
        return {
            "seconds": max(seconds for seconds, _ in ranks) / steps,
            "cpu_seconds": (sum(cpu for _, cpu in ranks) + agents_cpu) / (steps + 1),
            "link_bytes": [(b - a) / (steps + 1) for a, b in zip(before, after, strict=True)],
            "times": times,
        }

    def _counters(self) -> list[int]:
        """Payload per link and direction; all ranks leave together."""
        counters = shaped_counters(self._core, self._links) if self._rank == 0 else []
        dist.barrier()
        return [counter.payload for counter in counters]

    def _agents_cpu(self) -> float:
        if self._rank != 0:
            return 0.0
        ticks = 0
        for pid in self._agents:
            with open(f"/proc/{pid}/stat") as stat:
                fields = stat.read().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def raw(self, target: int, address: str, rate_mbps: float) -> float | None:
        """Payload bytes per second of one TCP stream from rank 0 to `target`; at rank 0."""
        box: list[Any] = [None]
        size = int(rate_mbps * 1e6 / 8 * RAW_SECONDS)
        if self._rank == target:
            with socket.create_server((address, 0)) as server:
                dist.broadcast_object_list([server.getsockname()[1]], src=target)
                peer, _ = server.accept()
            with peer:
                box = [receive(peer, size)]
        else:
            dist.broadcast_object_list(box, src=target)
            if self._rank == 0:
                with socket.create_connection((address, box[0])) as peer:
                    peer.sendall(bytes(size))
        dist.broadcast_object_list(box, src=target)
        return float(box[0]) if self._rank == 0 else None


def receive(peer: socket.socket, size: int) -> float:
    """Bytes per second after the first of them."""
    done, skipped, since = 0, 0, 0.0
    buffer = bytearray(1 << 20)
    while (count := peer.recv_into(buffer)) > 0:
        done += count
        if skipped == 0 and done > RAW_SKIP * size:
            skipped, since = done, time.monotonic()
    return (done - skipped) / (time.monotonic() - since)


def report(rank: int, **event: Any) -> None:
    if rank == 0:
        print(json.dumps(event), flush=True)


def steps_for(measured: Mapping[str, Any] | None, wanted: int) -> int:
    """Steps of a round, equal on all ranks; `measured`: one round, known to rank 0."""
    steps = 0
    if measured is not None:
        steps = wanted or min(MOST_STEPS, math.ceil(ROUND_SECONDS / measured["seconds"]))
    box = [steps]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.exchange_train")
    parser.add_argument("--elements", type=int, required=True)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True, help="0: as many as take a second")
    parser.add_argument("--rate-mbps", type=float, required=True)
    parser.add_argument("--core", required=True, help="the namespace of the shaped links")
    parser.add_argument("--links", type=int, required=True)
    parser.add_argument("--agent-pid", type=int, action="append", default=[])
    parser.add_argument("--raw-target", required=True, help="RANK=ADDRESS across a link")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    names = options.rows.split(",")
    shapes = model_shapes(options.elements)
    source = Source(shapes, rank)
    attached = {name: Attached(shapes, OURS[name]) for name in names if name in OURS}
    report(rank, event="attached")
    for name, row in attached.items():
        row.settle(name, source)
    peers = Peers(shapes, [name for name in names if name in PEERS])
    peers.warm_up(source)
    if rank == 0:
        for link in range(options.links):
            shape(options.core, link, options.rate_mbps)
    dist.barrier()
    takers: dict[str, Callable[[Source], None]] = {
        name: lambda s, name=name: (  # type: ignore[misc]
            step(attached[name].model, s) if name in attached else peers.step(name, s)
        )
        for name in names
    }
    meter = Meter(source, options.core, options.links, options.agent_pid)
    target, address = options.raw_target.split("=")
    steps = dict.fromkeys(names, 1)
    for number in range(options.rounds + 1):  # The first one warms up.
        raw = meter.raw(int(target), address, options.rate_mbps)
        report(rank, event="raw", round=number, bytes_per_second=raw)
        for name in names:
            measured = meter.measure(takers[name], steps[name])
            if name in attached and not attached[name].is_as_wanted():
                raise SystemExit(f"{name}: became {attached[name].session.decision}")
            if number == 0:
                steps[name] = steps_for(measured, options.steps)
            report(rank, event="round", round=number, name=name, **(measured or {}))
    for row in attached.values():
        row.session.close()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
