"""One rank of a chaos run in Python: rank.py LOG UNTIL SEAT (rank.cc is the same in C++).

Trains by the rules of oracle.py until the batch that the file UNTIL names, and writes a line of
LOG for each committed step. CHAOS_CHECKPOINT is the file that rank 0 writes, and with which a
launch begins that replaces the one before.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TextIO

import numpy as np
import oracle
import torch

import pactrain

PACE_S = 0.05


class Model(torch.nn.Module):
    batches: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.zeros(oracle.ELEMENTS))
        self.register_buffer("batches", torch.zeros(1, dtype=torch.int64))

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = (self.weights * gradient).sum()
        return loss


def values(tensor: torch.Tensor | None) -> oracle.Values:
    assert tensor is not None
    return np.asarray(tensor.detach())


class Checkpoint:
    """How many batches, and the weights after them."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def save(self, model: Model, batches: int) -> None:
        new = self._path.with_suffix(".new")
        new.write_bytes(np.int64(batches).tobytes() + values(model.weights).tobytes())
        new.replace(self._path)

    def load(self, model: Model) -> None:
        data = self._path.read_bytes()
        with torch.no_grad():
            model.batches.fill_(int(np.frombuffer(data[:8], np.int64)[0]))
            model.weights.copy_(torch.frombuffer(bytearray(data[8:]), dtype=torch.float32))


def train(log: TextIO, until: Path, seat: int) -> None:
    def write(**line: object) -> None:
        log.write(json.dumps({"time": time.monotonic(), **line}) + "\n")

    torch.set_num_threads(1)
    model = Model()
    checkpoint = Checkpoint(Path(os.environ["CHAOS_CHECKPOINT"]))
    if os.environ.get("PACTRAIN_REPLACE") == "1":
        checkpoint.load(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1, momentum=oracle.MOMENTUM)
    write(attaches=True)
    masks = {"weights": torch.from_numpy(oracle.KEPT)}
    ddp = pactrain.DistributedDataParallel(model, masks=masks)
    ddp.share(optimizer=optimizer)
    ddp.start()
    while not until.exists() or int(model.batches) < int(until.read_text()):
        model.weights.grad = None
        batch = int(model.batches) + 1
        ddp(torch.from_numpy(oracle.gradient(batch, seat))).backward()
        if ddp.session.membership.behind:
            continue  # The others made the step; this rank has the state after it.
        seats = oracle.seats_in(batch, values(model.weights.grad))
        optimizer.step()
        model.batches += 1
        velocity = optimizer.state[model.weights]["momentum_buffer"]
        write(
            batch=batch,
            digest=oracle.digest(values(model.weights), values(velocity)),
            seats=seats,
            ranks=ddp.world.world_size,
            generation=ddp.world.generation,
            lineage=str(ddp.session._native.lineage),
        )
        if ddp.world.rank == 0 and batch % oracle.CHECKPOINT_STEPS == 0:
            checkpoint.save(model, batch)
        time.sleep(PACE_S)
    ddp.session.close()


if __name__ == "__main__":
    with open(sys.argv[1], "a", buffering=1) as lines:
        train(lines, Path(sys.argv[2]), int(sys.argv[3]))
