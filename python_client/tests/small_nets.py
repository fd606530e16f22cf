"""Models for unit tests."""

from __future__ import annotations

import torch
from torch import nn

import pactrain
from pactrain.masks import registry


def small_net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)
    )


def gradients(model):
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def outside(model):
    """How many weights of the pruned layer are not zero outside its mask."""
    mask = registry.get(model[2].weight)
    return int((model[2].weight[~mask] != 0).sum())


def pruned(amount=0.5):
    model = small_net()
    pactrain.prune(model, amount)
    return model
