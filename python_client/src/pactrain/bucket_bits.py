"""Gives the trainer library the masks of buckets, as bits."""

from __future__ import annotations

from . import storage
from ._library import NativeSession
from .layout import BucketLayout, bucket_bits
from .masks import MaskSet
from .parameters import ParameterTable
from .types import Digest


class BucketBits:
    """Buckets are known only when they come: DDP rebuilds its own after a step or two.

    Not thread-safe.
    """

    def __init__(self, table: ParameterTable, native: NativeSession) -> None:
        self._table = table
        self._native = native
        # By index of a bucket: the masks and the layout that the library has.
        self._given: dict[int, tuple[Digest, Digest]] = {}
        self._made = False  # In this step.

    def give(self, index: int, layout: BucketLayout, masks: MaskSet) -> None:
        """Before the bucket is submitted, for the masks in force."""
        key = (masks.digest, layout.digest)
        if self._given.get(index) == key:
            return
        bits = bucket_bits(layout, self._table, masks)
        self._native.set_masks(
            masks.digest, index, [layout.digest], [layout.elements], [bits]
        )
        self._given[index] = key
        self._made = True

    def forget(self) -> None:
        """The library has none any more."""
        self._given.clear()

    def step_ended(self) -> None:
        if self._made:
            self._made = False
            storage.give_back_memory()
