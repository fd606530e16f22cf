"""Which way a model's gradients go to the agent, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from ._library import NativeSession
from .device_kernels import DeviceKernels, kernels_here, kernels_of, nccl_here
from .errors import InvalidArgument, RefusedError

VARIABLE = "PACTRAIN_DEVICE_PATH"
_CHOICES = ("auto", "torch", "device", "nccl")
WITH_KERNELS = {"cuda"}  # Kinds of devices.
_NAMES = ("cpu", "torch", "device", "nccl")
_BY_KERNELS = ("device", "nccl")
_NO_SOONER = (
    "packing on the GPU made no step sooner over 100 Mbps, and was measured no "
    f"further; {VARIABLE}=device takes it all the same"
)


@dataclass(frozen=True)
class DevicePath:
    """`kernels`: None where buckets are packed by the CPU."""

    name: str  # "cpu", "torch", "device" or "nccl".
    reason: str
    kernels: DeviceKernels | None = None

    @property
    def number(self) -> int:
        """For stats()."""
        return _NAMES.index(self.name)

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


ON_CPU = DevicePath("cpu", "the model is on the CPU")


class PathTeller:
    """Tells the agent which way gradients go, where that is new to it."""

    def __init__(self, native: NativeSession, path: Callable[[], DevicePath]) -> None:
        self._native = native
        self._path = path
        self._told: tuple[int, str] | None = None

    def before_step(self) -> None:
        """
        Raises: the session's error, if it is over.
        """
        path = self._path()
        now = (self._native.generation, str(path))
        if now != self._told:
            self._native.tell_path(path.number, path.reason)
            self._told = now


def choose(device: torch.device | None, environment: Mapping[str, str]) -> DevicePath:
    """The path for a model there; None: on the CPU.

    Raises:
      InvalidArgument: PACTRAIN_DEVICE_PATH is none of its words.
      RefusedError: it asks for what cannot be had; says why.
    """
    wanted = environment.get(VARIABLE) or "auto"
    if wanted not in _CHOICES:
        raise InvalidArgument(
            f"{VARIABLE} is {wanted!r}; allowed are {', '.join(map(repr, _CHOICES))}.\n"
            "Set it to one of them, or unset it."
        )
    if device is None:
        if wanted in _BY_KERNELS:
            raise _cannot(wanted, ON_CPU.reason)
        return ON_CPU
    if wanted == "torch":
        return DevicePath("torch", f"{VARIABLE} asks for it")
    foreign = device.type not in WITH_KERNELS or torch.version.hip is not None
    why = f"there are kernels for NVIDIA's GPUs alone, and this is {device}"
    if wanted == "auto":
        if not foreign:
            usable, words = kernels_here(device)
            why = _NO_SOONER if usable else words
        return DevicePath("torch", why)
    if foreign:
        raise _cannot(wanted, why)
    try:
        kernels = kernels_of(device)
    except RefusedError as error:
        raise _cannot(wanted, str(error)) from error
    reason = f"{VARIABLE} asks for it"
    if wanted == "nccl":
        usable, words = nccl_here()
        if not usable:
            raise _cannot(wanted, words)
        reason += f"; {words}"
    return DevicePath(wanted, reason, kernels)


def _cannot(wanted: str, why: str) -> RefusedError:
    return RefusedError(
        f"{VARIABLE} is {wanted!r}, which cannot be had here: {why}.\n"
        "Set it to auto or torch, or unset it: training is the same."
    )
