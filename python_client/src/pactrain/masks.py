"""Which weights are pruned: the registry, mask sets and where masks come from.

A mask is a bool tensor of its parameter's shape, true where the weight is kept. A
parameter without a mask is kept whole. Masks are declared, never guessed from
gradients: dead units look pruned, and differ between ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from . import storage
from .errors import InvalidArgument
from .parameters import ParameterTable
from .types import NO_DIGEST, Digest, Digester


class Registry:
    """The masks of all parameters of this process, keyed weakly by parameter.

    `attached` parameters belong to a live session: their weights are not touched
    here but by the session, when all ranks have agreed on the mask.
    """

    def __init__(self) -> None:
        self._masks: Any = WeakIdKeyDictionary()
        self._attached: Any = WeakIdKeyDictionary()

    def get(self, parameter: Tensor) -> Tensor | None:
        mask: Tensor | None = self._masks.get(parameter)
        return mask

    def set(self, parameter: Tensor, mask: Tensor) -> None:
        """Stores a mask; without one that drops anything there is no entry.

        Raises:
          InvalidArgument: another shape, or not on the CPU.
        """
        if mask.shape != parameter.shape:
            raise InvalidArgument(
                f"mask has shape {tuple(mask.shape)}, its parameter "
                f"{tuple(parameter.shape)}.\nGive a mask of the parameter's shape."
            )
        kept = storage.unflatten(
            storage.flatten(mask.detach() != 0, parameter), parameter
        )
        self._masks[parameter] = kept

    def remove(self, parameter: Tensor) -> None:
        self._masks.pop(parameter, None)

    def attach(self, parameter: Tensor) -> None:
        self._attached[parameter] = True

    def detach(self, parameter: Tensor) -> None:
        self._attached.pop(parameter, None)

    def is_attached(self, parameter: Tensor) -> bool:
        return bool(parameter in self._attached)


registry = Registry()


@dataclass(frozen=True)
class MaskSet:
    """One mask per parameter of a model, by name; parameters left out are kept whole.

    `unenforced` names those that torch.nn.utils.prune masks in the forward pass:
    their weights outside the mask may be anything and are left alone.
    """

    masks: Mapping[str, Tensor]
    digest: Digest
    kept: int  # Elements, of the whole model.
    elements: int
    unenforced: frozenset[str] = field(default_factory=frozenset)

    def __bool__(self) -> bool:
        return bool(self.masks)

    @property
    def keep(self) -> float:
        return self.kept / self.elements

    def is_inside(self, other: MaskSet) -> bool:
        """True if every element kept here is kept there, too."""
        for name, theirs in other.masks.items():
            ours = self.masks.get(name)
            outside = ~theirs if ours is None else ours & ~theirs
            if bool(outside.any()):
                return False
        return True

    def __str__(self) -> str:
        return f"{self.digest.short} (keep {self.keep:.3f})"


def make_mask_set(
    table: ParameterTable,
    masks: Mapping[str, Tensor],
    digest_of: Digester,
    unenforced: frozenset[str] = frozenset(),
) -> MaskSet:
    """Masks that keep everything are left out, so that equal sets have one digest.

    A set without masks has the digest NO_DIGEST.
    """
    used: dict[str, Tensor] = {}
    parts = [table.digest(digest_of).to_bytes()]
    kept = 0
    for name, parameter in table:
        mask = masks.get(name)
        count = parameter.numel() if mask is None else int(mask.sum())
        kept += count
        if mask is None or count == parameter.numel():
            continue
        used[name] = mask.detach().clone()
        bits = storage.pack(storage.flatten(mask, parameter))
        parts.append(name.encode() + b"\0" + digest_of(bits).to_bytes())
    return MaskSet(
        masks=used,
        digest=digest_of(b"".join(parts)) if used else NO_DIGEST,
        kept=kept,
        elements=table.elements,
        unenforced=unenforced & used.keys(),
    )


class MaskSource:
    """Reads a model's masks from the registry and torch.nn.utils.prune's buffers.

    changed() is cheap (identities and version counters) and is asked every step.
    Thread-compatible.
    """

    def __init__(self, module: nn.Module, table: ParameterTable) -> None:
        self._table = table
        self._modules = list(module.modules())
        self._forced = False
        self._signature = self._sign()

    def changed(self) -> bool:
        """True once after masks were added, replaced or written to."""
        signature = self._sign()
        before, self._signature = self._signature, signature
        forced, self._forced = self._forced, False
        return forced or signature != before

    def mark_changed(self) -> None:
        """Makes changed() true once."""
        self._forced = True

    def read(self) -> tuple[dict[str, Tensor], frozenset[str]]:
        """Masks by parameter name, and the names that are not enforced on weights.

        Raises:
          InvalidArgument: two masks for one parameter.
        """
        masks: dict[str, Tensor] = {}
        buffers = dict(self._buffers())
        for name, parameter in self._table:
            mask = registry.get(parameter)
            if mask is not None and name in buffers:
                raise InvalidArgument(
                    f"{name} has a mask of torch.nn.utils.prune and one of pactrain.\n"
                    "Prune a parameter with one of the two only."
                )
            if mask is not None:
                masks[name] = mask
            elif name in buffers:
                masks[name] = buffers[name] != 0
        return masks, frozenset(buffers)

    def write(self, masks: Mapping[str, Tensor]) -> None:
        """Makes these the model's masks, in the registry and in torch's buffers."""
        buffers = dict(self._buffers())
        with torch.no_grad():
            for name, parameter in self._table:
                mask = masks.get(name)
                if name in buffers:
                    buffers[name].copy_(
                        torch.ones_like(buffers[name]) if mask is None else mask
                    )
                elif mask is None:
                    registry.remove(parameter)
                else:
                    registry.set(parameter, mask)
        self._signature = self._sign()

    def _buffers(self) -> list[tuple[str, Tensor]]:
        found: list[tuple[str, Tensor]] = []
        for module in self._modules:
            for name, buffer in module._buffers.items():
                parameter = module._parameters.get(f"{name.removesuffix('_mask')}_orig")
                if buffer is None or parameter is None or not name.endswith("_mask"):
                    continue
                try:
                    index = self._table.index_of(parameter)
                except KeyError:
                    continue  # Needs no gradient.
                found.append((self._table.names[index], buffer))
        return found

    def _sign(self) -> tuple[tuple[int, int], ...]:
        masks = [registry.get(parameter) for _, parameter in self._table]
        masks += [buffer for _, buffer in self._buffers()]
        return tuple((id(m), m._version) for m in masks if m is not None)


def named_masks(
    table: ParameterTable, given: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """`given` with the table's names.

    Raises:
      InvalidArgument: an unknown name, a wrong shape, or not a tensor.
    """
    masks: dict[str, Tensor] = {}
    for name, mask in given.items():
        found = table.find(name)
        if found is None:
            shown = ", ".join(table.names[:5]) + (", ..." if len(table) > 5 else "")
            raise InvalidArgument(
                f"masks[{name!r}] names no parameter that needs a gradient; allowed "
                f"are {shown}.\nUse the names of named_parameters()."
            )
        if not isinstance(mask, Tensor) or mask.shape != found[1].shape:
            what = (
                f"has shape {tuple(mask.shape)}"
                if isinstance(mask, Tensor)
                else f"is of type {type(mask).__name__}"
            )
            raise InvalidArgument(
                f"masks[{name!r}] {what}; allowed is a tensor of shape "
                f"{tuple(found[1].shape)}.\nGive one mask element per weight."
            )
        masks[found[0]] = mask.detach() != 0
    return masks


def masks_from_weights(table: ParameterTable) -> dict[str, Tensor]:
    """weight != 0 of all parameters with at least two dimensions (PacTrain, GSE)."""
    return {name: p.detach() != 0 for name, p in table if p.dim() >= 2}
