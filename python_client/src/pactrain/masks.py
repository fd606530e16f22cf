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


@dataclass
class Entry:
    """What is known of one parameter beside its values."""

    mask: Tensor | None = None
    frozen: bool = False  # Weights outside the mask keep their values; else are zero.
    owner: Owner | None = None
    # Its values are newer than its mask, until it gets another one.
    loaded: bool = False
    # torch.nn.utils.prune had this mask, and no other came since.
    from_torch: bool = False
    # The mask which its values had, and whose place a session's state has taken.
    before_state: Tensor | None = None
    # Some places outside its mask, and its values there before others were loaded.
    before_load: tuple[Tensor, Tensor] | None = None


class Registry:
    """The masks of all parameters of this process, keyed weakly by parameter.

    They are never written to: mask sets and copies of a model have the same tensors,
    since a byte per weight is much. Another mask is another tensor.

    Parameters with an owner belong to a live session: their weights are not touched
    here but by the session, when all ranks have agreed on the mask.
    """

    def __init__(self) -> None:
        self._entries: Any = WeakIdKeyDictionary()
        self.plans: WeakSet[Plan] = WeakSet()
        self.changes = 0  # Of which parameter has which mask: set() and remove().
        self.on_set: Callable[[Tensor], None] = lambda parameter: None

    def of(self, parameter: Tensor) -> Entry:
        """To be read, and written to; the mask by the calls below."""
        entry: Entry = self._entries.setdefault(parameter, Entry())
        return entry

    def get(self, parameter: Tensor) -> Tensor | None:
        """Where the parameter is, also after a model was moved with its masks.

        None, with a warning, once its data have another shape.
        """
        entry = self.of(parameter)
        mask = entry.mask
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
            mask = entry.mask = mask.to(parameter.device)
        return mask

    def has(self, parameter: Tensor) -> bool:
        return self.of(parameter).mask is not None

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
        entry = self.of(parameter)
        if entry.mask is None or not torch.equal(entry.mask, kept):
            entry.before_state, entry.from_torch = None, False
        entry.mask, entry.frozen = kept, frozen
        entry.loaded, entry.before_load = False, None
        self.changes += 1
        self.on_set(parameter)

    def remove(self, parameter: Tensor) -> None:
        entry = self.of(parameter)
        if entry.mask is not None:
            entry.before_state, entry.from_torch = None, False
        entry.mask, entry.frozen = None, False
        entry.loaded, entry.before_load = False, None
        self.changes += 1

    def set_from_torch(self, parameter: Tensor, mask: Tensor) -> None:
        """torch.nn.utils.prune had this mask, and may have another one later."""
        self.set(parameter, mask)
        self.of(parameter).from_torch = True

    def clear_loaded(self, parameter: Tensor) -> None:
        """Its mask fits its values."""
        entry = self.of(parameter)
        entry.loaded, entry.before_load, entry.before_state = False, None, None

    def note_before_load(self, parameter: Tensor) -> None:
        """Some weights outside its mask, before others come that may be put back."""
        mask, entry = self.get(parameter), self.of(parameter)
        if mask is not None and not entry.loaded:
            places = storage.some_places(mask, _SAMPLE, value=False)
            entry.before_load = (places, torch.take(parameter.detach(), places))

    def is_as_before_load(self, parameter: Tensor) -> bool:
        """So they are, as far as was noted."""
        noted = self.of(parameter).before_load
        if noted is None:
            return False
        places, values = noted
        now = torch.take(parameter.detach(), places.to(parameter.device))
        return torch.equal(now, values.to(now))

    def before_state(self, parameter: Tensor) -> Tensor | None:
        """The mask which its values had before a session's state; None once another
        mask came, or its mask fits."""
        mask = self.of(parameter).before_state
        return None if mask is None else mask.to(parameter.device)


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
