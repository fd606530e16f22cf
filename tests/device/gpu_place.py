"""Where gpu_check.py tries things: a GPU, or what stands in for one in a checkout."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

PATIENCE = "GPU_CHECK_PATIENCE"  # Times all bounds.
WIDTH = "GPU_CHECK_WIDTH"  # Of layers; less where a CPU stands in.

# What a part finds: {"wrong": [...]} are bits, the rest is for people.
Answer = dict[str, Any]


class Skipped(Exception):
    """Why a part cannot be tried here."""


def bound(seconds: float) -> float:
    return seconds * float(os.environ[PATIENCE])


def width() -> int:
    return int(os.environ[WIDTH])


def on(place: str) -> Any:
    """The torch.device, usable."""
    import torch

    if place.startswith("queued"):
        stand_in()
    elif place.startswith("cuda") and not torch.cuda.is_available():
        raise Skipped("torch sees no GPU")
    return torch.device(place)


def devices(place: str) -> int:
    import torch

    on(place)
    return torch.accelerator.device_count()


def stand_in() -> Any:
    """Of a checkout: a device, a driver and an NCCL without a GPU."""
    import queued

    from pactrain import device_path

    queued.use_nccl()
    device_path.WITH_KERNELS.add(queued.NAME)
    return queued


def kernels_on(device: Any) -> Any:
    from pactrain.device_kernels import kernels_of
    from pactrain.errors import RefusedError

    if device.type == "cpu":
        raise RefusedError("there is no GPU")
    return kernels_of(device)


class Span:
    """Time on the device, from an event in one stream to one in the same or another."""

    def __init__(self, device: Any) -> None:
        import torch

        self._begin, self._end = (torch.Event(device, enable_timing=True) for _ in range(2))

    def begin(self) -> None:
        self._begin.record()

    def end(self) -> None:
        self._end.record()

    def seconds(self) -> float:
        """Waits for its end."""
        self._end.synchronize()
        return max(float(self._begin.elapsed_time(self._end)), 1e-6) / 1000


def timed(device: Any, work: Callable[[], object], times: int = 8) -> float:
    """Seconds of one, on the device: the median of nine, each of several one after the other,
    so that the host's time to launch one is not in it."""
    seconds = []
    for _ in range(9):
        span = Span(device)
        span.begin()
        for _ in range(times):
            work()
        span.end()
        seconds.append(span.seconds() / times)
    return median(seconds)


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
