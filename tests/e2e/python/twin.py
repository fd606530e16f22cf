"""The Python twin of examples/cpp_trainer: the same network, data, order and rates."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from launcher import Talk
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import pactrain
from pactrain._library import digest_of
from pactrain.masks import registry

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
    """By attach(). The accuracy on the test images at the end."""
    torch.manual_seed(talk.rank)
    data, test = read(path)
    model = example.make_model(data.tensors[0].shape[1])
    pactrain.prune(model, amount)
    ddp = DistributedDataParallel(model)
    session = pactrain.attach(ddp)
    for _ in run_epochs(ddp, data, epochs, batch, talk.rank, talk.world):
        pass
    session.sync_buffers()
    right = example.accuracy(model, test)
    session.close()
    return right


def train_with_cpp(
    talk: Talk,
    path: str,
    epochs: int,
    batch: int,
    amount: float,
    kind: str = "zero",
    classes: int = 10,
    track: bool = False,
    onset: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """By our own wrapper, which C++ trainers share; its place is in the variables.

    `track`: by hand, as cpp_trainer --track prunes.
    """
    world = pactrain.init()
    torch.manual_seed(world.rank)
    data, test = read(path)
    model = example.make_model(data.tensors[0].shape[1])
    model[-1] = torch.nn.Linear(model[-1].in_features, classes)
    if not track:
        pactrain.prune(model, amount, kind=kind)
    options = {"masks": "track" if track else None, "gse": True, **(onset or {})}
    ddp = pactrain.DistributedDataParallel(model, **options)
    steps = run_epochs(ddp, data, epochs, batch, world.rank, world.world_size)
    pruning = HandPruning(model)
    if track:
        pruning.prune(amount)
    modes = []
    for step, _ in enumerate(steps, start=1):
        modes.append(ddp.session.mode)
        pruning.apply()
        if track and step == epochs // 2 * (len(data) // (batch * world.world_size)):
            pruning.prune(amount / 2)
    ddp.session.sync_buffers()
    result = {
        "digest": ddp.session.parameters.value_digest(digest_of).to_bytes().hex(),
        "accuracy": example.accuracy(model, test),
        "modes": modes,
        "keep": round(ddp.session.stats()["pactrain/active_keep"], 3),
    }
    ddp.session.close()
    return result


class HandPruning:
    """As in examples/cpp_trainer: what was pruned comes back, and the smallest go."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._masks: dict[str, torch.Tensor] = {}

    def prune(self, amount: float) -> None:
        with torch.no_grad():
            for name, p in self._model.named_parameters():
                if name in self._masks:
                    generator = torch.Generator().manual_seed(1)
                    values = torch.randn(p.shape, generator=generator).mul_(0.01)
                    p.copy_(p.where(self._masks[name], values))
        copied = copy.deepcopy(self._model)
        pactrain.prune(copied, amount)
        found = {name: registry.get(p) for name, p in copied.named_parameters()}
        self._masks = {name: mask for name, mask in found.items() if mask is not None}
        self.apply()

    def apply(self) -> None:
        with torch.no_grad():
            for name, p in self._model.named_parameters():
                if name in self._masks:
                    p.mul_(self._masks[name])


def run_epochs(
    ddp: torch.nn.Module, data: TensorDataset, epochs: int, batch: int, rank: int, world: int
) -> Iterator[None]:
    """Comes back after each step."""
    images, labels = data.tensors
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(epochs):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        for step in range(len(labels) // (batch * world)):
            first = (step * world + rank) * batch
            chosen = order[first : first + batch]
            optimizer.zero_grad()
            cross_entropy(ddp(images[chosen]), labels[chosen]).backward()
            optimizer.step()
            yield
