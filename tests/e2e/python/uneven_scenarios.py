"""Ranks that have different numbers of batches."""

from __future__ import annotations

from typing import Any

import scenarios
import torch
from launcher import Talk
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pactrain


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))


def _train_joined(talk: Talk, attached: bool, batches: list[int]) -> dict[str, Any]:
    model = _net()
    ddp = DistributedDataParallel(model)
    session = pactrain.attach(ddp, buffer_sync_interval=3) if attached else None
    # Momentum would be behind at the rank that ends first, as with plain DDP.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with ddp.join():
        for step in range(batches[talk.rank]):
            scenarios.train_step(ddp, optimizer, scenarios.batch(talk, step))
    result = {
        "digest": scenarios.digest(model),
        "mean": model[1].running_mean.tolist(),
    }
    if session is not None:
        scenarios.train_step(ddp, optimizer, scenarios.batch(talk, 99))
        result["steps"] = session.stats()["pactrain/steps"]
        result["after"] = scenarios.digest(model)
        session.close()
    return result


def joined(talk: Talk, batches: list[int]) -> dict[str, Any]:
    """With PacTrain, and by plain DDP, whose buffers all ranks share at each step."""
    ours = _train_joined(talk, True, batches)
    return {**ours, "plain": _train_joined(talk, False, batches)["digest"]}


def one_ends_early(talk: Talk) -> None:
    """Rank 1 has three batches, rank 0 more; nobody says so."""
    model = scenarios.mlp()
    ddp = DistributedDataParallel(model)
    session = pactrain.attach(ddp)
    optimizer = scenarios.sgd(model)
    with session.guard():
        for step in range(3 if talk.rank == 1 else 6):
            scenarios.train_step(ddp, optimizer, scenarios.batch(talk, step))
    session.close()
