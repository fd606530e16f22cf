"""One trainer of bench/exchange.py: exchanges given gradients by each row in turn.

Rows of peers with a hook share one DDP over Gloo, in one bucket, whose hook is changed
between rounds. DDP as it comes has a model of its own, in torch's default buckets, and each
of ours has a DistributedDataParallel of PacTrain's. Rank 0 prints lines of JSON: "attached",
a "settled" per row of ours, a "buckets" per row of plain DDP, then for each delay of the
links "round" events, without one also "raw" ones; with --memory what the agents have used.
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
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

import pactrain
from bench import agent_memory
from bench.buckets import bucket_bytes
from bench.exchange_layout import MOST_STEPS, model_shapes
from bench.exchange_model import Parameters, Source, step, wrap
from bench.exchange_rows import DDP, OURS, PEERS, GradientHook, Ours
from bench.testbed import shape, shaped_counters
from pactrain.types import Codec, Mode

ROUND_SECONDS = 1.0  # A round has as many steps as this takes, and at least one.
SETTLE_STEPS = 100  # Until the coordinator's decision is what a row wants.
KEEP_ROUNDING = 1e-3  # Each parameter keeps whole elements.
PEER_WARM_UP = 4  # DDP rebuilds its buckets, PowerSGD starts to compress.
RAW_SECONDS = 1.0
# After a change of the delay: bbr believes its shortest round trip for ten.
NEW_DELAY_SECONDS = 12.0
NEW_LOSS_SECONDS = 30.0  # More: agents look at stretches of what connections carry then.
MEMORY_STEPS = 5
RAW_SKIP = 0.2  # Share of it that is not counted: TCP's start and tbf's burst.


class Peers:
    """One DDP whose gradients are exchanged by the hook of the moment."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], names: Sequence[str]) -> None:
        self._hooks = {name: hook() for name in names if (hook := PEERS[name].make_hook)}
        self._hook: GradientHook | None = None
        # One bucket: with several, torch's PowerSGD hook waits for Gloo within Gloo's threads
        # until all of them wait.
        self.model = wrap(shapes, 1 + sum(map(math.prod, shapes)) * 4 / 2**20)
        self.model.register_comm_hook(self, _dispatch)

    def hook(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        assert self._hook is not None
        return self._hook(bucket)

    def step(self, name: str, source: Source) -> None:
        self._hook = self._hooks[name]
        step(self.model, source)


def _dispatch(state: Peers, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    return state.hook(bucket)


# DDP wants these annotations as objects.
_dispatch.__annotations__ = {"bucket": GradBucket,
                             "return": torch.futures.Future[torch.Tensor]}  # fmt: skip


class Attached:
    """A row of ours: one more model of the job."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], row: Ours) -> None:
        self._row = row
        parameters = Parameters(shapes)
        self._masks = parameters.masks(row.keep) if row.keep < 1 else None
        self.model = pactrain.DistributedDataParallel(parameters, masks=self._masks)
        self.session = self.model.session

    def settle(self, name: str, source: Source) -> None:
        """Steps until they travel as the row wants; all ranks see that at the same one.

        SystemExit: that does not happen.
        """
        for _ in range(SETTLE_STEPS):
            step(self.model, source)
            if self.is_as_wanted():
                return
        raise SystemExit(f"{name}: still {self.session.decision}")

    def nmse(self, source: Source) -> float | None:
        """Of one more step's result over the kept elements; None: exact, or not rank 0."""
        if not self._row.levels:
            return None
        step(self.model, source)
        if dist.get_rank() != 0:
            return None
        exact = source.exact_mean(dist.get_world_size())
        assert self._masks is not None
        kept = torch.cat([mask.flatten() for mask in self._masks.values()])
        result = torch.cat(
            [p.grad.flatten() for p in self.model.parameters() if p.grad is not None]
        )
        error, exact = (result - exact)[kept], exact[kept]
        return float(error.square().sum() / exact.square().sum())

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
        """One step to get into step with the others, then `steps` timed ones; at rank 0. 0: there
        is no `seconds`."""
        before, agents_before, cpu = self._counters(), self._agents_cpu(), time.process_time()
        machine_before = Processors.now()
        times = []
        for _ in range(steps + 1):
            take_step(self._source)
            times.append(time.monotonic())
        dist.barrier()
        cpu = time.process_time() - cpu
        machine = Processors.now()
        after = self._counters()
        agents_cpu = self._agents_cpu() - agents_before
        ranks: list[Any] = [None] * self._world
        dist.all_gather_object(ranks, (times[-1] - times[0], cpu))
        if self._rank != 0:
            return None
        return {
            "seconds": max(seconds for seconds, _ in ranks) / (steps or math.nan),
            "cpu_seconds": (sum(cpu for _, cpu in ranks) + agents_cpu) / (steps + 1),
            "machine_cpu_seconds": (machine.worked - machine_before.worked) / (steps + 1),
            "stolen_seconds": (machine.stolen - machine_before.stolen) / (steps + 1),
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

    def memory(self, take_step: Callable[[Source], None]) -> list[agent_memory.Memory]:
        """Of each agent in a few steps; at rank 0."""
        if self._rank == 0:
            for pid in self._agents:
                agent_memory.start(pid)
        dist.barrier()
        for _ in range(MEMORY_STEPS):
            take_step(self._source)
        dist.barrier()
        used = [agent_memory.read(pid) for pid in self._agents] if self._rank == 0 else []
        dist.barrier()
        return used

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


class Processors(NamedTuple):
    """Seconds of all processors together since the machine began."""

    worked: float  # The kernel's for the network too.
    stolen: float  # By the hypervisor, while there was work.

    @classmethod
    def now(cls) -> Processors:
        with open("/proc/stat") as stat:
            ticks = list(map(int, stat.readline().split()[1:9]))
        user, nice, system, _idle, _iowait, irq, softirq, steal = ticks
        hertz = os.sysconf("SC_CLK_TCK")
        return cls((user + nice + system + irq + softirq) / hertz, steal / hertz)


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


Takers = dict[str, Callable[[Source], None]]


def warm_peers(shapes: Sequence[tuple[int, ...]], names: Sequence[str], source: Source) -> Takers:
    """What takes their steps; DDP has found its buckets, and PowerSGD compresses."""
    hooked = [name for name in names if PEERS[name].make_hook is not None]
    takers: Takers = {}
    models: dict[str, DistributedDataParallel] = {}
    if hooked:
        peers = Peers(shapes, hooked)
        takers = {name: partial(peers.step, name) for name in hooked}
        models = {name: peers.model for name in hooked if name == DDP}
    for name in names:
        if name not in takers:
            models[name] = wrap(shapes)
            takers[name] = partial(step, models[name])
    for name in names:
        for _ in range(PEER_WARM_UP):
            takers[name](source)
    for name, model in models.items():
        report(dist.get_rank(), event="buckets", name=name, bytes=bucket_bytes(model))
    return takers


def delay_links(options: argparse.Namespace, delay_ms: float, takers: Takers, source: Source,
                rank: int) -> None:  # fmt: skip
    """Of all links; returns when TCP knows it, and agents their losses."""
    dist.barrier()
    if rank == 0:
        Path(options.relay_fifo).write_text(f"{delay_ms} {options.loss_share}\n")
    seconds = NEW_DELAY_SECONDS + (NEW_LOSS_SECONDS if options.loss_share else 0)
    end = time.monotonic() + seconds
    box = [True]
    while box[0]:
        for take_step in takers.values():
            take_step(source)
        box = [time.monotonic() < end]
        dist.broadcast_object_list(box, src=0)


def measure_rounds(
    options: argparse.Namespace,
    meter: Meter,
    takers: Takers,
    attached: Mapping[str, Attached],
    steps: dict[str, int],
    with_raw: bool,
) -> None:
    """All rounds at one delay; the first one warms up, and finds `steps` that are 0."""
    rank = dist.get_rank()
    target, address = options.raw_target.split("=")
    for number in range(options.rounds + 1):
        if with_raw:
            raw = meter.raw(int(target), address, options.link[0][0])
            report(rank, event="raw", round=number, bytes_per_second=raw)
        for name, take_step in takers.items():
            measured = meter.measure(take_step, steps[name] or 1)
            if name in attached and not attached[name].is_as_wanted():
                raise SystemExit(f"{name}: became {attached[name].session.decision}")
            if steps[name] == 0:
                steps[name] = steps_for(measured, options.steps)
            report(rank, event="round", round=number, name=name, **(measured or {}))


def rate_pair(text: str) -> tuple[float, float]:
    there, back = map(float, text.split(":"))
    return there, back


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.exchange_train")
    parser.add_argument("--elements", type=int, required=True)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True, help="0: as many as take a second")
    parser.add_argument("--core", required=True, help="the namespace of the shaped links")
    parser.add_argument("--link", type=rate_pair, action="append", required=True,
                        help="THERE:BACK, Mbps of a link's directions")  # fmt: skip
    parser.add_argument("--agent-pid", type=int, action="append", default=[])
    parser.add_argument("--raw-target", required=True, help="RANK=ADDRESS across a link")
    parser.add_argument("--delay-ms", type=float, default=0, help="of each link, rounds again")
    parser.add_argument("--loss-share", type=float, default=0, help="of each link, then")
    parser.add_argument("--relay-fifo", help="where the relay hears of delays")
    parser.add_argument("--memory", action="store_true", help="measure the agents' memory only")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    options = parse_arguments(argv)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    names = options.rows.split(",")
    shapes = model_shapes(options.elements)
    source = Source(shapes, rank)
    attached = {name: Attached(shapes, OURS[name]) for name in names if name in OURS}
    report(rank, event="attached")
    takers: Takers = {}
    for name, row in attached.items():
        row.settle(name, source)
        report(rank, event="settled", name=name, nmse=row.nmse(source))
        takers[name] = partial(step, row.model)
    takers |= warm_peers(shapes, [name for name in names if name in PEERS], source)
    takers = {name: takers[name] for name in names}
    if rank == 0:
        for number, rates in enumerate(options.link):
            shape(options.core, number, *rates)
    dist.barrier()
    meter = Meter(source, options.core, len(options.link), options.agent_pid)
    if options.memory:
        used = meter.memory(takers[names[0]])
        report(rank, event="memory", agents=[[m.private_bytes, m.shared_bytes] for m in used])
    else:
        steps = dict.fromkeys(names, 0)
        measure_rounds(options, meter, takers, attached, steps, with_raw=True)
        if options.delay_ms > 0:
            delay_links(options, options.delay_ms, takers, source, rank)
            report(rank, event="delayed")
            measure_rounds(options, meter, takers, attached, steps, with_raw=False)
    for row in attached.values():
        row.session.close()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
