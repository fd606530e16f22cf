"""Synchronises the buffers of a model (BatchNorm statistics) from rank 0.

DDP would broadcast all of them before each forward pass, masks too. Here they go
through the agents every some steps, and masks never do.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from . import storage, words
from .types import Native


class BufferSync:
    """The buffers of one model that are equal on all ranks after run()."""

    def __init__(self, module: nn.Module, ignored: Collection[str] = ()) -> None:
        """`ignored` are names that DDP leaves alone."""
        self._module = module
        self._ignored = frozenset(ignored)

    def _buffers(self) -> list[tuple[str, Tensor]]:
        masks = _mask_buffers(self._module)
        return [
            (name, buffer)
            for name, buffer in self._module.named_buffers()
            if name not in self._ignored and id(buffer) not in masks and buffer.numel()
        ]

    @property
    def size_bytes(self) -> int:
        return sum(b.numel() * b.element_size() for _, b in self._buffers())

    def run(self, native: Native, rank: int) -> None:
        """Gives all ranks the values of rank 0. All ranks call it after the same step.

        REQUIRES: no step is open, and no forward or backward pass is running.
        Raises: the typed error of the step, on all ranks; buffers are as before.
        """
        buffers = self._buffers()
        if not buffers:
            return
        data = np.concatenate([storage.raw_bytes(buffer) for _, buffer in buffers])
        text = "\n".join(f"{n} {tuple(b.shape)} {b.dtype}" for n, b in buffers)
        layout = native.digest_of(f"pactrain buffers\n{text}".encode())
        sent = words.from_bytes(data if rank == 0 else np.zeros_like(data))
        received = words.to_bytes(words.exchange(native, sent, layout), data.size)
        if rank != 0:
            self._store(buffers, torch.from_numpy(received.copy()))

    @staticmethod
    def _store(buffers: list[tuple[str, Tensor]], data: Tensor) -> None:
        tensors = tuple(buffer for _, buffer in buffers)
        offset = 0
        # As DDP does: a buffer that autograd has saved is not "modified in place".
        with torch.no_grad(), _unsafe_preserve_version_counter(tensors):
            for buffer in tensors:
                size = buffer.numel() * buffer.element_size()
                piece = data[offset : offset + size].clone()
                offset += size
                if storage.is_dense(buffer):
                    target = buffer.as_strided((buffer.numel(),), (1,))
                    target.copy_(piece.view(buffer.dtype))
                else:
                    buffer.copy_(piece.view(buffer.dtype).reshape(buffer.shape))


def _mask_buffers(module: nn.Module) -> set[int]:
    return {
        id(buffer)
        for owner in module.modules()
        for name, buffer in owner._buffers.items()
        if name.endswith("_mask")
        and f"{name.removesuffix('_mask')}_orig" in owner._parameters
    }
