"""gpu_check.py's part "kernels": against torch's operators on the same device. Alone: over small
buckets, for compute-sanitizer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gpu_place import Answer, Skipped, kernels_on, on

ELEMENTS = 1 << 24  # In a bucket.
SECONDS = 45


def kernels(place: str, package: Path) -> Answer:
    """Against torch's operators on the same device, over random bits."""
    import torch

    device = on(place)
    own = there(device)
    wrong: list[str] = []
    checked = 0
    elements = ELEMENTS if place.startswith("cuda") else 3000
    end = time.monotonic() + SECONDS
    rounds = 64 if place.startswith("cuda") else 2
    for number in range(rounds):
        dtype = (torch.float32, torch.bfloat16)[number % 2]
        count = elements - number  # Also what is no whole tile.
        wrong += check_kernels(own, device, dtype, count, number)
        checked += count
        if time.monotonic() > end:
            break
    return {"wrong": wrong, "elements": checked}


def there(device: Any) -> Any:
    from pactrain.errors import RefusedError

    try:
        return kernels_on(device)
    except RefusedError as error:
        raise Skipped(str(error)) from error


TOOLS = ("memcheck", "racecheck")


def sanitized(place: str, package: Path) -> Answer:
    """Nothing is read or written out of bounds, and no block races with itself."""
    if not place.startswith("cuda") or shutil.which("compute-sanitizer") is None:
        raise Skipped("compute-sanitizer is for NVIDIA's GPUs, and comes with the CUDA Toolkit")
    there(on(place))
    answer: Answer = {"wrong": []}
    for tool in TOOLS:
        command = ["compute-sanitizer", "--tool", tool, "--kernel-regex", "kns=pactrain"]
        done = subprocess.run(
            [*command, sys.executable, __file__, place],
            env=os.environ | {"PYTHONPATH": str(package)},
            capture_output=True,
            text=True,
            check=False,
        )
        answer[tool] = re.findall(r"=+ (?:ERROR|RACECHECK) SUMMARY: .*", done.stdout)
        said = f"{tool}: {done.stdout[-1500:]}{done.stderr[-500:]}"
        if not answer[tool]:
            answer.setdefault("failed", []).append(said)
        elif done.returncode or not re.search(": 0 (err|haz)", answer[tool][0]):
            answer["wrong"].append(said)
    return answer


def check_small(place: str) -> list[str]:
    """Around whole tiles, by all shares that are kept; what is wrong."""
    import torch

    device = on(place)
    own, wrong = kernels_on(device), []
    for seed in range(16):
        dtype = (torch.float32, torch.bfloat16)[seed % 2]
        for count in (31, 1023, 1024, 1025, 40_000 + seed, (1 << 18) - seed):
            wrong += check_kernels(own, device, dtype, count, seed)
    return wrong


def check_kernels(own: Any, device: Any, dtype: Any, count: int, seed: int) -> list[str]:
    import torch

    generator = torch.Generator().manual_seed(seed)
    width = torch.int32 if dtype == torch.float32 else torch.int16
    limits = torch.iinfo(width)
    bits = torch.randint(limits.min, limits.max + 1, (count,), generator=generator, dtype=width)
    bits[:6] = 0  # Zeros, and values that are not random.
    keep = torch.rand(count, generator=generator) < (0, 0.1, 0.5, 1.1)[seed % 4]
    image = image_of(keep).to(device)
    bits, keep = bits.to(device), keep.to(device)
    values = bits.view(dtype)
    packed = torch.empty(int(keep.sum()), device=device)
    totals = torch.empty(own.totals_of(count), dtype=torch.int64, device=device)
    out = torch.empty(count, dtype=dtype, device=device)
    stream = torch.accelerator.current_stream()
    own.pack(image, values, packed, totals, count_outside=True, stream=stream)
    own.unpack(image, packed, 3, out, stream=stream)
    wide = widened(bits)
    magnitude = limits.max
    outside = int((((bits & magnitude) != 0) & ~keep).sum())
    kept = wide[keep]
    mean = torch.zeros(count, dtype=torch.int32, device=device)
    mean[keep] = divided(kept, 3)
    name = f"{dtype}, {count} elements, seed {seed}"
    pairs = (
        ("compact", torch.equal(packed.view(torch.int32), kept)),
        ("outside", int(totals[1::2].sum()) == outside),
        ("expand + divide", torch.equal(out.view(width), narrowed(mean, width))),
    )
    return [f"{what}: {name}" for what, right in pairs if not right]


def widened(bits: Any) -> Any:
    import torch

    return bits if bits.dtype == torch.int32 else bits.to(torch.int32) << 16


def divided(bits: Any, by: int) -> Any:
    """Bits of fp32, as the CPU divides them: a NaN stays the one that it is, quiet."""
    import torch

    values = bits.view(torch.float32)
    quotient = (values / torch.tensor(float(by), device=bits.device)).view(torch.int32)
    return torch.where(values.isnan(), bits | 0x00400000, quotient)


def narrowed(bits: Any, width: Any) -> Any:
    import torch

    if width == torch.int32:
        return bits
    is_nan = bits.view(torch.float32).isnan()
    rounded = bits + 0x7FFF + (bits >> 16 & 1)
    return (torch.where(is_nan, bits | 0x00400000, rounded) >> 16).to(torch.int16)


def image_of(keep: Any) -> Any:
    """A mask as kernels read it (kernels/cuda/shapes.h), as bytes."""
    import numpy as np
    import torch

    tiles = -(-keep.numel() // 1024)
    padded = np.zeros(tiles * 1024, dtype=bool)
    padded[: keep.numel()] = keep.numpy()
    words = np.packbits(padded, bitorder="little").view(np.uint32)
    kept = padded.reshape(tiles, 1024).sum(axis=1)
    offsets = (np.cumsum(kept) - kept).astype(np.uint32)
    return torch.from_numpy(np.concatenate([words, offsets]).view(np.uint8))


if __name__ == "__main__":
    found = check_small(sys.argv[1])
    print(found)
    sys.exit(bool(found))
