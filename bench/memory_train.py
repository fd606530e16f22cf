"""One trainer of bench/memory.py: what it has in memory after each part of a run.

Prints a line of JSON for each part: the most that was resident in it and what is at its
end, with pages shared with the agent, in bytes.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pactrain

LAYERS = 4
AMOUNT = 0.7
# Without attach(); with it; after prune(); with prune() after two steps.
ROWS = ("plain", "whole", "pruned", "late")


def report(part: str) -> None:
    status = Path("/proc/self/status").read_text()
    sizes = {name: int(size) << 10 for name, size in re.findall(r"(\w+):\s+(\d+) kB", status)}
    event = {"part": part, "peak": sizes["VmHWM"], "resident": sizes["VmRSS"]}
    if dist.get_rank() == 0:
        print(json.dumps(event), flush=True)
    Path("/proc/self/clear_refs").write_text("5")  # The peak begins anew.


def network(width: int) -> nn.Module:
    layers = [nn.Linear(width, width, bias=False) for _ in range(LAYERS)]
    return nn.Sequential(*layers)


def prune(model: nn.Module) -> None:
    pactrain.prune(model, AMOUNT, exempt=())
    report("prune")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.memory_train")
    parser.add_argument("--row", choices=ROWS, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = network(options.width)
    report("model")
    if options.row == "pruned":
        prune(model)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    report("wrap")
    session = None if options.row == "plain" else pactrain.attach(ddp)
    report("attach")
    for step in range(options.steps):
        optimizer.zero_grad()
        loss = ddp(torch.randn(4, options.width)).square().mean()
        loss.backward()
        optimizer.step()
        report(f"step {step + 1}" if step < 2 else "later steps")
        if step == 1 and options.row == "late":
            prune(model)
    if session is not None:
        print(session.summary(), file=sys.stderr)
        session.close()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
