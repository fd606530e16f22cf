"""Every row of the evidence on a device that needs no GPU, beside the same on the CPU.

Ends with {row: [largest difference of weights, of averaged ones]} as JSON: convolutions round in
another way there. What mixes tensors of two devices, which a GPU refuses, ends it. Randomness is
drawn on the CPU: this device has none of its own, so THC, which needs some, is left out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import queued
import torch

from bench.evidence.methods import ROWS, Setup
from bench.evidence.networks import ResNet9
from bench.evidence.train import Run, flat
from bench.evidence.workloads import Cifar, Place

STEPS = 3


class Tiny(Cifar):
    name, steps, batch, SCORED = "tiny", STEPS, 2, 8
    EPOCH_SIZES, PRETRAIN_BATCH = (8,) * 3, 16

    @staticmethod
    def network() -> torch.nn.Module:
        return ResNet9(width=4)


def random(setup: Setup, count: int, step: int, worker: int) -> torch.Tensor:
    seed = (setup.seed * 1_000_003 + step) * 97 + worker
    return torch.rand(count, generator=torch.Generator().manual_seed(seed)).to(setup.device)


def trained(row: str, device: str) -> list[torch.Tensor]:
    workload = Tiny(Place(torch.device(device)))
    with queued.OneDevice():
        run = Run(workload, row, 1, None)
        while not run.done:
            run.step()
    return [run._weights.cpu(), flat(run._average).cpu()]


def main() -> None:
    torch.set_num_threads(1)
    queued.use()
    Setup.random = random  # type: ignore[method-assign]
    # One pre-training for both; that of the device is tried, too.
    path = Tiny(Place()).pretrain_path()
    there = Tiny(Place(torch.device(queued.NAME)))
    there.pretrained(print)
    there.pretrain_path().replace(path)
    Tiny.pretrain_path = lambda self: path  # type: ignore[method-assign]
    found = {}
    for row in ROWS:
        if row != "thc":
            pairs = zip(*(trained(row, device) for device in ("cpu", queued.NAME)), strict=True)
            found[row] = [float((a - b).abs().max()) for a, b in pairs]
    path.unlink()
    print(json.dumps(found))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    main()
