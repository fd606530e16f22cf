"""The trainer library's kernels for NVIDIA GPUs (trainer/device_abi.h)."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from . import _abi
from .errors import RefusedError
from .types import DType

_DTYPES = {torch.float32: DType.FLOAT32, torch.bfloat16: DType.BFLOAT16}


class DeviceKernels:
    """For one device, which is current in the thread that calls.

    All is enqueued on `stream`, a torch.Stream; tensors are 1-D, contiguous and of that
    device. `image` is NativeSession.mask_image(), copied there (None: all elements are
    kept); `packed` holds the kept elements in fp32.
    """

    def __init__(self) -> None:
        """
        Raises:
          RefusedError: they cannot be had here; the text is one line.
        """
        self._library = _abi.load_library()
        self._handle = ctypes.c_void_p()
        code = self._library.pt_cuda_open(ctypes.byref(self._handle))
        if code:
            raise RefusedError(_last_error(self._library))

    def totals_of(self, elements: int) -> int:
        """How many 64-bit words the totals of a bucket have."""
        return int(self._library.pt_cuda_totals_bytes(elements)) // 8

    def pack(
        self,
        image: Tensor | None,
        gradients: Tensor,
        packed: Tensor,
        totals: Tensor,
        *,
        count_outside: bool,
        stream: torch.Stream,
    ) -> None:
        """Fills `packed`, and of `totals` (int64) every second word: how many elements
        outside the mask are not zero.

        Raises:
          RuntimeError: the driver refuses the launch.
        """
        self._check(
            self._library.pt_cuda_compact(
                self._handle,
                _address_of(image),
                gradients.numel(),
                _DTYPES[gradients.dtype],
                gradients.data_ptr(),
                int(count_outside),
                packed.data_ptr(),
                totals.data_ptr(),
                handle_of(stream),
            )
        )

    def unpack(
        self,
        image: Tensor | None,
        packed: Tensor,
        world_size: int,
        out: Tensor,
        *,
        stream: torch.Stream,
    ) -> None:
        """Fills `out` with sums divided by world_size, and zeros outside the mask.

        Raises:
          RuntimeError: the driver refuses the launch.
        """
        self._check(
            self._library.pt_cuda_expand_divide(
                self._handle,
                _address_of(image),
                out.numel(),
                _DTYPES[out.dtype],
                packed.data_ptr(),
                world_size,
                out.data_ptr(),
                handle_of(stream),
            )
        )

    def _check(self, code: int) -> None:
        if code:
            raise RuntimeError(_last_error(self._library))


@functools.cache
def kernels_of(device: torch.device) -> DeviceKernels:
    """Loaded once; they stay with the process.

    Raises:
      RefusedError: they cannot be had here.
    """
    with with_context(device):
        return DeviceKernels()


def kernels_here(device: torch.device) -> tuple[bool, str]:
    """Whether kernels_of() is likely to give some; which GPU this is, or why not. Loads
    nothing onto it."""
    with current(device):
        return _status(_abi.load_library().pt_cuda_status)


def nccl_here() -> tuple[bool, str]:
    """Whether this process has an NCCL that is used; its version, or why not."""
    return _status(_abi.load_library().pt_nccl_status)


def _status(ask: Any) -> tuple[bool, str]:
    text = ctypes.create_string_buffer(512)
    code = ask(text, len(text))
    return code == 0, text.value.decode("utf-8", "replace")


@contextlib.contextmanager
def with_context(device: torch.device) -> Iterator[None]:
    """In a thread that may have done nothing there, too: its first work gives it the
    device's context."""
    with current(device):
        torch.zeros(1, device=device)
        yield


def current(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """In here calls of the driver are about this device."""
    if device.type == "cuda":
        return torch.cuda.device(device)
    return contextlib.nullcontext()


def handle_of(stream: torch.Stream) -> int:
    """The driver's; torch has had several names for it."""
    for name in ("cuda_stream", "native_handle"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    return int(
        torch.cuda.Stream(  # type: ignore[no-untyped-call]
            stream_id=stream.stream_id,
            device_index=stream.device_index,
            device_type=stream.device_type,
        ).cuda_stream
    )


def _address_of(image: Tensor | None) -> int:
    return 0 if image is None else image.data_ptr()


def _last_error(library: ctypes.CDLL) -> str:
    text: bytes = library.pt_last_error()
    return text.decode("utf-8", "replace")
