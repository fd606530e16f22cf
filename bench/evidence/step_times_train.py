"""One trainer of `make report-times`: steps of a network's shapes, its compute slept.

Gradients are random. A step sleeps forward, then through backward, and releases the gradients
of some parameters at a time, as the reference accelerator would have them. Each row has a
model of its own, which is gone before the next one comes: eight trainers of a large network
fill a machine. Rank 0 prints a line of JSON for each row and rate, as bench/exchange_train.py.

Peers are hooks of torch's DDP over Gloo in torch's buckets; PowerSGD and plain DDP's first row
in one. PacTrain's rows are pinned. With --ready a method's own compression is slept as well: peers
are ready_rows.py's, and ours are given what a mask leaves, as the accelerator would hand it over.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import gc
import itertools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import pactrain
from bench import agent_memory
from bench.evidence import step_times_plan
from bench.evidence.clock import Clock
from bench.evidence.ready_rows import ReadyRow, Sites
from bench.evidence.shapes import NETWORKS, Network
from bench.evidence.step_times_plan import (
    BUCKET_BYTES,
    BUCKETS,
    cost_of,
    is_ours,
    kept_of,
    known_after,
    pin_of,
    steps_of,
)
from bench.evidence.times import compression_seconds
from bench.exchange import SETUP_MBPS
from bench.exchange_model import Parameters, Source, step
from bench.exchange_rows import GradientHook, TopK, powersgd
from bench.exchange_train import SETTLE_STEPS, Meter, rate_pair, report
from bench.testbed import shape
from bench.topologies import topologies
from pactrain.types import Codec

# DDP rebuilds its buckets after the first step, PowerSGD compresses from the third on.
WARM_UP, POWERSGD_WARM_UP = 2, 3

KEPT = ("link_bytes", "cpu_seconds", "machine_cpu_seconds", "stolen_seconds")  # Of a step.


class Segment(torch.autograd.Function):
    """A scalar whose backward() brings its parameters' gradients at their time."""

    @staticmethod
    def forward(ctx: Any, before: Tensor, clock: Clock, at: float, gradients: Sequence[Tensor],
                *parameters: Tensor) -> Tensor:  # fmt: skip
        ctx.clock, ctx.at, ctx.gradients = clock, at, gradients
        return before.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        ctx.clock.sleep_until(ctx.at)
        return (outer[0], None, None, None, *ctx.gradients)


class Paced(Parameters):
    """A network's parameters; its steps take the compute time of the reference accelerator."""

    def __init__(self, network: Network, compression: float = 0.0) -> None:
        super().__init__(network.shapes)
        sizes = [math.prod(shape) for shape in network.shapes]
        self._counts = step_times_plan.segments(sizes)
        self._releases = step_times_plan.releases(network, self._counts, compression)
        self._forward_seconds = step_times_plan.forward_seconds(network)
        self._clock = Clock()

    def forward(self, source: Source) -> Tensor:
        self._clock.begin()
        gradients, parameters = iter(source.take()), iter(self.weights)
        done = torch.zeros((), requires_grad=True)
        for count, at in zip(self._counts, self._releases, strict=True):
            own = list(itertools.islice(gradients, count))
            done = Segment.apply(  # type: ignore[no-untyped-call]
                done, self._clock, at, own, *itertools.islice(parameters, count)
            )
        self._clock.sleep_until(self._forward_seconds)
        return done


Masks = Mapping[str, Tensor] | None


class OurRow:
    """A row of PacTrain's, pinned."""

    def __init__(
        self, row: str, paced: Paced, masks: Masks, source: Source, bucket_cap_mb: float = 25.0
    ) -> None:
        levels = cost_of(row).levels
        codec = Codec[f"LEVELS{levels}" if levels else "FP32"]
        pin = pin_of(row, masks is not None)
        self._row, self._source, self._wanted = row, source, f"{pin.split()[0]} {codec.words}"
        self.model = pactrain.DistributedDataParallel(
            paced, masks=masks, pin=pin, bucket_cap_mb=bucket_cap_mb
        )

    def take(self) -> None:
        step(self.model, self._source)

    def settle(self) -> None:
        """Until the next step travels as the row says. SystemExit: that does not happen."""
        for _ in range(SETTLE_STEPS):
            self.take()
            if self.model.session.mode == self._wanted:
                return
        self.check()

    def check(self) -> None:
        """SystemExit: steps travel in another way."""
        if (mode := self.model.session.mode) != self._wanted:
            raise SystemExit(f"{self._row}: is {mode}, allowed: {self._wanted}")

    def close(self) -> None:
        self.model.session.close()


class PeerRow:
    """A hook of torch's DDP, or DDP alone."""

    def __init__(self, row: str, network: Network, source: Source) -> None:
        self._source = source
        self._warm_up = POWERSGD_WARM_UP if cost_of(row).powersgd else WARM_UP
        one = row == "ddp" or cost_of(row).powersgd > 0
        cap_mb = 1 + 4 * network.elements / 2**20 if one else None
        self.model = nn.parallel.DistributedDataParallel(
            Paced(network), bucket_cap_mb=cap_mb, gradient_as_bucket_view=True, init_sync=False
        )
        if (hook := hook_of(row)) is not None:
            self.model.register_comm_hook(hook, _call)

    def take(self) -> None:
        step(self.model, self._source)

    def settle(self) -> None:
        for _ in range(self._warm_up):
            self.take()

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass


class Rebuilt:
    """A hook, from DDP's second step on: in the first all gradients are one bucket, of which
    top-k would need many times the memory. That step is an all-reduce."""

    def __init__(self, hook: GradientHook) -> None:
        self._hook = hook
        self._is_first = True

    def __call__(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        if not self._is_first:
            return self._hook(bucket)
        self._is_first = not bucket.is_last()
        everybody: Any = dist.group.WORLD
        return default_hooks.allreduce_hook(everybody, bucket)


def hook_of(row: str) -> GradientHook | None:
    """None: DDP as it comes. ValueError: no hook does what the row says."""
    cost = cost_of(row)
    if row in ("ddp", BUCKETS):
        return None
    if cost.powersgd:
        return powersgd(cost.powersgd)
    if cost.how == "gather":
        return Rebuilt(TopK(cost.keep))
    if row == "fp16":
        everybody: Any = dist.group.WORLD
        return partial(default_hooks.fp16_compress_hook, everybody)
    raise ValueError(f"row = '{row}', allowed: {', '.join(step_times_plan.ROWS)}")


def _call(hook: GradientHook, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    return hook(bucket)


# DDP wants these annotations as objects.
_call.__annotations__ = {"bucket": GradBucket, "return": torch.futures.Future[torch.Tensor]}


class Timed:
    """Takes steps, and knows what each took."""

    def __init__(self, take: Callable[[], None]) -> None:
        self._take = take
        self.seconds: list[float] = []

    def __call__(self, *_: Source) -> None:
        """A Meter has a source of gradients; a row has its own."""
        start = time.monotonic()
        self._take()
        self.seconds.append(time.monotonic() - start)


def give_back() -> None:
    """Memory that nobody uses, to the system: a row's buckets are as large as its network."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def peak_bytes() -> int:
    """The most that this process has had since agent_memory.start()."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


class Bench:
    """Measures rows at rates; at rank 0 it shapes the links."""

    def __init__(self, options: argparse.Namespace, network: Network) -> None:
        self._options, self._network = options, network
        self._rank = dist.get_rank()
        # Of all of the network; what is ready-made is a row's own.
        self._source = Source([] if options.ready else network.shapes, self._rank)
        links = len(options.share)
        self._meter = Meter(self._source, options.core, links, options.agent_pid)
        self._masks: dict[float, dict[str, Tensor]] = {}  # By what they keep.

    def measure(self, row: str, rates: Mapping[str, float]) -> None:
        """`rates`: expected seconds of a step by Mbps."""
        agent_memory.start(os.getpid())
        self._shape(SETUP_MBPS)
        model = self._ready_row(row) if self._options.ready else self._row(row)
        model.settle()
        timed = Timed(model.take)
        timed()
        busy = timed.seconds[-1]  # What processors alone take, links aside.
        for rate, expected in rates.items():
            self._shape(float(rate))
            likely = self._same(max(busy, expected))
            steps = steps_of(likely, self._options.quick)
            for _ in range(known_after(row, likely) + steps.warm_up):
                timed()
            timed.seconds.clear()
            # It takes one more than it is asked for.
            measured = self._meter.measure(timed, steps.measured - 1)
            model.check()
            if measured is not None:
                report(self._rank, event="measured", row=row, rate_mbps=float(rate),
                       seconds=median(timed.seconds), steps=timed.seconds,
                       rank_bytes=peak_bytes(),
                       **{name: measured[name] for name in KEPT})  # fmt: skip
        model.close()
        del model, timed
        give_back()

    @functools.cached_property
    def _sites(self) -> Sites:
        return Sites(topologies()[self._options.topology].layout.sites)

    def _row(self, row: str) -> OurRow | PeerRow:
        if not is_ours(row):
            return PeerRow(row, self._network, self._source)
        masks = self._masks_of(cost_of(row).keep)
        return OurRow(row, Paced(self._network), masks, self._source)

    def _ready_row(self, row: str) -> OurRow | ReadyRow:
        if not is_ours(row):
            return ReadyRow(row, self._network, self._sites)
        cost = cost_of(row)
        kept = kept_of(self._network, cost.keep)
        paced = Paced(kept, compression_seconds(cost, self._network))
        # A bucket is filled by gradients, of which a part is kept.
        cap_mb = cost.keep * BUCKET_BYTES / 2**20
        return OurRow(row, paced, None, Source(kept.shapes, self._rank), cap_mb)

    def _masks_of(self, keep: float) -> Masks:
        """The same for all rows that keep as much."""
        if keep == 1:
            return None
        if keep not in self._masks:
            self._masks.clear()  # Of one at a time.
            self._masks[keep] = Paced(self._network).masks(keep)
            give_back()
        return self._masks[keep]

    def _shape(self, rate_mbps: float) -> None:
        """Between steps, when nothing is on the way."""
        dist.barrier()
        if self._rank == 0:
            for number, (there, back) in enumerate(self._options.share):
                shape(self._options.core, number, there * rate_mbps, back * rate_mbps)
        dist.barrier()

    def _same(self, seconds: float) -> float:
        """Rank 0's, on all ranks."""
        box = [seconds]
        dist.broadcast_object_list(box, src=0)
        return box[0]


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.evidence.step_times_train")
    parser.add_argument("--network", choices=NETWORKS, required=True)
    parser.add_argument("--wanted", type=json.loads, required=True,
                        help="by row and Mbps: expected seconds of a step")  # fmt: skip
    parser.add_argument("--core", required=True, help="the namespace of the shaped links")
    parser.add_argument("--share", type=rate_pair, action="append", required=True,
                        help="THERE:BACK of the rate, of each link's directions")  # fmt: skip
    parser.add_argument("--topology", choices=topologies(), required=True)
    parser.add_argument("--ready", action="store_true", help="bytes are; compression is slept")
    parser.add_argument("--quick", action="store_true", help="as steps_of()")
    parser.add_argument("--agent-pid", type=int, action="append", default=[])
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    options = parse_arguments(argv)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    bench = Bench(options, NETWORKS[options.network])
    for row, rates in options.wanted.items():
        bench.measure(row, rates)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
