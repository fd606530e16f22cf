"""A torchrun script whose rank 1 dies once after step 12; the checkpoint is of step 6.

Usage: restarting_script.py FOLDER. Each rank leaves FOLDER/rank.json.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import scenarios
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import pactrain


def main() -> None:
    folder = Path(sys.argv[1])
    checkpoint = folder / "checkpoint.pt"
    torch.set_num_threads(1)
    alone = "PACTRAIN_SITES" in os.environ  # Ranks meet through agents.
    if not alone:
        dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    restarted = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
    model = scenarios.mlp()
    optimizer = scenarios.sgd(model)
    state, start = None, 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        state, start = saved["session"], 6
    else:
        pactrain.prune(model, 0.6)
    ddp: torch.nn.Module
    if alone:
        ddp = pactrain.DistributedDataParallel(model, state=state)
        session = ddp.session
    else:
        ddp = DistributedDataParallel(model)
        session = pactrain.attach(ddp, state=state)
    first = session.next_step
    generator = torch.Generator().manual_seed(rank)
    for step in range(start, start + scenarios.STEPS):
        inputs = torch.randn((8, 10), generator=generator)
        scenarios.train_step(ddp, optimizer, inputs)
        if step == 5 and rank == 0 and not restarted:
            whole = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "session": session.state_dict(),
            }
            torch.save(whole, checkpoint)
        if step == 11 and rank == 1 and not restarted:
            os.kill(os.getpid(), signal.SIGKILL)
    result = {
        "restarted": restarted,
        "start": start,
        "first_step": first,
        "next_step": session.next_step,
        "digest": scenarios.digest(model),
        "keep": session.stats()["pactrain/keep"],
    }
    (folder / f"{rank}.json").write_text(json.dumps(result))
    session.close()
    if not alone:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
