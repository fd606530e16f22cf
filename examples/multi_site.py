"""One launch per site: an ordinary script for several clusters (marked with <--).

Each site runs its own torchrun (or Slurm job) against the agent on its node. Nothing is
shared between the sites but the agents and their coordinator; for two sites on one
machine, after `make build`, in this folder:

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

Without any of these variables it trains alone, as `python examples/multi_site.py`, or
under one torchrun, and starts its own daemons.

Network and data are those of ddp.py.
"""

from __future__ import annotations

import argparse

import torch
from ddp import accuracy, at_least_one, load_data, make_loader, make_model
from torch.nn.functional import cross_entropy

import pactrain


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=at_least_one, default=5)
    parser.add_argument("--batch", type=at_least_one, default=32, help="images per rank and step")
    parser.add_argument("--amount", type=float, default=0.7, help="share to prune")
    options = parser.parse_args()

    world = pactrain.init()  # <-- Instead of init_process_group().
    torch.manual_seed(world.rank)  # Weights are rank 0's all the same.
    train, test = load_data()
    sampler, loader = make_loader(train, options.batch, world.world_size, world.rank)  # <--
    model = make_model(channels=train.tensors[0].shape[1])
    pactrain.prune(model, options.amount)  # <--
    ddp = pactrain.DistributedDataParallel(model)  # <-- Instead of torch's.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    ddp.share(optimizer=optimizer)  # <-- For a site that is lost and comes back.
    ddp.start()  # <-- Which gets weights and optimizer here.

    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(ddp(images), labels)
            loss.backward()  # Raises pactrain's errors as they are.
            optimizer.step()
        ddp.session.sync_buffers()  # Also BatchNorm's statistics are rank 0's now.
        if world.local_rank == 0:
            sent = ddp.session.stats()["pactrain/sent_bytes"]
            print(
                f"site {ddp.session.site}, rank {world.rank} of {world.world_size}, "
                f"epoch {epoch + 1}: loss {loss.item():.3f}, test accuracy "
                f"{accuracy(model, test):.3f}, {ddp.session.mode}, "
                f"{sent / 1e6:.1f} MB sent to other sites",
                flush=True,
            )
    ddp.session.close()


if __name__ == "__main__":
    main()
