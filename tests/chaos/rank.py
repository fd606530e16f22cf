"""One rank of a chaos run: rank.py LOG STOP trains until the file STOP is there.

Each step becomes a line of LOG: when it was committed, the batch of the job that it was, and
the digest of all parameters after it. The batch comes with the state that ranks share.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

import pactrain

PACE_S = 0.05


class Place:
    """How many batches the job has seen."""

    def __init__(self) -> None:
        self.batch = 0

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def digest(model: torch.nn.Module) -> str:
    whole = hashlib.sha256()
    for parameter in model.parameters():
        whole.update(parameter.detach().numpy().tobytes())
    return whole.hexdigest()[:16]


def main(log: Path, stop: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    ddp = pactrain.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    place = Place()
    ddp.share(optimizer=optimizer, place=place)
    ddp.start()
    with log.open("a", buffering=1) as lines:
        while not stop.exists():
            generator = torch.Generator().manual_seed(1000 * place.batch + ddp.world.rank)
            optimizer.zero_grad()
            ddp(torch.randn((8, 10), generator=generator)).square().mean().backward()
            optimizer.step()
            place.batch += 1
            line = {
                "time": time.monotonic(),
                "batch": place.batch,
                "digest": digest(model),
                "ranks": ddp.world.world_size,
                "generation": ddp.world.generation,
            }
            lines.write(json.dumps(line) + "\n")
            time.sleep(PACE_S)
    ddp.session.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
