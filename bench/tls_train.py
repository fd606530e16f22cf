"""One trainer of bench/tls.py: exchanges gradients by one cluster and the other in turn.

No compute. Rank 0 prints a line of JSON after each round; the first is to warm up.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

import torch

import pactrain
from bench.bytes_train import Flat, gradient


def timed(model: pactrain.DistributedDataParallel, wanted: torch.Tensor, steps: int) -> float:
    """Seconds per step."""
    start = time.monotonic()
    for _ in range(steps):
        model.zero_grad()
        torch.autograd.backward(model(wanted))
    return (time.monotonic() - start) / steps


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.tls_train")
    parser.add_argument("--elements", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--agent", action="append", required=True, help="KIND=ADDRESS")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    world = pactrain.init()
    flats: dict[str, Flat] = {}
    models: dict[str, pactrain.DistributedDataParallel] = {}
    for kind, address in (agent.split("=", 1) for agent in options.agent):
        os.environ["PACTRAIN_AGENT"] = address
        flats[kind] = Flat(options.elements)
        models[kind] = pactrain.DistributedDataParallel(flats[kind])
    gradients = [gradient(rank, 0, options.elements) for rank in range(world.world_size)]
    for number in range(options.rounds + 1):
        for kind, model in models.items():
            seconds = timed(model, gradients[world.rank], options.steps)
            mean = flats[kind].weight.grad
            assert mean is not None
            if not torch.equal(mean * world.world_size, torch.stack(gradients).sum(0)):
                raise SystemExit(f"rank {world.rank}, {kind}: a sum is wrong")
            if world.rank == 0:
                event = {"event": "round", "round": number, "kind": kind, "seconds": seconds}
                print(json.dumps(event), flush=True)
    for model in models.values():
        model.session.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
