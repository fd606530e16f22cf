"""Steps that stay dense since gradients outside the masks in force are not zero.

Without gradient sparsity enforcement such a step sends all elements, so that nothing is
lost. When every step does, masks save nothing, and the script may want to know.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from torch import Tensor, nn

from .effective_weights import EffectiveWeights
from .layout import BucketLayout, masks_in
from .masks import MaskSet
from .parameters import ParameterTable, some_of

_MANY = 5  # Steps in a row: fewer are a library that grows weights.

logger = logging.getLogger("pactrain")


class DenseSteps:
    """Not thread-safe: told of each committed step."""

    def __init__(self, module: nn.Module, table: ParameterTable) -> None:
        self._table = table
        self._weights = EffectiveWeights(module, table)
        self._names: list[str] = []
        self._used_by: list[str] = []  # Those with something that may use them.
        self._in_a_row = 0

    def add(
        self,
        masks: MaskSet,
        layouts: Sequence[BucketLayout],
        buffers: Sequence[Tensor],
        rank: int,
    ) -> None:
        """A dense step, though these masks were in force and nobody wants others."""
        self._in_a_row += 1
        if self._in_a_row < _MANY or self._names:
            return
        names = self._table.names
        outside = self._outside(masks, layouts, buffers)
        self._names = [names[i] for i in outside]
        self._used_by = [names[i] for i in outside if not self._weights.is_alone(i)]
        if self._names:
            level = logging.WARNING if rank == 0 else logging.DEBUG
            logger.log(level, "%s", self._text())

    def add_other(self) -> None:
        """A step that was not dense, or for other reasons."""
        self._in_a_row = 0

    def shortfalls(self) -> list[str]:
        """What is to be said of it at the end."""
        lasting = self._names and self._in_a_row >= _MANY
        return [self._text()] if lasting else []

    def _text(self) -> str:
        return (
            "masks are in force, but steps send all elements (dense), because "
            f"gradients outside the masks are not zero in {some_of(self._names)}. "
            f"{self._advice()}"
        )

    def _advice(self) -> str:
        """Following it loses no weight that acts, or that is meant to."""
        if self._used_by:
            return (
                f"This is right: beside {some_of(self._used_by)} is a parametrization "
                "or a buffer that may let them act"
            )
        return (
            "If the script uses them, this is right: it grows weights by their "
            "gradients, as RigL, or lets weights come back that are zero. Only if it "
            "always drops what they do to these weights, attach with gse=True: then "
            "the script does not see them, and a weight at zero stays there"
        )

    def _outside(
        self,
        masks: MaskSet,
        layouts: Sequence[BucketLayout],
        buffers: Sequence[Tensor],
    ) -> list[int]:
        """The indices of parameters with such gradients."""
        return [
            index
            for bucket, buffer in zip(layouts, buffers, strict=True)
            for index, place, mask in masks_in(bucket, self._table, masks)
            if bool(((buffer[place] != 0) & ~mask).any())
        ]
