"""Compares ways to prune on the small network and data of ddp.py.

torchrun --nproc-per-node=2 examples/pruning.py --amount 0.9 --scope erk
... --method grasp           # By one batch, before training.
... --schedule               # Little by little, while the network trains.
... --kind freeze            # Only 10 % of the weights train.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from ddp import accuracy, at_least_one, device_of, load_data, make_loader, make_model
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import pactrain


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--amount", type=float, default=0.9, help="share to prune")
    parser.add_argument("--method", default="magnitude", help="or random, grasp")
    parser.add_argument("--scope", help="layer, global or erk")
    parser.add_argument("--kind", default="zero", help="or freeze")
    parser.add_argument("--schedule", action="store_true", help="in ten changes")
    parser.add_argument("--epochs", type=at_least_one, default=15)
    parser.add_argument("--batch", type=at_least_one, default=32, help="images per rank and step")
    parser.add_argument("--device", type=device_of, default="cpu", help="or cuda, cuda:1")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def prune_once(model: nn.Module, train: TensorDataset, options: argparse.Namespace) -> None:
    by_batch = {}
    if options.method == "grasp":
        batch = tuple(tensor.to(options.device) for tensor in train[:256])
        by_batch = {"loss": cross_entropy, "batch": batch}
    pactrain.prune(
        model,
        options.amount,
        options.scope,
        method=options.method,
        kind=options.kind,
        seed=options.seed,
        **by_batch,
    )


def main() -> None:
    options = arguments()
    dist.init_process_group("gloo")
    torch.manual_seed(options.seed)
    train, test = load_data()
    sampler, loader = make_loader(train, options.batch)
    device = options.device
    model = make_model(channels=train.tensors[0].shape[1]).to(device)
    if not options.schedule:
        prune_once(model, train, options)
    ddp = DistributedDataParallel(model)
    session = pactrain.attach(ddp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = None
    if options.schedule:
        steps = options.epochs * len(loader) * 2 // 3  # The rest is to recover.
        schedule = pactrain.PruningSchedule(
            model,
            options.amount,
            steps=steps,
            every=max(1, steps // 10),
            scope=options.scope,
            method=options.method,
            kind=options.kind,
            seed=options.seed,
        )
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            with session.guard():
                cross_entropy(ddp(images.to(device)), labels.to(device)).backward()
            optimizer.step()
            if schedule is not None:
                schedule.step()
    if dist.get_rank() == 0:
        print(pactrain.sparsity(model))
        print(
            f"test accuracy {accuracy(model, test):.3f}, {session.mode}, "
            f"{session.stats()['pactrain/sent_bytes'] / 1e6:.1f} MB sent to other sites",
            flush=True,
        )
    session.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
