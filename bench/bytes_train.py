"""One trainer of bench/bytes.py: exchanges integer gradients, no compute, checks every sum.

The gradients of a step are small integers from a hash of rank, step and element, so that
a contribution that is missing or counted twice shows in the sum.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pactrain


def gradient(rank: int, step: int, elements: int) -> torch.Tensor:
    """Integers from -8 to 7 as floats."""
    mixed = (torch.arange(elements) * 2654435761 + rank * 40503 + step * 2246822519) % 4294967291
    return ((mixed >> 7) % 16 - 8).float()


class Flat(nn.Module):
    """One parameter; the gradient of forward(g).backward() is g."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(elements))

    def forward(self, wanted: torch.Tensor) -> torch.Tensor:
        return (self.weight * wanted).sum()


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.bytes_train")
    parser.add_argument("--elements", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(Flat(options.elements))
    session = pactrain.attach(model)
    dist.barrier()
    if rank == 0:
        print(json.dumps({"event": "start"}), flush=True)
    start = time.monotonic()
    for step in range(options.steps):
        model.zero_grad()
        torch.autograd.backward(model(gradient(rank, step, options.elements)))
        got = model.module.weight.grad
        wanted = torch.zeros(options.elements)
        for other in range(world):
            wanted += gradient(other, step, options.elements)
        if not torch.equal((got * world).round(), wanted):
            raise SystemExit(f"rank {rank}, step {step}: a sum is wrong")
    dist.barrier()
    if rank == 0:
        seconds = time.monotonic() - start
        print(json.dumps({"event": "done", "seconds": seconds}), flush=True)
    session.close()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
