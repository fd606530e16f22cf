"""The Python twin of examples/cpp_trainer: the same network, data, order and rates."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from launcher import Talk
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import pactrain

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
sys.path[:0] = [str(EXAMPLES), str(EXAMPLES / "cpp_trainer")]

import ddp as example  # noqa: E402
import export_images  # noqa: E402


def write_digits(path: Path) -> None:
    with path.open("wb") as file:
        export_images.write(file, *example.load_digits())


def read(path: str) -> tuple[TensorDataset, TensorDataset]:
    """What examples/cpp_trainer/images.h describes."""
    data = Path(path).read_bytes()
    train, test, *shape, _ = np.frombuffer(data, "<u4", 6, offset=8).tolist()
    offset = 8 + 6 * 4
    parts = []
    for count in (train, test):
        size = count * int(np.prod(shape))
        images = np.frombuffer(data, "<f4", size, offset).reshape(count, *shape)
        labels = np.frombuffer(data, np.uint8, count, offset + 4 * size)
        offset += 4 * size + count
        parts.append(
            TensorDataset(torch.from_numpy(images.copy()), torch.from_numpy(labels.copy()).long())
        )
    return parts[0], parts[1]


def train(talk: Talk, path: str, epochs: int, batch: int, amount: float) -> float:
    """The accuracy on the test images at the end."""
    torch.manual_seed(talk.rank)
    data, test = read(path)
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
    right = example.accuracy(model, test)
    session.close()
    return right
