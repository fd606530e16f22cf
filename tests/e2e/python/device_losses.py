"""Ranks that are stopped or killed while their gradients are on the way to or from a device."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import device_scenarios
import membership_scenarios
import scenarios
from device_scenarios import queued
from launcher import Talk
from torch import nn

import pactrain
from pactrain._library import NativeSession
from pactrain.devices import StagedBucket
from pactrain.packing import Packer

# What begins there; the device itself comes to the copies later.
_BEGINS = {
    "staging": ((StagedBucket, "copy"), (Packer, "pack")),
    "exchange": ((NativeSession, "wait"),),
    "copy": ((StagedBucket, "bring_back"),),
}


@contextlib.contextmanager
def signalled(where: str, at: int, number: signal.Signals) -> Iterator[None]:
    """In here this process gets the signal once: in its `at`th copy to the device or from it,
    or in its `at`th step while it waits for the others."""
    counted = itertools.count(1)

    def before(act: Callable[..., Any]) -> Callable[..., Any]:
        def acts(self: Any, *arguments: Any) -> Any:
            if next(counted) == at:
                if where == "exchange":
                    signal.raise_signal(number)  # This thread is the first to stop.
                else:
                    queued.signal_there(number)
            return act(self, *arguments)

        return acts

    with contextlib.ExitStack() as stack:
        for owner, name in _BEGINS[where]:
            stack.enter_context(mock.patch.object(owner, name, before(getattr(owner, name))))
        yield


def interrupted(
    talk: Talk, path: str, where: str, at: int, number: signal.Signals
) -> dict[str, Any]:
    """As on the CPU; the last rank gets the signal."""
    queued.use()
    if path == "device":
        queued.use_driver()
    os.environ |= {"RANK": str(talk.rank), "WORLD_SIZE": str(talk.world)}

    def wrap(model: nn.Module) -> tuple[nn.Module, Any]:
        model.to(queued.NAME)
        ddp = pactrain.DistributedDataParallel(
            model, device_ids=[0], bucket_cap_mb=0.002, **device_scenarios.PIN
        )
        return ddp, ddp.session

    is_last = talk.rank == talk.world - 1
    lost = signalled(where, at, number) if is_last else contextlib.nullcontext()
    with device_scenarios.path(path), lost:
        return scenarios.interrupted(talk, wrap)


def trained(
    talk: Talk,
    lost: tuple[str, int, signal.Signals] | None = None,
    device: str = queued.NAME,
    **arguments: Any,
) -> dict[str, Any]:
    """As on the CPU. `lost`: where and when this rank gets which signal."""
    if device != "cpu":
        queued.use()
    with signalled(*lost) if lost else contextlib.nullcontext():
        return membership_scenarios.trained(talk, device=device, **arguments)
