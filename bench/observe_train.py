"""One trainer of bench/observe.py: small steps, and the fault that is asked for, until "end".

Rank 0 reads the word in --orders before each step and tells the others, so that all ranks do
the same:
  train     steps
  masks     other masks every fifteen steps
  straggle  the last rank takes ten times as long
  slow      one rank after the other takes eight times as long
  hang      the last rank stands until there is another order
  norm      rank 0's gradients are a million times as large
  end
Rank 0 prints {"event": "start"}, and then what steps took, in seconds: {"steps": [...]}.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pactrain

ORDERS = ("train", "masks", "straggle", "slow", "hang", "norm", "end")
COMPUTE_SECONDS = 0.03
MASK_STEPS = 15
TOLD_STEPS = 20


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.observe_train")
    parser.add_argument("--orders", type=Path, required=True)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
    whole = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    pactrain.prune(network, 0.7, exempt=())
    model = DistributedDataParallel(network)
    session = pactrain.attach(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    if rank == 0:
        print(json.dumps({"event": "start"}), flush=True)
    order, step = "train", 0
    took: list[float] = []
    while order != "end":
        begin = time.monotonic()
        told = torch.zeros(1, dtype=torch.int64)
        if rank == 0:
            told[0] = ORDERS.index(options.orders.read_text().strip())
        dist.broadcast(told, 0)
        order = ORDERS[int(told)]
        step += 1
        if order == "masks" and step % MASK_STEPS == 0:
            chooser = torch.Generator().manual_seed(step)
            masks = {
                name: torch.rand(parameter.shape, generator=chooser) < 0.3
                for name, parameter in network.named_parameters()
                if parameter.dim() == 2
            }
            session.set_masks(masks)
            # Else nothing is left after some changes, and no gradient differs between ranks.
            with torch.no_grad():
                for name, parameter in network.named_parameters():
                    if name in masks:
                        parameter.copy_(whole[name] * masks[name])
        turn = order == "slow" and step % (last + 1) == rank
        slow = 8 if turn else 10 if order == "straggle" and rank == last else 1
        while order == "hang" and rank == last and options.orders.read_text().strip() == "hang":
            time.sleep(0.1)
        time.sleep(COMPUTE_SECONDS * slow)  # Stands for computing, which is not looked at.
        torch.manual_seed(step * 100 + rank)
        optimizer.zero_grad()
        loss = model(torch.randn(8, 256)).square().mean()
        (loss * (1e6 if order == "norm" and rank == 0 else 1.0)).backward()
        if order != "norm":
            optimizer.step()
        took.append(round(time.monotonic() - begin, 6))
        if len(took) == TOLD_STEPS:
            if rank == 0:
                print(json.dumps({"steps": took}), flush=True)
            took.clear()
    session.close()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
