"""Pruned layers in whose place a script has put others before it attached the model.

A mask belongs to a parameter, so it goes with the old layer: the new one is trained
dense. That may be meant, as with a new head, so it is said and not refused.
"""

from __future__ import annotations

import logging
from typing import TypeAlias
from weakref import WeakKeyDictionary, ref

from torch import Tensor, nn

from .masks import registry
from .parameters import ParameterTable, some_of

logger = logging.getLogger("pactrain")

_Places: TypeAlias = "dict[str, ref[Tensor]]"
_pruned: WeakKeyDictionary[nn.Module, _Places] = WeakKeyDictionary()


def note_pruned(model: nn.Module, table: ParameterTable) -> None:
    """Which parameters of the model have masks as prune() or apply_masks() ends."""
    _pruned[model] = {
        name: ref(parameter) for name, parameter in table if registry.has(parameter)
    }


def say_swapped(module: nn.Module, rank: int) -> None:
    """Once for each layer, of this model and of parts that were pruned by themselves.

    Masks have followed what load_state_dict(assign=True) replaces before this.
    """
    names = [
        f"{prefix}.{name}".lstrip(".")
        for prefix, part in module.named_modules()
        for name in _take_swapped(part)
    ]
    if names and rank == 0:
        logger.warning(
            "%s: pruned, but another layer is in its place since, which has no mask "
            "and trains dense; if that is not meant, prune the model after its layers "
            "are in place",
            some_of(names),
        )


def _take_swapped(part: nn.Module) -> list[str]:
    places = _pruned.get(part)
    if not places:
        return []
    now = dict(part.named_parameters())
    swapped = [
        name
        for name, was in places.items()
        if name in now and now[name] is not was() and not registry.has(now[name])
    ]
    for name in swapped:
        del places[name]
    return swapped
