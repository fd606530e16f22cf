"""One trainer of the demo; bench/demo.py starts six with torchrun's variables.

    python -m bench.demo_train --run ddp|pactrain|compute --checkpoint F --steps N

The same script for all runs: the same pre-trained and pruned network, data order, rate
and number of steps. `ddp` is plain DistributedDataParallel over Gloo, in torch's default
buckets, `pactrain` adds prune's registry and attach(), `compute` trains without any
communication (how fast it could be at best). Pruned weights stay zero in all of them:
`pactrain` does it itself, the others mask their weights after each optimizer step.

Rank 0 prints one JSON object a line: model, start, mode, step, accuracy, done. `seconds`
counts training only: not the set-up before `start` and not the evaluations.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import pactrain
from bench import data, model
from bench.buckets import bucket_bytes

AMOUNT = 0.7
BATCH = 16  # Per trainer.
RATE = 0.004
MOMENTUM = 0.9
SEED = 11
CURVE_IMAGES = 2000  # For the accuracy during the run; the final one takes all.


@dataclass
class Clock:
    """Counts seconds while it runs."""

    seconds: float = 0.0
    _since: float = field(default_factory=time.monotonic)

    def start(self) -> None:
        self._since = time.monotonic()

    def stop(self) -> None:
        self.seconds += time.monotonic() - self._since

    def now(self) -> float:
        return self.seconds + time.monotonic() - self._since


def emit(event: str, **values: object) -> None:
    print(json.dumps({"event": event, **values}), flush=True)


def paced_allreduce(
    rate_mbps: float,
) -> Callable[[object, Any], torch.futures.Future[torch.Tensor]]:
    """A hook that all-reduces as DDP does, no faster than a link of this rate could.

    Only for machines without network namespaces, where nothing can shape Gloo's own
    connections: each rank of a ring sends 2 (N - 1) / N times the bucket.
    """
    world = dist.get_world_size()
    link_free = [0.0]

    # DDP refuses annotations that are strings, as all are in this module.
    def hook(state, bucket):  # type: ignore[no-untyped-def]
        buffer = bucket.buffer().div_(world)
        sent = 2 * (world - 1) / world * buffer.numel() * buffer.element_size()
        link_free[0] = max(link_free[0], time.monotonic()) + sent * 8 / (rate_mbps * 1e6)
        due = link_free[0]

        def wait_for_link(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            time.sleep(max(0.0, due - time.monotonic()))
            return done.value()[0]

        work = dist.all_reduce(buffer, async_op=True)
        paced: torch.futures.Future[torch.Tensor] = work.get_future().then(wait_for_link)
        return paced

    return hook


def evaluate(net: torch.nn.Module, images: data.Images, limit: int) -> float:
    """Share of right answers over the first `limit` images, split over the ranks."""
    rank, world = dist.get_rank(), dist.get_world_size()
    limit = min(limit, len(images.labels))
    mine = np.array_split(np.arange(limit), world)[rank]
    right = torch.zeros(1)
    net.eval()
    with torch.inference_mode():
        for part in np.array_split(mine, max(1, len(mine) // 250)):
            answer = net(model.to_input(images.pixels[part])).argmax(1).numpy()
            right += float((answer == images.labels[part]).sum())
    net.train()
    dist.all_reduce(right)
    return float(right) / limit


class Run:
    """One training run of one rank."""

    def __init__(self, options: argparse.Namespace, images: data.Data) -> None:
        torch.manual_seed(SEED)
        self.options = options
        self.images = images
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.order = np.random.default_rng(SEED).permutation(len(images.train.labels))
        self.net = model.make_model()
        self.net.load_state_dict(torch.load(options.checkpoint))
        self.report = pactrain.prune(self.net, AMOUNT)
        self.kept = [(p, p.detach().ne(0)) for p in self.net.parameters() if p.dim() >= 2]
        self.session: Any = None
        self.wrapped: torch.nn.Module = self.net
        if options.run != "compute":
            self.wrapped = DistributedDataParallel(self.net)
            if options.run == "pactrain":
                self.session = pactrain.attach(self.wrapped)
            elif options.pace_mbps:
                self.wrapped.register_comm_hook(None, paced_allreduce(options.pace_mbps))
        self.optimizer = torch.optim.SGD(self.wrapped.parameters(), lr=RATE, momentum=MOMENTUM)
        self.clock = Clock()
        self.mode: tuple[str, str] | None = None

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Every rank takes its own part of one fixed order."""
        first = (step * self.world + self.rank) * BATCH
        chosen = self.order[np.arange(first, first + BATCH) % len(self.order)]
        labels = torch.from_numpy(self.images.train.labels[chosen]).long()
        return model.to_input(self.images.train.pixels[chosen]), labels

    def train_step(self, step: int) -> float:
        inputs, labels = self.batch(step)
        loss = cross_entropy(self.wrapped(inputs), labels)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        if self.session is None:
            with torch.no_grad():
                for parameter, kept in self.kept:
                    parameter.mul_(kept)
        return float(loss)

    def train(self) -> None:
        if self.rank == 0:
            emit("model", name=model.NAME, parameters=self.report.elements,
                 kept=self.report.kept)  # fmt: skip
        self.evaluate(0, CURVE_IMAGES)
        dist.barrier()
        if self.rank == 0:
            emit("start")
        self.clock.start()
        for step in range(self.options.steps):
            if self.rank == 0:
                self.report_mode(step)
            loss = self.train_step(step)
            if self.rank == 0:
                emit("step", step=step + 1, loss=loss, seconds=self.clock.now())
            last = step + 1 == self.options.steps
            if (step + 1) % self.options.evaluate_every == 0 and not last:
                self.evaluate_untimed(step + 1, CURVE_IMAGES)
        dist.barrier()
        self.clock.stop()
        self.report_end()
        self.evaluate(self.options.steps, CURVE_IMAGES)
        self.evaluate(self.options.steps, len(self.images.test.labels), final=True)
        if self.session is not None:
            self.session.close()

    def report_mode(self, step: int) -> None:
        """What is in force for the step that comes, whenever it changes."""
        if self.session is None:
            return
        decision = self.session.decision
        if (decision.mode.name, decision.codec.words) != self.mode:
            self.mode = (decision.mode.name, decision.codec.words)
            emit("mode", step=step + 1, mode=self.mode[0], codec=self.mode[1],
                 reason=decision.reason, seconds=self.clock.now())  # fmt: skip

    def report_end(self) -> None:
        """Also what each rank's agent exchanged with other sites: [sent, received]."""
        mine = [0, 0]
        if self.session is not None:
            stats = self.session.stats()
            mine = [int(stats[f"pactrain/{way}_bytes"]) for way in ("sent", "received")]
        agent_bytes: list[list[int]] = [[0, 0]] * self.world
        dist.all_gather_object(agent_bytes, mine)
        if self.rank == 0:
            plain = self.wrapped if self.options.run == "ddp" else None
            buckets = bucket_bytes(plain) if isinstance(plain, DistributedDataParallel) else []
            emit("done", seconds=self.clock.seconds, steps=self.options.steps,
                 agent_bytes=agent_bytes, bucket_bytes=buckets)  # fmt: skip

    def evaluate_untimed(self, step: int, limit: int) -> None:
        self.clock.stop()
        self.evaluate(step, limit)
        dist.barrier()
        self.clock.start()

    def evaluate(self, step: int, limit: int, final: bool = False) -> None:
        if self.options.run == "compute":
            return
        share = evaluate(self.net, self.images.test, limit)
        if self.rank == 0:
            emit("accuracy", step=step, seconds=self.clock.seconds, accuracy=share, final=final)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.demo_train")
    parser.add_argument("--run", choices=("ddp", "pactrain", "compute"), required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--evaluate-every", type=int, default=10)
    parser.add_argument("--pace-mbps", type=float, default=0.0)
    return parser.parse_args(argv)


def main(argv: list[str]) -> None:
    options = parse(argv)
    # Six trainers share the machine's cores.
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    Run(options, data.load()).train()
    dist.barrier()
    # Not by way of torch's own end: on a busy machine its threads sometimes abort a rank
    # whose peers are gone already ("terminate called without an active exception").
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main(sys.argv[1:])
