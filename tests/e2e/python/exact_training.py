"""A training whose bits do not depend on the order of any sum.

As a script it is one rank: exact_training.py FOLDER [--plain] [--hold] trains twice, first
FULL and then with masks, and leaves FOLDER/RANK.json, where RANK is over all sites.
--plain: by torch alone, in one world. --hold: rank 0 stops early in the FULL training,
writes FOLDER/held and waits for FOLDER/go.

Every gradient is rounded to a grid on which sums of four are exact in fp32. So torch's
ring and the agents' tree, which add in different orders, must give the same bits.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import scenarios
import torch
import torch.distributed as dist
import twin
from patience import PATIENCE_SECONDS
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import pactrain
from pactrain.masks import registry

EPOCHS = 3
BATCH = 25  # Of each rank: 15 steps of four ranks are an epoch of the 1,500 digits.
AMOUNT = 0.7
GRID = 2.0**16
# Four summands below it need 6 + 2 + 16 = 24 bits, as many as fp32 has.
LARGEST = 2.0**6
HOLD_STEP = 5


def on_grid(gradient: torch.Tensor) -> torch.Tensor:
    assert float(gradient.abs().max()) < LARGEST
    return (gradient * GRID).round() / GRID


def make_model(seed: int, masked: bool) -> nn.Module:
    torch.manual_seed(seed)
    model = twin.example.make_model(channels=1)
    for parameter in model.parameters():
        parameter.register_hook(on_grid)
    if masked:
        pactrain.prune(model, AMOUNT)
    return model


def batches(data: TensorDataset, rank: int, world: int) -> Iterator[tuple[torch.Tensor, ...]]:
    images, labels = data.tensors
    for epoch in range(EPOCHS):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        for first in range(rank * BATCH, len(labels) - BATCH + 1, world * BATCH):
            chosen = order[first : first + BATCH]
            yield images[chosen], labels[chosen]


def train(ddp: nn.Module, rank: int, world: int, before_step: Callable[[int], None]) -> int:
    """How many steps it took."""
    optimizer = scenarios.sgd(ddp.module)
    data, _ = twin.example.load_digits()
    for step, (images, labels) in enumerate(batches(data, rank, world)):
        before_step(step)
        optimizer.zero_grad()
        cross_entropy(ddp(images), labels).backward()
        optimizer.step()
    return step + 1


def outcome(model: nn.Module) -> dict[str, Any]:
    _, test = twin.example.load_digits()
    return {
        "digest": scenarios.digest(model),
        "accuracy": twin.example.accuracy(model, test),
        "elements": sum(parameter.numel() for parameter in model.parameters()),
    }


def by_torch(masked: bool) -> dict[str, Any]:
    """Plain DistributedDataParallel, with the masks put on by hand."""
    model = make_model(0, masked)
    for parameter in model.parameters():
        mask = registry.get(parameter)
        if mask is not None:
            parameter.data.mul_(mask)
            parameter.register_hook(lambda gradient, mask=mask: gradient * mask)
    ddp = DistributedDataParallel(model)
    train(ddp, dist.get_rank(), dist.get_world_size(), lambda step: None)
    return outcome(model)


def by_agents(masked: bool, before_step: Callable[[int], None]) -> dict[str, Any]:
    """Our wrapper; every rank but the first starts with weights and masks of its own."""
    world = pactrain.init()
    model = make_model(world.rank, masked)
    ddp = pactrain.DistributedDataParallel(model)
    assert not dist.is_initialized()
    ddp.eval()  # BatchNorm learns nothing from these.
    while not ddp.session.masks_settled:
        ddp(torch.ones(1, 1, 8, 8)).mean().backward()
    ddp.train()
    steps = train(ddp, world.rank, world.world_size, before_step)
    ddp.session.sync_buffers()
    result = outcome(model) | {
        "site": ddp.session.site,
        "mode": ddp.session.mode,
        "training_steps": steps,
        "sent_bytes": ddp.session.stats()["pactrain/sent_bytes"],
    }
    ddp.session.close()
    return result


def hold(folder: Path) -> Callable[[int], None]:
    """Rank 0's word before each step; the others wait for it in the exchange."""

    def before_step(step: int) -> None:
        if step != HOLD_STEP:
            return
        (folder / "held").touch()
        end = time.monotonic() + PATIENCE_SECONDS
        while not (folder / "go").exists():
            assert time.monotonic() < end, f"{folder / 'go'} did not come"
            time.sleep(0.02)

    return before_step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--hold", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.plain:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        results = {"full": by_torch(masked=False), "masked": by_torch(masked=True)}
        dist.destroy_process_group()
    else:
        rank = pactrain.init().rank
        holds = hold(options.folder) if options.hold and rank == 0 else lambda step: None
        results = {
            "full": by_agents(masked=False, before_step=holds),
            "masked": by_agents(masked=True, before_step=lambda step: None),
        }
    (options.folder / f"{rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
