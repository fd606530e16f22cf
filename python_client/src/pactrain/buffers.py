"""The buffers of a model (BatchNorm statistics), which ranks take from rank 0.

DDP would broadcast all of them before each forward pass, masks too. Here they go
through the agents every some steps. Masks do only in a rank's first state and where the
script asks for it, and only where they are tracked: declared ones are given by a
broadcast of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from torch import Tensor, nn


def synced_buffers(
    module: nn.Module, ignored: Collection[str] = (), with_masks: bool = False
) -> list[tuple[str, Tensor]]:
    """Those that are equal on all ranks after a synchronisation. `ignored` are names
    that DDP leaves alone."""
    left_out = () if with_masks else mask_buffers(module.named_modules())
    masks = {id(buffer) for _, buffer, _ in left_out}
    return [
        (name, buffer)
        for name, buffer in module.named_buffers()
        if name not in ignored and id(buffer) not in masks and buffer.numel()
    ]


def bytes_of(tensors: Iterable[tuple[str, Tensor]]) -> int:
    return sum(tensor.numel() * tensor.element_size() for _, tensor in tensors)


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
