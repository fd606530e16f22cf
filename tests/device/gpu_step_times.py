"""What a rank of gpu_check.py measures within its steps."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from gpu_place import Answer, Span, median, timed, width

STEPS = 9  # That are measured.
MOST_STEPS = 40


def attached(device: Any, layers: int, wide: int) -> Any:
    import torch
    from torch import nn

    import pactrain

    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(wide, wide) for _ in range(layers)))
    pactrain.prune(net, 0.5, exempt=())
    return pactrain.DistributedDataParallel(net.to(device), pin="COMPACTED", settle=1)


def steps_of(session: Any) -> Iterator[None]:
    """Until enough were COMPACTED; ranks are alike."""
    compacted = 0
    for _ in range(MOST_STEPS):
        yield
        compacted += session.mode.startswith("COMPACTED")
        if compacted == STEPS:
            return
    raise RuntimeError(f"after {MOST_STEPS} steps it is {session.mode}: {session.decision}")


def beside(device: Any) -> Answer:
    """How much slower a backward pass computes beside the exchange than without one; by
    torch also copies within a step, as shares of bare ones.

    The rank on the CPU takes part in the exchange and measures nothing.
    """
    here = device.type != "cpu"
    ddp = attached(device, layers=6, wide=8 * width())
    rows = 64 * width() if here else 4
    alone, together, copies = [], [], CopyTimes(device)
    for _ in steps_of(ddp.session):
        if here:
            with ddp.no_sync():
                alone.append(compute(ddp, device, rows))
        with copies.watched():
            together.append(compute(ddp, device, rows))
    path = ddp.session.device_path.name
    ddp.session.close()
    if not here:
        return {"path": path}
    seconds = [median([span.seconds() for span in spans[-STEPS:]]) for spans in (alone, together)]
    answer = {
        "path": path,
        "alone_seconds": seconds[0],
        "beside_seconds": seconds[1],
        "slower": seconds[1] / seconds[0],
    }
    return answer | {"shares": copies.shares()} if path == "torch" else answer


def link(device: Any) -> Answer:
    """A whole step, in which there is little to compute."""
    import torch

    wide = 4 * width()
    ddp = attached(device, layers=2, wide=wide)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    inputs = torch.randn(16, wide, device=device)
    seconds = []
    for _ in steps_of(ddp.session):
        begun = time.monotonic()
        optimizer.zero_grad()
        ddp(inputs).square().mean().backward()
        optimizer.step()
        if device.type != "cpu":
            torch.accelerator.synchronize()
        seconds.append(time.monotonic() - begun)
    answer = {
        "path": ddp.session.device_path.name,
        "seconds": median(seconds[-STEPS:]),
        "bytes": ddp.session.stats()["pactrain/step_sent_bytes"],
    }
    ddp.session.close()
    return answer


KINDS = {"beside": beside, "link": link}


def compute(ddp: Any, device: Any, rows: int) -> Any:
    """A forward and a backward pass: the span in which the device computes gradients; None:
    on the CPU."""
    import torch

    ddp.zero_grad()
    inputs = torch.randn(rows, ddp.module[0].in_features, device=device, requires_grad=True)
    loss = ddp(inputs).square().mean()
    if device.type == "cpu":
        loss.backward()
        return None
    span = Span(device)
    # The inputs' gradient is the last; what follows it waits for the exchange.
    inputs.register_hook(lambda gradient: span.end())
    torch.accelerator.synchronize()
    span.begin()
    loss.backward()
    return span


class CopyTimes:
    """Of the whole buckets of a model, by way and step."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._steps: dict[str, list[list[tuple[int, Span]]]] = {"to_host": [], "to_device": []}
        self._bare: dict[tuple[str, int], float] = {}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """In here is one step."""
        from pactrain.devices import StagedBucket

        for steps in self._steps.values():
            steps.append([])
        down = self._watch("to_host", StagedBucket.copy)
        up = self._watch("to_device", StagedBucket.bring_back)
        with (
            mock.patch.object(StagedBucket, "copy", down),
            mock.patch.object(StagedBucket, "bring_back", up),
        ):
            yield

    def _watch(self, way: str, copy: Callable[..., None]) -> Callable[..., None]:
        def watched(bucket: Any, *arguments: Any) -> None:
            span = Span(self._device)
            span.begin()
            copy(bucket, *arguments)
            span.end()
            self._steps[way][-1].append((bucket.target.nbytes, span))

        return watched

    def shares(self) -> Answer:
        """By way: what bare copies of as many bytes take, of what those of a step took; the
        median over steps."""
        return {
            way: median([self._share(way, copies) for copies in steps[-STEPS:]])
            for way, steps in self._steps.items()
        }

    def _share(self, way: str, copies: list[tuple[int, Span]]) -> float:
        bare = sum(self._bare_copy(way, size) for size, _ in copies)
        return bare / sum(span.seconds() for _, span in copies)

    def _bare_copy(self, way: str, size: int) -> float:
        if (way, size) not in self._bare:
            self._bare[way, size] = bare_copy(self._device, way, size)
        return self._bare[way, size]


def bare_copy(device: Any, way: str, size: int) -> float:
    """Seconds of one, of page-locked memory, with nothing beside it."""
    import torch

    there = torch.empty(size, dtype=torch.uint8, device=device)
    here = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    source, target = (there, here) if way == "to_host" else (here, there)
    return timed(device, lambda: target.copy_(source, non_blocking=True), times=1)
