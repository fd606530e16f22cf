"""make report-blocks: how many blocks of our masks hold a kept weight, as OmniReduce would send.

OmniReduce (SIGCOMM 2021) leaves out blocks of 256 elements that are all zero. Here the
workloads' pre-trained weights are pruned by magnitude, and blocks are counted in the layers
that are pruned, where there can be empty ones. Into bench/results/evidence/blocks.json; what
is there already is not measured again.

    python -m bench.evidence.blocks --workloads=transformer,resnet9
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import pactrain
from bench.evidence import checked, chosen
from bench.evidence.checked import SHARE, check
from bench.evidence.steps import FOLDER
from bench.evidence.workloads import WORKLOADS
from pactrain.masks import registry

RESULT = FOLDER / "blocks.json"
BLOCK = 256  # Elements.
KEEPS = (0.5, 0.3, 0.2, 0.1, 0.05, 0.01)


def filled_share(masks: Sequence[Tensor], block: int = BLOCK) -> float:
    """Blocks with at least one kept element, over all; a mask's last one may be short."""
    filled = blocks = 0
    for mask in masks:
        pieces = torch.split(mask.flatten(), block)
        blocks += len(pieces)
        filled += sum(bool(piece.any()) for piece in pieces)
    return filled / blocks


def masks_of(model: nn.Module, keep: float) -> list[Tensor]:
    """Of the layers that are pruned."""
    pactrain.prune(model, round(1 - keep, 6))
    found = [registry.get(parameter) for parameter in model.parameters()]
    return [mask for mask in found if mask is not None]


def measure(name: str) -> dict[str, float]:
    """By keep."""
    workload = WORKLOADS[name]()
    weights = workload.pretrained(print)
    found = {}
    for keep in KEEPS:
        model = workload.make_model()
        model.load_state_dict(weights)
        found[f"{keep:g}"] = filled_share(masks_of(model, keep))
    return found


def read_blocks() -> dict[str, dict[str, float]]:
    if not RESULT.exists():
        return {}
    fields = {f"{keep:g}": SHARE for keep in KEEPS}
    found = checked.read(RESULT, {})
    return {name: check(RESULT, shares, fields, f"{name}:") for name, shares in found.items()}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="bench.evidence.blocks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    found: dict[str, Any] = read_blocks()
    try:
        for name in chosen("workloads", options.workloads, WORKLOADS):
            if name in found:
                print(f"{name}: blocks are counted already")
                continue
            found[name] = measure(name)
            RESULT.write_text(json.dumps(found, indent=1) + "\n")
            print(f"{name}: {found[name]}", flush=True)
    except (FileNotFoundError, ValueError) as error:
        print(f"report-blocks: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
