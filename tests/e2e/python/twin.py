"""The Python twin of examples/cpp_trainer: the same network, data, order and rates."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import torch
from launcher import Talk
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import pactrain

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))

import ddp as example


def train(talk: Talk, epochs: int, batch: int, amount: float) -> dict[str, Any]:
    torch.manual_seed(talk.rank)
    data, test = example.load_digits()
    images, labels = data.tensors
    model = example.make_model(images.shape[1])
    pactrain.prune(model, amount)
    ddp = DistributedDataParallel(model)
    session = pactrain.attach(ddp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(epochs):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        for step in range(len(labels) // (batch * talk.world)):
            first = (step * talk.world + talk.rank) * batch
            chosen = order[first : first + batch]
            optimizer.zero_grad()
            cross_entropy(ddp(images[chosen]), labels[chosen]).backward()
            optimizer.step()
    session.sync_buffers()
    bits = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    result = {
        "accuracy": example.accuracy(model, test),
        "mode": session.mode,
        "digest": hashlib.sha256(bits).hexdigest(),
    }
    session.close()
    return result
