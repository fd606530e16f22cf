"""Steps that stay dense since gradients outside the masks in force are not zero.

Without gradient sparsity enforcement such a step sends all elements, so that nothing is
lost. When every step does, masks save nothing, and the script may want to know.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from torch import Tensor

from . import storage
from .layout import StepLayout
from .masks import MaskSet
from .parameters import ParameterTable, some_of

_MANY = 5  # Steps in a row: fewer are a library that grows weights.

logger = logging.getLogger("pactrain")


class DenseSteps:
    """Not thread-safe: told of each committed step."""

    def __init__(self, table: ParameterTable) -> None:
        self._parameters = list(table)
        self._names: list[str] = []
        self._in_a_row = 0

    def add(
        self, masks: MaskSet, layout: StepLayout, buffers: Sequence[Tensor], rank: int
    ) -> None:
        """A dense step, though these masks were in force and nobody wants others."""
        self._in_a_row += 1
        if self._in_a_row < _MANY or self._names:
            return
        self._names = list(self._outside(masks, layout, buffers))
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
            "If the script drops what they do to these weights, attach with gse=True, "
            "which drops these gradients; if it uses them, this is right"
        )

    def _outside(
        self, masks: MaskSet, layout: StepLayout, buffers: Sequence[Tensor]
    ) -> Iterator[str]:
        for bucket, buffer in zip(layout.buckets, buffers, strict=True):
            first = 0
            for index in bucket.parameters:
                name, parameter = self._parameters[index]
                piece = buffer[first : first + parameter.numel()]
                first += parameter.numel()
                mask = masks.masks.get(name)
                if mask is None:
                    continue
                if bool(((piece != 0) & ~storage.flatten(mask, parameter)).any()):
                    yield name
