"""Keeps weights outside the masks in force where they belong.

That is at zero (gradient sparsity enforcement), or, for frozen parameters, at the
values they had when the masks were agreed on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from weakref import WeakSet

import torch
from torch import Tensor
from torch.optim import Optimizer

from . import storage
from .errors import PacTrainError
from .masks import MaskSet
from .parameters import ParameterTable


@dataclass(frozen=True)
class _Entry:
    name: str
    parameter: Tensor
    mask: Tensor
    frozen: bool


class Enforcement:
    """The weights of one model.

    The values of frozen weights are taken only where all ranks have equal weights and
    equal masks: at attach, when weights are loaded, and at the committed step that puts
    other masks in force. Otherwise ranks could hold on to different values.

    Not thread-safe: called between steps.
    """

    def __init__(self, table: ParameterTable) -> None:
        self._table = table
        self._agreed: MaskSet | None = None
        self._values: dict[str, Tensor] = {}
        self._entries: dict[int, _Entry] = {}  # By id of the parameter.
        self._cleaned: WeakSet[Optimizer] = WeakSet()

    def agree(self, masks: MaskSet) -> None:
        """Takes values for masks that all ranks have, maybe not in force yet."""
        if self._agreed is None or self._agreed.digest != masks.digest:
            self._agreed = masks
            self.take_values()

    def take_values(self) -> None:
        """Frozen weights stay where they are now."""
        frozen = frozenset() if self._agreed is None else self._agreed.frozen
        with torch.no_grad():
            self._values = {n: p.clone() for n, p in self._table if n in frozen}

    @property
    def agreed(self) -> MaskSet | None:
        """The masks that the values of frozen weights were taken for."""
        return self._agreed

    @property
    def values(self) -> Mapping[str, Tensor]:
        """Of frozen parameters, by name."""
        return self._values

    def resume(
        self,
        agreed: MaskSet | None,
        values: Mapping[str, Tensor],
        active: MaskSet | None,
        optimizers: Iterable[Optimizer],
    ) -> None:
        """Goes on as another rank does, whose optimizers' states are masked already."""
        self._entries = {}
        if active is not None:
            self.activate(active)
        self._agreed = agreed
        self._values = dict(values)
        self._cleaned = WeakSet(optimizers)

    def activate(self, masks: MaskSet) -> None:
        """From now on apply() enforces these masks."""
        self.agree(masks)
        self._entries = {}
        for name, parameter in self._table:
            mask = masks.masks.get(name)
            if mask is None or name in masks.unenforced:
                continue
            frozen = name in masks.frozen
            self._entries[id(parameter)] = _Entry(name, parameter, mask, frozen)
        self._cleaned = WeakSet()

    def apply(self, optimizer: Optimizer | None = None) -> None:
        """Also zeroes the optimizer's state outside the masks, once per activation.

        Otherwise momentum and weight decay revive pruned weights. Without an
        optimizer: all weights of the model.
        """
        if optimizer is None:
            entries = list(self._entries.values())
        else:
            entries = [
                self._entries[id(p)]
                for group in optimizer.param_groups
                for p in group["params"]
                if id(p) in self._entries
            ]
        with torch.no_grad():
            for entry in entries:
                self._put_back(entry)
            if optimizer is not None and optimizer not in self._cleaned:
                self._cleaned.add(optimizer)
                for entry in entries:
                    _mask_state(optimizer, entry)

    def _put_back(self, entry: _Entry) -> None:
        weights = entry.parameter
        if entry.frozen:
            torch.where(entry.mask, weights, self._values[entry.name], out=weights)
        else:
            storage.zero_outside(weights, entry.mask)


def _zeroed(table: ParameterTable, masks: MaskSet) -> list[tuple[str, Tensor, Tensor]]:
    """Name, weights and mask of what has to be zero outside its mask."""
    left_alone = masks.unenforced | masks.frozen
    return [
        (name, parameter, masks.masks[name])
        for name, parameter in table
        if name in masks.masks and name not in left_alone
    ]


def zero_outside(table: ParameterTable, masks: MaskSet) -> None:
    """Zeroes the weights outside their masks, except frozen ones."""
    with torch.no_grad():
        for _, parameter, mask in _zeroed(table, masks):
            storage.zero_outside(parameter, mask)


def check_zero_outside(table: ParameterTable, masks: MaskSet) -> None:
    """Raises:
    PacTrainError: a weight outside its mask is neither zero nor frozen.
    """
    for name, parameter, mask in _zeroed(table, masks):
        count = int(((parameter.detach() != 0) & ~mask).sum())
        if count:
            raise PacTrainError(
                f"{name} has {count:,} non-zero weights outside its mask: weights "
                "were loaded after prune.\nPrune again after loading, or call "
                "pactrain.apply_masks(model) to set them to zero."
            )


def _mask_state(optimizer: Optimizer, entry: _Entry) -> None:
    for value in optimizer.state.get(entry.parameter, {}).values():
        if isinstance(value, Tensor) and value.shape == entry.parameter.shape:
            value.mul_(entry.mask)
