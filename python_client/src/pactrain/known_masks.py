"""Mask sets that a decision may name: those that this rank voted for lately."""

from __future__ import annotations

from collections.abc import Iterable

from .masks import MaskSet
from .types import Digest

_MOST = 4  # As many as the trainer library holds.


class KnownMasks:
    def __init__(self, known: Iterable[MaskSet]) -> None:
        """The oldest one first."""
        self._sets = {masks.digest: masks for masks in known}

    def find(self, digest: Digest) -> MaskSet | None:
        return self._sets.get(digest)

    def add(self, masks: MaskSet, active: MaskSet | None) -> None:
        """The newest one; those in force, and this one, are not forgotten."""
        self._sets.pop(masks.digest, None)
        self._sets[masks.digest] = masks
        held = None if active is None else active.digest
        while len(self._sets) > _MOST:
            del self._sets[next(d for d in self._sets if d != held)]

    def replace(self, masks: MaskSet) -> None:
        """By one of the same digest."""
        self._sets[masks.digest] = masks

    def forget_before(self, masks: MaskSet, wanted: MaskSet) -> None:
        """A later decision names none of the sets voted for before this one: whoever
        wants one back votes for it anew."""
        for digest in list(self._sets):
            if digest == masks.digest:
                break
            if digest != wanted.digest:
                del self._sets[digest]
