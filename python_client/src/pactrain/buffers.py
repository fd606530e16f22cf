"""Synchronises the buffers of a model (BatchNorm statistics) from rank 0.

DDP would broadcast all of them before each forward pass, masks too. Here they go
through the agents every some steps. Masks do only in a rank's first state and where the
script asks for it, and only where they are tracked: declared ones are given by a
broadcast of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from torch import Tensor, nn

from ._library import NativeSession
from .broadcast import broadcast


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

    def with_masks(self) -> BufferSync:
        return BufferSync(self._module, self._ignored, with_masks=True)

    def tensors(self) -> list[tuple[str, Tensor]]:
        left_out = (
            () if self._with_masks else mask_buffers(self._module.named_modules())
        )
        masks = {id(buffer) for _, buffer, _ in left_out}
        return [
            (name, buffer)
            for name, buffer in self._module.named_buffers()
            if name not in self._ignored and id(buffer) not in masks and buffer.numel()
        ]

    @property
    def size_bytes(self) -> int:
        return sum(b.numel() * b.element_size() for _, b in self.tensors())

    def run(self, native: NativeSession, rank: int, slot_bytes: int) -> None:
        """Gives all ranks the values of rank 0. All ranks call it after the same step.

        One piece where no masks are among them: the slot was made large enough.

        REQUIRES: no step is open, and no forward or backward pass is running.
        Raises: the typed error of the step, on all ranks; buffers are as before.
        """
        broadcast(native, rank, "pactrain buffers", self.tensors(), slot_bytes)


def mask_buffers(
    modules: Iterable[tuple[str, nn.Module]],
) -> list[tuple[str, Tensor, Tensor]]:
    """The name, mask and parameter of each that torch.nn.utils.prune keeps."""
    found: list[tuple[str, Tensor, Tensor]] = []
    for path, owner in modules:
        for name, buffer in owner._buffers.items():
            masked = name.removesuffix("_mask")
            parameter = owner._parameters.get(f"{masked}_orig")
            if name.endswith("_mask") and buffer is not None and parameter is not None:
                found.append((f"{path}.{masked}".lstrip("."), buffer, parameter))
    return found
