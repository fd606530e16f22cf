"""One trainer of bench/accuracy.py: the demo's network, pre-trained and pruned, trained on.

    python -m bench.accuracy_train --run ddp|sites --checkpoint F --steps N --seed S

`ddp` is plain DistributedDataParallel over Gloo, its weights masked after each optimizer
step; `sites` is pactrain.DistributedDataParallel in one launch per site. Both take the same
images in the same order, which `--seed` makes. Rank 0 prints one JSON object a line: step,
and last done.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import pactrain
from bench import data, model
from bench.demo_train import AMOUNT, BATCH, MOMENTUM, RATE, emit
from bench.pretrain import accuracy

REPORT_STEPS = 10


def pruned(checkpoint: str) -> tuple[torch.nn.Module, dict[torch.nn.Parameter, torch.Tensor]]:
    """The network, and what its pruned parameters keep."""
    net = model.make_model()
    net.load_state_dict(torch.load(checkpoint))
    pactrain.prune(net, AMOUNT)
    return net, {p: p.detach().ne(0) for p in net.parameters() if p.dim() >= 2}


class Run:
    """One training of one rank."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.net, self.kept = pruned(options.checkpoint)
        self.wrapped: torch.nn.Module
        if options.run == "ddp":
            dist.init_process_group("gloo")
            self.rank, self.world = dist.get_rank(), dist.get_world_size()
            self.wrapped = DistributedDataParallel(self.net)
        else:
            place = pactrain.init()
            self.rank, self.world = place.rank, place.world_size
            self.wrapped = pactrain.DistributedDataParallel(self.net)
        self.images = data.load()
        random = np.random.default_rng(options.seed)
        self.order = random.permutation(len(self.images.train.labels))

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Every rank takes its own part of one order."""
        first = (step * self.world + self.rank) * BATCH
        chosen = self.order[np.arange(first, first + BATCH) % len(self.order)]
        labels = torch.from_numpy(self.images.train.labels[chosen]).long()
        return model.to_input(self.images.train.pixels[chosen]), labels

    def train(self) -> None:
        optimizer = torch.optim.SGD(self.wrapped.parameters(), lr=RATE, momentum=MOMENTUM)
        for step in range(self.options.steps):
            inputs, labels = self.batch(step)
            optimizer.zero_grad()
            torch.autograd.backward(cross_entropy(self.wrapped(inputs), labels))
            optimizer.step()
            if self.options.run == "ddp":
                with torch.no_grad():
                    for parameter, kept in self.kept.items():
                        parameter.mul_(kept)
            if self.rank == 0 and step % REPORT_STEPS == 0:
                emit("step", step=step)

    def mode(self) -> str:
        """What the last step sent."""
        if isinstance(self.wrapped, pactrain.DistributedDataParallel):
            return self.wrapped.session.mode
        return "all elements"

    def sent_bytes(self) -> float:
        """By rank 0's agent to the other site."""
        if isinstance(self.wrapped, pactrain.DistributedDataParallel):
            return float(self.wrapped.session.stats()["pactrain/sent_bytes"])
        return 0.0


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench.accuracy_train")
    parser.add_argument("--run", choices=("ddp", "sites"), required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    run = Run(options)
    start = time.monotonic()
    run.train()
    seconds = time.monotonic() - start
    if run.rank == 0:
        emit("done", accuracy=accuracy(run.net, run.images.test), seconds=seconds,
             mode=run.mode(), sent_bytes=run.sent_bytes())  # fmt: skip
    if isinstance(run.wrapped, pactrain.DistributedDataParallel):
        run.wrapped.session.close()
    # As in demo_train: torch's own end may abort a rank whose peers are gone.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
