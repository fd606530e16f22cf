"""Pre-trains the demo's network; the result is kept under out/ by content.

python -m bench.pretrain     prints progress, then the file's path as the last line
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from bench import data, model

OUT = Path(__file__).resolve().parent.parent / "out"
EPOCHS = {"cifar10": 2, "digits": 10}
BATCH = 64
PEAK_RATE = 0.04
SEED = 7


def checkpoint_path(images: data.Data) -> Path:
    """Where the weights for these images and this code lie (whether they exist or not)."""
    digest = hashlib.sha256()
    for source in (Path(__file__), Path(model.__file__)):
        digest.update(source.read_bytes())
    digest.update(images.train.labels.tobytes())
    digest.update(images.train.pixels[::101].tobytes())
    digest.update(torch.__version__.encode())
    return OUT / f"pretrained-{images.name}-{digest.hexdigest()[:16]}.pt"


def accuracy(net: torch.nn.Module, images: data.Images) -> float:
    """Share of right answers, 0 to 1."""
    right = 0
    net.eval()
    with torch.inference_mode():
        for start in range(0, len(images.labels), 500):
            answer = net(model.to_input(images.pixels[start : start + 500])).argmax(1)
            right += int((answer.numpy() == images.labels[start : start + 500]).sum())
    net.train()
    return right / len(images.labels)


def pretrain(images: data.Data) -> torch.nn.Module:
    """SGD with momentum, one-cycle rate, random flips; the same weights every time."""
    torch.manual_seed(SEED)
    random = np.random.default_rng(SEED)
    net = model.make_model()
    optimizer = torch.optim.SGD(net.parameters(), lr=PEAK_RATE, momentum=0.9, weight_decay=5e-4)
    epochs = EPOCHS[images.name]
    steps = len(images.train.labels) // BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=PEAK_RATE, total_steps=epochs * steps
    )
    start = time.monotonic()
    for epoch in range(epochs):
        order = random.permutation(len(images.train.labels))
        for step in range(steps):
            chosen = order[step * BATCH : (step + 1) * BATCH]
            inputs = model.to_input(images.train.pixels[chosen])
            if images.name == "cifar10" and random.random() < 0.5:
                inputs = inputs.flip(3)
            loss = cross_entropy(net(inputs), torch.from_numpy(images.train.labels[chosen]).long())
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
            done = epoch * steps + step + 1
            if done % 100 == 0:
                print(
                    f"pre-training: step {done}/{epochs * steps}, "
                    f"loss {loss.item():.3f}, {time.monotonic() - start:.0f} s",
                    flush=True,
                )
    return net


def main() -> int:
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    images = data.load()
    path = checkpoint_path(images)
    if not path.exists():
        print(f"pre-training on {images.title}, kept for later runs", flush=True)
        net = pretrain(images)
        print(f"pre-trained: test accuracy {accuracy(net, images.test):.3f}", flush=True)
        OUT.mkdir(exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        torch.save(net.state_dict(), partial)
        partial.replace(path)
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
