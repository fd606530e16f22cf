"""Which weights are pruned: the registry, and mask sets.

A mask is a bool tensor of its parameter's shape, true where the weight is kept. A
parameter without a mask is kept whole. Masks are declared, never guessed from
gradients: dead units look pruned, and differ between ranks.

Weights outside a mask are zero, or, if the parameter is frozen (kind "freeze"), keep
the values they had.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from . import storage
from .errors import InvalidArgument
from .parameters import ParameterTable, shown, some_of
from .types import NO_DIGEST, Digest, Digester

KINDS = ("zero", "freeze")
_SAMPLE = 512

logger = logging.getLogger("pactrain")


class Owner(Protocol):
    """The session of an attached model, as far as pruning needs it."""

    @property
    def masks_settled(self) -> bool: ...
    def sync_masks(self, *, failed: bool = False) -> None: ...
    def weights_loaded(self) -> None: ...
    def before_save(self) -> None: ...
    def check_declares(self, call: str) -> None: ...


class Plan(Protocol):
    """Masks that are still to come."""

    @property
    def parameters(self) -> Sequence[Tensor]: ...
    def shortfall(self) -> str: ...


class Registry:
    """The masks of all parameters of this process, keyed weakly by parameter.

    They are never written to: mask sets and copies of a model have the same tensors,
    since a byte per weight is much. Another mask is another tensor.

    Parameters with an owner belong to a live session: their weights are not touched
    here but by the session, when all ranks have agreed on the mask.
    """

    def __init__(self) -> None:
        self._masks: Any = WeakIdKeyDictionary()
        self._frozen: Any = WeakIdKeyDictionary()
        self._owners: Any = WeakIdKeyDictionary()
        self._loaded: Any = WeakIdKeyDictionary()
        self._before_state: Any = WeakIdKeyDictionary()
        self._from_torch: Any = WeakIdKeyDictionary()
        self._before_load: Any = WeakIdKeyDictionary()
        self.plans: WeakSet[Plan] = WeakSet()
        self.changes = 0  # Of which parameter has which mask: set() and remove().
        self.on_set: Callable[[Tensor], None] = lambda parameter: None

    def get(self, parameter: Tensor) -> Tensor | None:
        """Where the parameter is, also after a model was moved with its masks.

        None, with a warning, once its data have another shape.
        """
        mask: Tensor | None = self._masks.get(parameter)
        if mask is not None and mask.shape != parameter.shape:
            self.remove(parameter)
            logger.warning(
                "a parameter of shape %s has shape %s now: its mask is gone. To prune "
                "it anew call prune() again",
                tuple(mask.shape),
                tuple(parameter.shape),
            )
            return None
        if mask is not None and mask.device != parameter.device:
            mask = self._masks[parameter] = mask.to(parameter.device)
        return mask

    def has(self, parameter: Tensor) -> bool:
        return parameter in self._masks

    def is_frozen(self, parameter: Tensor) -> bool:
        """True if weights outside the mask keep their values; else they are zero."""
        return parameter in self._frozen

    def set(self, parameter: Tensor, mask: Tensor, frozen: bool = False) -> None:
        """Takes the mask, which is the registry's from now on.

        Raises:
          InvalidArgument: another shape.
        """
        if mask.shape != parameter.shape:
            raise InvalidArgument(
                f"mask has shape {tuple(mask.shape)}, its parameter "
                f"{tuple(parameter.shape)}.\nGive a mask of the parameter's shape."
            )
        kept = mask.detach() if mask.dtype == torch.bool else mask.detach() != 0
        kept = storage.ordered(kept.to(parameter.device), parameter)
        if kept.is_inference():  # Such a tensor does not say if it was written to.
            with torch.inference_mode(False):
                kept = kept.clone()
        before = self._masks.get(parameter)
        if before is None or not torch.equal(before, kept):
            self._before_state.pop(parameter, None)
            self._from_torch.pop(parameter, None)
        self._masks[parameter] = kept
        self._loaded.pop(parameter, None)
        self._before_load.pop(parameter, None)
        self.changes += 1
        if frozen:
            self._frozen[parameter] = True
        else:
            self._frozen.pop(parameter, None)
        self.on_set(parameter)

    def remove(self, parameter: Tensor) -> None:
        if self._masks.pop(parameter, None) is not None:
            self._before_state.pop(parameter, None)
            self._from_torch.pop(parameter, None)
        self._loaded.pop(parameter, None)
        self._before_load.pop(parameter, None)
        self.changes += 1
        self._frozen.pop(parameter, None)

    def set_from_torch(self, parameter: Tensor, mask: Tensor) -> None:
        """torch.nn.utils.prune had this mask, and may have another one later."""
        self.set(parameter, mask)
        self._from_torch[parameter] = True

    def is_from_torch(self, parameter: Tensor) -> bool:
        """So it is, and no other mask came since."""
        return parameter in self._from_torch

    def mark_loaded(self, parameter: Tensor) -> None:
        """Its values are newer than its mask, until it gets another one."""
        self._loaded[parameter] = True

    def is_loaded(self, parameter: Tensor) -> bool:
        return parameter in self._loaded

    def clear_loaded(self, parameter: Tensor) -> None:
        """Its mask fits its values."""
        self._loaded.pop(parameter, None)
        self._before_load.pop(parameter, None)
        self._before_state.pop(parameter, None)

    def note_before_load(self, parameter: Tensor) -> None:
        """Some weights outside its mask, before others come that may be put back."""
        mask = self.get(parameter)
        if mask is not None and parameter not in self._loaded:
            places = storage.some_places(mask, _SAMPLE, value=False)
            values = torch.take(parameter.detach(), places)
            self._before_load[parameter] = (places, values)

    def is_as_before_load(self, parameter: Tensor) -> bool:
        """So they are, as far as was noted."""
        places, values = self._before_load.get(parameter, (None, None))
        if places is None:
            return False
        now = torch.take(parameter.detach(), places.to(parameter.device))
        return torch.equal(now, values.to(now))

    def note_before_state(self, parameter: Tensor, mask: Tensor) -> None:
        """A session's state has taken the place of this mask, which its values had."""
        self._before_state[parameter] = mask

    def before_state(self, parameter: Tensor) -> Tensor | None:
        """What was noted so; None once another mask came, or its mask fits."""
        mask: Tensor | None = self._before_state.get(parameter)
        return None if mask is None else mask.to(parameter.device)

    def attach(self, parameter: Tensor, owner: Owner) -> None:
        self._owners[parameter] = owner

    def detach(self, parameter: Tensor) -> None:
        self._owners.pop(parameter, None)

    def owner(self, parameter: Tensor) -> Owner | None:
        owner: Owner | None = self._owners.get(parameter)
        return owner


registry = Registry()


@dataclass(frozen=True)
class Declared:
    """Masks by parameter name, as somebody wants them.

    `frozen` names those of kind "freeze". `unenforced` names those that
    torch.nn.utils.prune masks in the forward pass: their weights outside the mask may
    be anything and are left alone.
    """

    masks: Mapping[str, Tensor]
    frozen: frozenset[str] = frozenset()
    unenforced: frozenset[str] = frozenset()

    def packed(self) -> dict[str, Tensor]:
        """By name bits in the order of indices, for a state_dict()."""
        return {
            name: torch.from_numpy(storage.pack(mask.contiguous().reshape(-1)))
            for name, mask in self.masks.items()
        }


@dataclass(frozen=True)
class MaskSet(Declared):
    """One mask per parameter of a model; parameters left out are kept whole."""

    digest: Digest = NO_DIGEST
    kept: int = 0  # Elements, of the whole model.
    elements: int = 0
    kept_of: Mapping[str, int] = field(default_factory=dict)  # By name, as masks.

    def __bool__(self) -> bool:
        return bool(self.masks)

    @property
    def keep(self) -> float:
        return self.kept / self.elements

    def by_parameter(self, table: ParameterTable) -> list[tuple[str, int, int]]:
        """(name, kept, elements) of each."""
        return [
            (name, self.kept_of.get(name, parameter.numel()), parameter.numel())
            for name, parameter in table
        ]

    def is_inside(self, other: MaskSet) -> bool:
        """True if every element kept here is kept there, too."""
        for name, theirs in other.masks.items():
            ours = self.masks.get(name)
            if ours is theirs:
                continue
            outside = ~theirs if ours is None else ours > theirs
            if bool(outside.any()):
                return False
        return True

    def __str__(self) -> str:
        return f"{self.digest.short} (keep {self.keep:.3f})"


def make_mask_set(
    table: ParameterTable, declared: Declared, digest_of: Digester
) -> MaskSet:
    """Masks that keep everything are left out, so that equal sets have one digest.

    The masks are shared with `declared`, and never written to.
    A set without masks has the digest NO_DIGEST.
    """
    used: dict[str, Tensor] = {}
    kept_of: dict[str, int] = {}
    parts = [table.digest(digest_of).to_bytes()]
    kept = 0
    for name, parameter in table:
        mask = declared.masks.get(name)
        count = parameter.numel() if mask is None else storage.count(mask)
        kept += count
        if mask is None or count == parameter.numel():
            continue
        used[name] = mask
        kept_of[name] = count
        bits = storage.pack(storage.flatten(mask, parameter))
        kind = b"\0freeze" if name in declared.frozen else b""
        parts.append(name.encode() + b"\0" + digest_of(bits).to_bytes() + kind)
    return MaskSet(
        masks=used,
        frozen=declared.frozen & used.keys(),
        unenforced=declared.unenforced & used.keys(),
        digest=digest_of(b"".join(parts)) if used else NO_DIGEST,
        kept=kept,
        elements=table.elements,
        kept_of=kept_of,
    )


def named_masks(
    table: ParameterTable, given: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """`given` with the table's names.

    Raises:
      InvalidArgument: an unknown name, a wrong shape, values other than 0 and 1, or no
        tensor.
    """
    masks: dict[str, Tensor] = {}
    if not isinstance(given, Mapping):
        raise InvalidArgument(
            f"masks is {shown(given)}; allowed is {{name: mask}}.\n"
            "Use the names of named_parameters()."
        )
    for name, mask in given.items():
        found = table.find(name) if isinstance(name, str) else None
        if found is None:
            raise InvalidArgument(
                f"masks[{name!r}] names no parameter that needs a gradient; allowed "
                f"are {some_of(table.names)}.\nUse the names of named_parameters()."
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
        if mask.layout != torch.strided or mask.is_meta:
            kind = mask.layout if mask.layout != torch.strided else "on device meta"
            raise InvalidArgument(
                f"masks[{name!r}] is {kind}; allowed is a dense tensor with values.\n"
                "Give mask.to_dense(), or make it on the device of the weights."
            )
        if not bool(((mask == 0) | (mask == 1)).all()):
            raise InvalidArgument(
                f"masks[{name!r}] has values other than 0 and 1; allowed are these, "
                "and bools.\nGive weight != 0 for the mask of a sparse weight."
            )
        masks[found[0]] = (mask.detach() != 0).to(found[1].device)
    return masks


def is_zero_outside(parameter: Tensor, mask: Tensor) -> bool:
    """The mask would take no weight away. Both are of one shape, on any devices."""
    return not bool(((parameter.detach() != 0) > mask.to(parameter.device)).any())


def check_kind(kind: str) -> None:
    """Raises InvalidArgument if it is not a kind of masks."""
    if kind not in KINDS:
        raise InvalidArgument(
            f"kind is {kind!r}; allowed are 'zero' and 'freeze'.\n"
            "Give 'zero' to prune weights, 'freeze' to leave their values as they are."
        )


def of_kind(masks: Mapping[str, Tensor], kind: str) -> Declared:
    """All of one kind.

    Raises:
      InvalidArgument: an unknown kind.
    """
    check_kind(kind)
    return Declared(masks, frozenset(masks if kind == "freeze" else ()))
