"""gpu_check.py's figures, each beside its goal: shares of what this card does in the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpu_job
from gpu_kernels import image_of
from gpu_place import Answer, Skipped, kernels_on, on, timed

KERNELS_GOAL = 0.75  # Of the card's own copy, at least.
COPIES_GOAL = 0.9  # Of bare copies, at least.
BESIDE_GOAL = 1.10  # Times what computing takes without an exchange, at most.
LINK_GOAL = 1.03  # Times what a step of the CPU's job takes, at most.
LINK = "100mbit"


def figures(place: str, package: Path) -> Answer:
    """Of nothing but copies and kernels."""
    import torch

    device = on_gpu(place)
    elements = 1 << (26 if device.type == "cuda" else 12)
    values = torch.randn(elements).to(device)
    other = torch.empty_like(values)
    host = torch.empty(elements, pin_memory=True)

    def rate(size: int, target: torch.Tensor, source: torch.Tensor) -> float:
        return size / timed(device, lambda: target.copy_(source, non_blocking=True))

    answer: Answer = {
        "device_copy": rate(8 * elements, other, values),
        "to_host": rate(4 * elements, host, values),
        "to_device": rate(4 * elements, other, host),
    }
    try:
        own = kernels_on(device)
    except RuntimeError as error:
        return answer | {"skipped": [f"kernels: {error}"]}
    keep = torch.rand(elements) < 0.5
    image, kept = image_of(keep).to(device), int(keep.sum())
    packed = torch.empty(kept, device=device)
    totals = torch.empty(own.totals_of(elements), dtype=torch.int64, device=device)
    stream = torch.accelerator.current_stream()
    moved = 4 * (elements + kept)
    packs = timed(
        device,
        lambda: own.pack(image, values, packed, totals, count_outside=True, stream=stream),
    )
    unpacks = timed(device, lambda: own.unpack(image, packed, 2, other, stream=stream))
    shares = {
        "compact": moved / packs / answer["device_copy"],
        "expand_divide": moved / unpacks / answer["device_copy"],
    }
    return answer | {"shares": shares, "goal": KERNELS_GOAL, "missed": below(shares, KERNELS_GOAL)}


def beside(place: str, package: Path) -> Answer:
    """Within steps of a rank on the GPU and one on the CPU, by both paths."""
    on_gpu(place)
    answer: Answer = {
        "goals": {"shares of bare copies": COPIES_GOAL, "slower": BESIDE_GOAL},
        "missed": [],
    }
    for path in ("torch", "device"):
        found = measured(answer, package, place, path, "beside")
        answer["missed"] += below(found.get("shares", {}), COPIES_GOAL)
        answer["missed"] += above(f"slower, by {path}", found.get("slower"), BESIDE_GOAL)
    return answer


def link(place: str, package: Path) -> Answer:
    """Steps of two ranks whose agents send to each other at LINK, by the agents' own limit."""
    on_gpu(place)
    answer: Answer = {"link": LINK, "goal": LINK_GOAL, "times": {}, "missed": []}
    on_cpu = measured(answer, package, "cpu", "auto", "link")
    for path in ("torch", "device"):
        found = measured(answer, package, place, path, "link")
        if "seconds" in found and "seconds" in on_cpu:
            answer["times"][path] = found["seconds"] / on_cpu["seconds"]
            answer["missed"] += above(f"step by {path}", answer["times"][path], LINK_GOAL)
    return answer


def on_gpu(place: str) -> Any:
    device = on(place)
    if device.type == "cpu":
        raise Skipped("there is no GPU")
    return device


def measured(answer: Answer, package: Path, place: str, path: str, kind: str) -> Answer:
    """What rank 0 has measured, also put into `answer`; empty if there is nothing."""
    limits = [f"--egress-limit=*={LINK}"] if kind == "link" else []
    said = gpu_job.ranks_of(package, place, path, kind, limits)
    name = f"{kind} on the CPU" if place == "cpu" else f"{kind} by {path}"
    wrong = [one for one in said if "error" in one]
    if wrong:
        key = "skipped" if wrong[0].get("refused") else "failed"
        answer.setdefault(key, []).append(f"{name}: {wrong[0]['error']}")
        return {}
    if said[0]["path"] not in (path, "cpu"):
        answer.setdefault("failed", []).append(f"{name}: it went by {said[0]['path']}")
        return {}
    answer[name] = said[0]
    return said[0]


def below(shares: Answer, goal: float) -> list[str]:
    return [f"{name}: {share:.2f}, goal {goal}" for name, share in shares.items() if share < goal]


def above(name: str, times: float | None, goal: float) -> list[str]:
    return [] if times is None or times <= goal else [f"{name}: {times:.3f}, goal {goal}"]
