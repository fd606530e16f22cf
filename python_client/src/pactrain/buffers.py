"""Synchronises the buffers of a model (BatchNorm statistics) from rank 0.

DDP would broadcast all of them before each forward pass, masks too. Here they go
through the agents every some steps. Masks do only in a rank's first state, and only
where they are tracked: declared ones are given by a broadcast of their own.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor, nn

from .broadcast import broadcast
from .types import Native


class BufferSync:
    """The buffers of one model that are equal on all ranks after run()."""

    def __init__(
        self,
        module: nn.Module,
        ignored: Collection[str] = (),
        with_masks: bool = False,
    ) -> None:
        """`ignored` are names that DDP leaves alone."""
        self._module = module
        self._ignored = frozenset(ignored)
        self._with_masks = with_masks

    def tensors(self) -> list[tuple[str, Tensor]]:
        masks = set() if self._with_masks else _mask_buffers(self._module)
        return [
            (name, buffer)
            for name, buffer in self._module.named_buffers()
            if name not in self._ignored and id(buffer) not in masks and buffer.numel()
        ]

    @property
    def size_bytes(self) -> int:
        return sum(b.numel() * b.element_size() for _, b in self.tensors())

    def run(self, native: Native, rank: int) -> None:
        """Gives all ranks the values of rank 0. All ranks call it after the same step.

        REQUIRES: no step is open, and no forward or backward pass is running.
        Raises: the typed error of the step, on all ranks; buffers are as before.
        """
        tensors = self.tensors()
        # One piece: the slot was made large enough.
        whole = max(4, -(-self.size_bytes // 4) * 4)
        broadcast(native, rank, "pactrain buffers", tensors, whole)


def _mask_buffers(module: nn.Module) -> set[int]:
    return {
        id(buffer)
        for owner in module.modules()
        for name, buffer in owner._buffers.items()
        if name.endswith("_mask")
        and f"{name.removesuffix('_mask')}_orig" in owner._parameters
    }
