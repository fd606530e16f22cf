"""Copies that are averages of a model have the masks that the model has by now.

A copy gets the masks that its model had then. If those change (PruningSchedule) a copy
that is not written to, the best weights so far, say, has to keep them: it trained
within them. An average of weights (EMA) goes on with the model, and what was pruned in
the model fades in it. So a few of these weights are remembered when the model's masks
change. Where they have shrunk alike later, the copy is an average.

Frozen masks stay as they are: outside of them nothing is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from . import storage
from .masks import registry

_MOST = 3 / 4  # Of the weights that were pruned: all do so but while others are agreed.

logger = logging.getLogger("pactrain")


class _Copy:
    """A parameter of a copy, whose mask, if any, is still that of its model."""

    def __init__(self, source: Tensor, copied: Tensor) -> None:
        self._source = ref(source)
        self._copied = ref(copied)
        self._mine = registry.get(copied)
        self._theirs = registry.get(source)  # When it was looked at last.
        self._news: Tensor | None = None  # The same, if it is not that of the copy.
        self._places = self._values = torch.empty(0)
        self._shrinks = True

    @property
    def is_there(self) -> bool:
        return self._copied() is not None

    def look(self) -> bool | None:
        """After the source's mask may have changed, or before the copy's is used. True:
        the copy has that one now. None: it goes its own way."""
        source, copied = self._source(), self._copied()
        if source is None or copied is None:
            return None
        has_own = registry.get(copied) is not self._mine
        if has_own or registry.of(copied).owner is not None:
            return None
        follows = self._news is not None and self._is_average(copied)
        if follows:
            assert self._news is not None
            registry.set(copied, self._news)
            self._mine, self._news = registry.get(copied), None
        now = registry.get(source)
        if now is not None and now is not self._theirs:
            self._theirs = now
            self._begin(copied, now)
        return follows

    def _begin(self, copied: Tensor, news: Tensor) -> None:
        mine = torch.ones_like(news) if self._mine is None else self._mine
        self._news = news
        pruned = mine > news
        self._shrinks = bool(pruned.any())
        self._places = storage.some_places(pruned if self._shrinks else news > mine)
        self._values = torch.take(copied.detach(), self._places)

    def _is_average(self, copied: Tensor) -> bool:
        now = torch.take(copied.detach(), self._places)
        if not self._shrinks:  # What has grown comes into the average.
            return bool((now != 0).any())
        held = self._values != 0
        shrunk = (now.abs() < self._values.abs()) & held
        count = storage.count(shrunk)
        return count > 0 and count >= _MOST * storage.count(held)


# By parameter of a model: its copies; and by parameter of a copy.
_by_source: Any = WeakIdKeyDictionary()
_by_copy: Any = WeakIdKeyDictionary()
_told = False


def follow_source(source: Tensor, copied: Tensor) -> None:
    """Both have one mask, or none yet, and nothing is frozen."""
    entry = _Copy(source, copied)
    _by_copy[copied] = entry
    others = [other for other in _by_source.get(source, ()) if other.is_there]
    _by_source[source] = [*others, entry]


def catch_up(copies: Iterable[Tensor]) -> None:
    """Before masks of these are used."""
    for copied in copies:
        entry = _by_copy.get(copied)
        if entry is not None:
            _look(entry)


def source_changed(source: Tensor) -> None:
    """Its mask is another one now."""
    entries = _by_source.get(source)
    if entries:
        _by_source[source] = [entry for entry in entries if _look(entry)]


def _look(entry: _Copy) -> bool:
    """False: it need not be looked at any more."""
    global _told
    follows = entry.look()
    if follows and not _told:
        _told = True
        logger.warning(
            "there is an average of a model whose masks have changed: it gets them, "
            "too, but its weights outside of them only fade. Call pactrain.apply_masks("
            "average) before it is used or saved"
        )
    return follows is not None


registry.on_set = source_changed
