"""A torchrun script that trains, tells, and ends once it is told to.

Usage: hosts_script.py FOLDER. Each rank leaves FOLDER/RANK.json and ends when there is
FOLDER/end.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import scenarios
import torch
import torch.distributed as dist
from patience import PATIENCE_SECONDS
from torch.nn.parallel import DistributedDataParallel

import pactrain


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = scenarios.mlp()
    optimizer = scenarios.sgd(model)
    pactrain.prune(model, 0.6)
    ddp = DistributedDataParallel(model)
    session = pactrain.attach(ddp)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(scenarios.STEPS):
        scenarios.train_step(ddp, optimizer, torch.randn((8, 10), generator=generator))
    told = {"agent": session.agent, "mode": session.mode, "digest": scenarios.digest(model)}
    unfinished = folder / f"{rank}.new"
    unfinished.write_text(json.dumps(told))
    unfinished.rename(folder / f"{rank}.json")
    end = time.monotonic() + PATIENCE_SECONDS
    while not (folder / "end").exists() and time.monotonic() < end:
        time.sleep(0.1)
    session.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
