"""Where a model's masks come from: the registry and torch.nn.utils.prune's buffers."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from typing import TypeAlias
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from . import averages
from .buffers import mask_buffers
from .errors import InvalidArgument
from .masks import Declared, is_zero_outside, of_kind, registry
from .parameters import ParameterTable, some_of

logger = logging.getLogger("pactrain")

_PARAMETRIZED = re.compile(r"parametrizations\.(\w+)\.original1?$")

_STAY = (
    "its masks stay, as pactrain's, so that zeros stay zero.\nTo train them again call "
    "session.set_masks({}), and, where there are several ranks, close the session and "
    "attach the model anew."
)
_GO = (
    "its masks are gone, and zeros come back as these weights train.\nTo keep them, "
    'attach without gse=False and without masks="track".'
)

_Seen = list[tuple[Tensor, int]]  # Masks, and how often each was written to.
_Had: TypeAlias = "dict[str, tuple[ref[Tensor], Tensor, bool]]"

# By module and name which parameter had which mask when it was read last, and whether
# it was frozen: load_state_dict(assign=True) puts other parameters in their places.
_had: WeakKeyDictionary[nn.Module, _Had] = WeakKeyDictionary()


class MaskSource:
    """Reads and writes the masks of one model.

    changed() is cheap (identities and version counters) and is asked every step.
    Thread-compatible.
    """

    tracks = False  # True: masks are what the weights say (tracking.py).

    def __init__(self, module: nn.Module, table: ParameterTable) -> None:
        self.module = module
        self._table = table
        self._named = list(module.named_modules())
        self._forced = False
        self._registered: tuple[int, list[Tensor]] = (-1, [])
        self._by_torch: dict[str, Tensor] = {}  # Masks of torch when read last.
        self._removed: list[str] = []
        # False: nothing puts weights back where its masks have them at zero.
        self.keeps_zeros = True
        self._seen = self._now()

    @property
    def pending(self) -> bool:
        """True if changed() would be."""
        return self._forced or not _same(self._now(), self._seen)

    def changed(self) -> bool:
        """True once after masks were added, replaced or written to."""
        now = self._now()
        changed = self._forced or not _same(now, self._seen)
        self._forced, self._seen = False, now
        return changed

    def mark_changed(self) -> None:
        """Makes changed() true once."""
        self._forced = True

    def read(self) -> Declared:
        """The masks by parameter name.

        Raises:
          InvalidArgument: two masks for one parameter.
        """
        pending = self.pending
        self._follow_parameters()
        masks: dict[str, Tensor] = {}
        frozen: set[str] = set()
        buffers = dict(self._buffers())
        self._keep_permanent(buffers)
        for name, parameter in self._table:
            if name in buffers and registry.of(parameter).from_torch:
                registry.remove(parameter)  # torch has pruned it again.
            mask = registry.get(parameter)
            if mask is not None and name in buffers:
                raise InvalidArgument(
                    f"{name} has a mask of torch.nn.utils.prune and one of pactrain.\n"
                    "Prune a parameter with one of the two only."
                )
            if mask is not None:
                masks[name] = mask
                if registry.of(parameter).frozen:
                    frozen.add(name)
            elif name in buffers:
                masks[name] = self._by_torch[name] = buffers[name] != 0
        if not pending:  # What reading itself has changed is no news.
            self._seen = self._now()
        return Declared(masks, frozenset(frozen), frozenset(buffers))

    def _keep_permanent(self, buffers: Collection[str]) -> None:
        """torch.nn.utils.prune.remove() leaves zeros in the weights, and nothing that
        keeps them so: from then on the masks are pactrain's, where it can."""
        before, self._by_torch = self._by_torch, {}
        for name, parameter in self._table:
            mask = before.get(name)
            if mask is None or name in buffers or registry.get(parameter) is not None:
                continue
            if parameter.shape != mask.shape:
                continue
            if is_zero_outside(parameter, mask):
                if self.keeps_zeros:
                    registry.set_from_torch(parameter, mask)
                self._removed.append(name)

    def say_removed(self, rank: int) -> None:
        """Once after each time; rank 0 does."""
        names, self._removed = self._removed, []
        if names and rank == 0:
            logger.warning(
                "torch.nn.utils.prune was removed from %s: %s",
                *(some_of(names), _STAY if self.keeps_zeros else _GO),
            )

    def write(self, declared: Declared) -> None:
        """Makes these the model's masks, in the registry and in torch's buffers."""
        buffers = dict(self._buffers())
        # What was declared since its remove() is no longer torch's to keep.
        self._by_torch = {n: m for n, m in self._by_torch.items() if n in buffers}
        with torch.no_grad():
            for name, parameter in self._table:
                mask = declared.masks.get(name)
                if name in buffers:
                    buffers[name].copy_(
                        torch.ones_like(buffers[name]) if mask is None else mask
                    )
                elif mask is None:
                    registry.remove(parameter)
                else:
                    registry.set(parameter, mask, name in declared.frozen)
        self._seen = self._now()

    def write_zeros(self, masks: Mapping[str, Tensor], kind: str = "zero") -> None:
        """The same of the zeros of a checkpoint. Frozen weights are not zero, so where
        it has none their masks stay."""
        declared = of_kind(masks, kind)
        frozen = {
            name: mask
            for name, parameter in self._table
            if (mask := registry.get(parameter)) is not None
            and registry.of(parameter).frozen
            and name not in masks
        }
        self.write(Declared({**frozen, **masks}, declared.frozen | frozen.keys()))
        self.mark_changed()

    def write_state(self, declared: Declared) -> None:
        """The same of a session's state. What was pruned since is not lost: weights
        that are still there when they are checked next keep their masks."""
        had = [
            (name, parameter, mask)
            for name, parameter in self._table
            if (mask := registry.get(parameter)) is not None
            and not registry.of(parameter).loaded
        ]
        # Frozen weights, and those that no step has masked yet, do not tell.
        untold = [
            name
            for name, parameter, mask in had
            if (self.pending or registry.of(parameter).frozen)
            and not _is(declared, name, mask)
        ]
        self.write(declared)
        for name, parameter, mask in had:
            if name not in untold and name not in declared.frozen:
                registry.of(parameter).before_state = mask
        if untold:
            logger.warning(
                "%s: the masks of the session's state are taken, not those that were "
                "there; to prune more call prune() after this",
                some_of(untold),
            )

    def _follow_parameters(self) -> None:
        """Masks go with their place in the model, and those of averages with it."""
        averages.catch_up(parameter for _, parameter in self._table)
        for _, module in self._named:
            before, now = _had.get(module, {}), _masks_of(module)
            for name, (parameter, mask, frozen) in before.items():
                other = module._parameters.get(name)
                if other is None or other is parameter() or name in now:
                    continue
                if other.shape == mask.shape:
                    registry.set(other, mask, frozen)
                    registry.of(other).loaded = True
                    now[name] = (ref(other), mask, frozen)
            if now or before:
                _had[module] = now

    def _buffers(self) -> list[tuple[str, Tensor]]:
        found: list[tuple[str, Tensor]] = []
        for _, buffer, parameter in mask_buffers(self._named):
            try:
                index = self._table.index_of(parameter)
            except KeyError:
                continue  # Needs no gradient.
            found.append((self._table.names[index], buffer))
        return found

    def _now(self) -> _Seen:
        seen, masks = self._registered
        if (changes := registry.changes) != seen:
            found = (registry.get(parameter) for _, parameter in self._table)
            masks = [mask for mask in found if mask is not None]
            self._registered = (changes, masks)
        # The tensors themselves, not their ids: a later one may get a dead one's id.
        masks = [*masks, *(buffer for _, buffer in self._buffers())]
        return [(mask, mask._version) for mask in masks]


def _masks_of(module: nn.Module) -> _Had:
    had: _Had = {}
    for name, parameter in module._parameters.items():
        mask = None if parameter is None else registry.get(parameter)
        if parameter is not None and mask is not None:
            had[name] = (ref(parameter), mask, registry.of(parameter).frozen)
    return had


def carry_over(before: ParameterTable, after: ParameterTable) -> list[str]:
    """Masks follow names where the script has put other parameters in their places: a
    module was replaced, or a parametrization came or went. Names of those that do not
    fit what is there now."""
    names = {_place(name): name for name in after.names}
    unfit = []
    rewritten = after.rewritten()
    there = after.ids_of_model()
    for old, parameter in before:
        mask, found = registry.get(parameter), after.find(names.get(_place(old), ""))
        if mask is None or id(parameter) in there:
            continue
        if found is not None and registry.get(found[1]) is not None:
            continue
        frozen = registry.of(parameter).frozen
        fits = (
            found is not None
            and found[0] not in rewritten
            and found[1].shape == mask.shape
            and (frozen or is_zero_outside(found[1], mask))
        )
        if found is not None and fits:
            registry.set(found[1], mask, frozen)
        else:
            unfit.append(old)
    return unfit


def _place(name: str) -> str:
    """The same with a parametrization and without; of a norm's parts the directions."""
    return _PARAMETRIZED.sub(r"\1", name)


def _is(declared: Declared, name: str, mask: Tensor) -> bool:
    other = declared.masks.get(name)
    return other is not None and torch.equal(other.to(mask.device), mask)


def _same(now: _Seen, before: _Seen) -> bool:
    return len(now) == len(before) and all(
        mask is other and version == then
        for (mask, version), (other, then) in zip(now, before, strict=True)
    )
