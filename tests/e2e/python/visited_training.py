"""A training of digits that trainers of another site visit.

As a script it is one rank: visited_training.py FOLDER [--visit]. It trains until it has seen
the number of ranks grow and shrink again, and then some steps more, or until FOLDER/enough
is there; with --visit only some steps. Its results are in FOLDER/SITE-LOCALRANK.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import scenarios
import torch
import twin
from torch.nn.functional import cross_entropy

import pactrain

BATCH = 25  # Of each rank.
VISIT_STEPS = 10
STEPS_AFTER = 30
STEPS_TO_AGREE = 5
BEGUN_STEP = 5  # Then somebody writes FOLDER/begun.
MOST_STEPS = 3000


class Progress:
    """How many batches the job has trained."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]


def batch(data: tuple[torch.Tensor, ...], step: int, rank: int, world: int) -> list[torch.Tensor]:
    images, labels = data
    epoch, place = divmod(step * world * BATCH, len(labels))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
    chosen = order.roll(-place - rank * BATCH)[:BATCH]
    return [images[chosen], labels[chosen]]


def agreed_end(folder: Path, step: int, rank: int) -> int:
    """The step after which all ranks stop, once FOLDER/enough is there.

    Ranks see a new file at different steps: rank 0 names one that none has reached yet.
    """
    end = folder / "end"
    if rank == 0 and (folder / "enough").exists() and not end.exists():
        (folder / "end.new").write_text(str(step + STEPS_TO_AGREE))
        (folder / "end.new").rename(end)
    return int(end.read_text()) if end.exists() else MOST_STEPS


def train(folder: Path, visit: bool) -> dict[str, Any]:
    torch.manual_seed(7 if visit else 0)
    model = twin.example.make_model(channels=1)
    ddp = pactrain.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
    progress = Progress()
    ddp.share(optimizer=optimizer, progress=progress)
    ddp.start()
    data, test = twin.example.load_digits()
    began, sizes, digests, last = progress.step, [], {}, MOST_STEPS
    while True:
        last = min(last, agreed_end(folder, progress.step, ddp.world.rank))
        if progress.step >= last:
            break
        images, labels = batch(data.tensors, progress.step, ddp.world.rank, ddp.world.world_size)
        optimizer.zero_grad()
        cross_entropy(ddp(images), labels).backward()
        optimizer.step()
        progress.step += 1
        if progress.step == BEGUN_STEP:
            (folder / "begun").touch()
        digests[progress.step] = scenarios.digest(ddp.module)
        if not sizes or sizes[-1] != ddp.world.world_size:
            sizes.append(ddp.world.world_size)
            if visit:
                last = began + VISIT_STEPS
            elif len(sizes) == 3:
                last = progress.step + STEPS_AFTER
    if not visit:
        ddp.session.sync_buffers()
    result = {
        "sizes": sizes,
        "steps": [began, progress.step],
        "digests": digests,
        "accuracy": twin.example.accuracy(model, test),
        "site": ddp.world.site,
    }
    ddp.session.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--visit", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    world = pactrain.init()
    name = f"{world.site}-{world.local_rank}.json"
    (options.folder / name).write_text(json.dumps(train(options.folder, options.visit)))


if __name__ == "__main__":
    main()
