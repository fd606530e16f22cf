"""One launch per site: an ordinary script for several clusters (marked with <--).

Each site runs its own torchrun (or Slurm job) against the agent on its node. Nothing is
shared between the sites but the agents and their coordinator; for two sites on one
machine, after `make build`, in this folder:

    mkdir -m 700 /tmp/pactrain
    export PACTRAIN_JOB_KEY=$(openssl rand -hex 32)
    out/bin/pactrain-coordinator --state-dir /tmp/pactrain/state &
    for site in a b; do
        out/bin/pactrain-agent --name node-$site --site $site \
            --coordinator 127.0.0.1:7070 --socket unix:/tmp/pactrain/$site.sock \
            --listen 127.0.0.1:0 --listen-metrics 127.0.0.1:0 &
    done
    export PACTRAIN_SITES=a:2,b:2 PACTRAIN_JOB_ID=digits

    # Site a:
    PACTRAIN_SITE=a PACTRAIN_AGENT=unix:/tmp/pactrain/a.sock \
        torchrun --standalone --nproc-per-node=2 examples/multi_site.py
    # Site b, at the same time, in another terminal:
    PACTRAIN_SITE=b PACTRAIN_AGENT=unix:/tmp/pactrain/b.sock \
        torchrun --standalone --nproc-per-node=2 examples/multi_site.py

A site that was lost may be started again, and another one may join, without
PACTRAIN_SITES: they go on where the others are. Without any of these variables it trains
alone, as `python examples/multi_site.py`, or under one torchrun, and starts its own
daemons.

Network and data are those of ddp.py.
"""

from __future__ import annotations

import argparse

import torch
from ddp import accuracy, at_least_one, check_batch, device_of, load_data, make_model
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import pactrain


class Place:
    """Where the training is; equal at all ranks, so nothing but a step may change it."""

    def __init__(self) -> None:
        self.images = 0  # That all ranks have trained with, over all epochs.

    def state_dict(self) -> dict[str, int]:
        return {"images": self.images}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.images = state["images"]


def choose(train: TensorDataset, place: Place, batch: int, rank: int) -> tuple[torch.Tensor, ...]:
    """This rank's images of the next step; those of all ranks follow each other.

    A DataLoader does as well, if it starts at `place` and is made anew when ddp.world is
    another one.
    """
    epoch, first = divmod(place.images, len(train))
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(epoch))
    return train[order.roll(-first - rank * batch)[:batch]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=at_least_one, default=5)
    parser.add_argument("--batch", type=at_least_one, default=32, help="images per rank and step")
    parser.add_argument("--amount", type=float, default=0.7, help="share to prune")
    parser.add_argument("--device", type=device_of, default="cpu", help="or cuda, cuda:1")
    options = parser.parse_args()

    start = pactrain.init()  # <-- Instead of init_process_group().
    torch.manual_seed(start.rank)  # Weights are rank 0's all the same.
    train, test = load_data()
    check_batch(options.batch, len(train), start.world_size)
    device = options.device
    model = make_model(channels=train.tensors[0].shape[1]).to(device)
    pactrain.prune(model, options.amount)  # <--
    ddp = pactrain.DistributedDataParallel(  # <-- Instead of torch's.
        model, buffer_sync_interval=10
    )  # <-- Every 10 steps BatchNorm's statistics are rank 0's.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    place = Place()
    ddp.share(optimizer=optimizer, place=place)  # <-- For a site that comes, or comes back.
    ddp.start()  # <-- Which gets weights, optimizer and place here.

    epoch = place.images // len(train)
    while epoch < options.epochs:
        chosen = choose(train, place, options.batch, ddp.world.rank)  # <--
        images, labels = (tensor.to(device) for tensor in chosen)
        optimizer.zero_grad()
        loss = cross_entropy(ddp(images), labels)
        loss.backward()  # Raises pactrain's errors as they are.
        optimizer.step()
        place.images += options.batch * ddp.world.world_size  # <-- It may be another one now.
        before, epoch = epoch, place.images // len(train)
        if epoch > before and start.local_rank == 0:
            sent = ddp.session.stats()["pactrain/sent_bytes"]
            print(
                f"site {ddp.world.site}, rank {ddp.world.rank} of {ddp.world.world_size}, "
                f"epoch {epoch}: loss {loss.item():.3f}, test accuracy "
                f"{accuracy(model, test):.3f}, {ddp.session.mode}, "
                f"{sent / 1e6:.1f} MB sent to other sites",
                flush=True,
            )
    ddp.session.close()


if __name__ == "__main__":
    main()
