"""One launch per site: the same training by both wrappers, and the script of a launch.

As a script it is one rank of one site: site_scenarios.py FOLDER [DIES] leaves
FOLDER/RANK.json, where RANK is over all sites. DIES is a rank that kills itself in the
middle unless its launcher has restarted it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import scenarios
import torch
from launcher import Talk
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pactrain

AMOUNT = 0.7


def model_of(rank: int) -> nn.Module:
    """Other weights and masks at each rank: those of rank 0 are to be everyone's."""
    model = scenarios.mlp(seed=rank)
    pactrain.prune(model, AMOUNT)
    return model


def train(ddp: nn.Module, session: Any, rank: int) -> dict[str, Any]:
    """STEPS steps FULL or COMPACTED, with masks in force; nothing is learnt before."""
    model = ddp.module
    optimizer = scenarios.sgd(model)
    generator = torch.Generator().manual_seed(rank)
    while not session.masks_settled:
        optimizer.zero_grad()
        ddp(torch.ones(8, 10)).square().mean().backward()
    for _ in range(scenarios.STEPS):
        inputs = torch.randn((8, 10), generator=generator)
        scenarios.train_step(ddp, optimizer, inputs)
    result = scenarios.outcome(session, model)
    result |= {"rank": rank, "site": session.site, "keep": session.stats()["pactrain/keep"]}
    session.close()
    return result


def one_world(talk: Talk) -> dict[str, Any]:
    """torch's wrapper and attach(), in one process group of all ranks."""
    ddp = DistributedDataParallel(model_of(talk.rank), bucket_cap_mb=0.001)
    return train(ddp, pactrain.attach(ddp), talk.rank)


def own_world(dies: int = -1) -> dict[str, Any]:
    """Our wrapper, in any launch."""
    world = pactrain.init()
    ddp = pactrain.DistributedDataParallel(model_of(world.rank), bucket_cap_mb=0.002)
    assert not torch.distributed.is_initialized()
    if world.rank == dies and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        ddp(torch.ones(8, 10)).mean().backward()
        os.kill(os.getpid(), signal.SIGKILL)
    return train(ddp, ddp.session, world.rank) | {
        "world_size": world.world_size,
        "local": [world.local_rank, world.local_world_size],
    }


def lists_differ(talk: Talk) -> None:
    """Two sites of one trainer each, of which each is the first in its own list."""
    names = ["site-0", "site-1"]
    here, there = names[talk.rank], names[1 - talk.rank]
    os.environ |= {"PACTRAIN_SITE": here, "PACTRAIN_SITES": f"{here}:1,{there}:1"}
    pactrain.DistributedDataParallel(scenarios.mlp())


def main() -> None:
    torch.set_num_threads(1)
    result = own_world(*map(int, sys.argv[2:]))
    result["restarts"] = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    folder = Path(sys.argv[1])
    (folder / f"{result['rank']}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
