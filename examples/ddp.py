"""An ordinary torchrun script with PacTrain's lines added (marked with <--).

    torchrun --nproc-per-node=2 examples/ddp.py             # Starts its own daemons.
    torchrun --nproc-per-node=2 examples/ddp.py --plain     # The same without PacTrain.
    PACTRAIN_AGENT=unix:/run/pactrain/agent.sock \
        torchrun --nproc-per-node=2 examples/ddp.py         # Uses that agent.
    torchrun --nproc-per-node=2 examples/ddp.py --device cuda   # A GPU for each rank.

A small convolutional network learns scikit-learn's handwritten digits (1,797 images of
8 x 8), or CIFAR-10 where PACTRAIN_DATA has cifar10_{train,test}.npz.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import pactrain  # <--


def load_digits() -> tuple[TensorDataset, TensorDataset]:
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[:1500], order[1500:]
    return (
        TensorDataset(images[train], labels[train]),
        TensorDataset(images[test], labels[test]),
    )


def load_cifar10(folder: Path) -> tuple[TensorDataset, TensorDataset]:
    from PIL import Image

    def read(name: str, limit: int) -> TensorDataset:
        archive = np.load(folder / name)
        data, offsets = archive["jpeg"].tobytes(), archive["offset"]
        pixels = [
            np.asarray(Image.open(io.BytesIO(data[offsets[i] : offsets[i + 1]])))
            for i in range(min(limit, len(offsets) - 1))
        ]
        images = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2) / 255
        labels = torch.from_numpy(archive["label"][: len(pixels)]).long()
        return TensorDataset(images, labels)

    return read("cifar10_train.npz", 10_000), read("cifar10_test.npz", 2_000)


def load_data() -> tuple[TensorDataset, TensorDataset]:
    folder = os.environ.get("PACTRAIN_DATA")
    return load_cifar10(Path(folder)) if folder else load_digits()


def device_of(text: str) -> torch.device:
    """For "cuda" that of this rank; ranks share one where there are too few."""
    name, _, number = text.partition(":")
    if name == "cpu":
        return torch.device(name)
    module = getattr(torch, name, None)
    count = module.device_count() if hasattr(module, "device_count") else 0
    index = int(number) if number else int(os.environ.get("LOCAL_RANK", "0")) % max(count, 1)
    if index >= count:
        raise argparse.ArgumentTypeError(
            f"{text}: torch sees {count} devices of this kind here; give one that it sees, or cpu"
        )
    return torch.device(name, index)


def at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def check_batch(batch: int, images: int, ranks: int) -> None:
    most = -(-images // ranks)
    if batch > most:
        raise SystemExit(
            f"--batch is {batch}; allowed is at most {most}, the images of each of "
            f"{ranks} ranks.\nGive a smaller one, or train fewer ranks."
        )


def make_loader(
    train: TensorDataset, batch: int
) -> tuple[DistributedSampler[tuple[torch.Tensor, ...]], DataLoader[tuple[torch.Tensor, ...]]]:
    """This rank's part of the images, in whole batches."""
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(train)
    check_batch(batch, len(train), sampler.num_replicas)
    return sampler, DataLoader(train, batch, sampler=sampler, drop_last=True)


def make_model(channels: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.BatchNorm2d(128),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    model.eval()
    device = next(model.parameters()).device
    images, labels = (tensor.to(device) for tensor in data.tensors)
    right = sum(
        int((model(part).argmax(1) == wanted).sum())
        for part, wanted in zip(images.split(256), labels.split(256), strict=True)
    )
    model.train()
    return right / len(labels)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--plain", action="store_true", help="train without PacTrain")
    parser.add_argument("--epochs", type=at_least_one, default=5)
    parser.add_argument("--batch", type=at_least_one, default=32, help="images per rank and step")
    parser.add_argument("--amount", type=float, default=0.7, help="share to prune")
    parser.add_argument("--checkpoint", type=Path, help="file to resume from and save to")
    parser.add_argument("--device", type=device_of, default="cpu", help="or cuda, cuda:1")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    train, test = load_data()
    sampler, loader = make_loader(train, options.batch)
    device = options.device
    model = make_model(channels=train.tensors[0].shape[1]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    saved = None
    if options.checkpoint and options.checkpoint.exists():
        saved = torch.load(options.checkpoint, map_location="cpu", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    session = None
    if not options.plain and saved is None:
        report = pactrain.prune(model, options.amount)  # <--
        if rank == 0:
            print(report, flush=True)
    ddp = DistributedDataParallel(model)
    if not options.plain:
        session = pactrain.attach(ddp, state=saved and saved["session"])  # <--

    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            images, labels = images.to(device), labels.to(device)
            loss = cross_entropy(ddp(images), labels)
            with session.guard() if session else contextlib.nullcontext():  # <-- Typed errors.
                loss.backward()
            optimizer.step()
        if rank == 0:
            line = f"epoch {epoch + 1}: loss {loss.item():.3f}, "
            line += f"test accuracy {accuracy(model, test):.3f}"
            if session is not None:
                sent = session.stats()["pactrain/sent_bytes"]  # <--
                line += f", {session.mode}, {sent / 1e6:.1f} MB sent to other sites"
            print(line, flush=True)
    if rank == 0 and options.checkpoint:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        if session is not None:
            state["session"] = session.state_dict()  # <--
        torch.save(state, options.checkpoint)
    if session is not None:
        session.close()  # <--
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
