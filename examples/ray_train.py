"""examples/ddp.py's training as two workers of Ray Train, with PacTrain's lines (marked with <--).

    pip install "ray[train]"
    python examples/ray_train.py             # Starts its own daemons.
    PACTRAIN_AGENT=unix:/run/pactrain/agent.sock python examples/ray_train.py

Ray has each worker's process group made before it calls `train`.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

EXAMPLES = Path(__file__).resolve().parent
VARIABLES = "PACTRAIN_"


def train(config: dict[str, Any]) -> None:
    sys.path.insert(0, config["examples"])
    import ddp as example

    import pactrain  # <--

    torch.manual_seed(0)
    data, test = example.load_data()
    sampler, loader = example.make_loader(data, 32)
    model = example.make_model(channels=data.tensors[0].shape[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    pactrain.prune(model, 0.7)  # <--
    ddp = DistributedDataParallel(model)
    session = pactrain.attach(ddp)  # <--
    for epoch in range(config["epochs"]):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(ddp(images), labels)
            with session.guard():  # <-- Typed errors.
                loss.backward()
            optimizer.step()
        accuracy = example.accuracy(model, test)
        ray.train.report({"epoch": epoch + 1, "accuracy": accuracy})
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}: test accuracy {accuracy:.3f}, {session.mode}", flush=True)
    session.close()  # <--


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    # Workers are started by Ray, not by this process: what is set here is for them.
    variables = {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)}
    ray.init(
        num_cpus=options.workers + 1, runtime_env={"env_vars": variables}, include_dashboard=False
    )
    ray.train.torch.TorchTrainer(
        train,
        train_loop_config={"epochs": options.epochs, "examples": str(EXAMPLES)},
        scaling_config=ray.train.ScalingConfig(num_workers=options.workers),
        torch_config=ray.train.torch.TorchConfig(backend="gloo"),
    ).fit()


if __name__ == "__main__":
    main()
