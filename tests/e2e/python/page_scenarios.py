"""What ranks do for tests of the page."""

from __future__ import annotations

import torch
from launcher import Talk
from scenarios import batch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import prune

import pactrain

# A module's name may be anything without a dot, and comes as far as the page.
HOSTILE = '<img src=/x onerror=alert(1)>"&</script>'


def hostile_names(talk: Talk, *, moves: tuple[int, int] = (1, 8), steps: int = 40) -> None:
    """Masks that move before the steps `moves`, of a layer that is named to do harm; then it
    waits to be told to end."""
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module(HOSTILE, nn.Linear(10, 64))
    layer = model[0]
    ddp = DistributedDataParallel(model)
    session = pactrain.attach(ddp, masks="track", settle=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(1, steps + 1):
        if step in moves:
            prune.random_unstructured(layer, "weight", amount=0.3)
        optimizer.zero_grad()
        ddp(batch(talk, step)).square().mean().backward()
        optimizer.step()
    talk.say("trained")
    talk.hear()
    session.close()


def attach_alone(talk: Talk) -> None:
    pactrain.attach(DistributedDataParallel(nn.Linear(2, 2)))
