"""Layouts: which parameters each bucket of DDP holds, in which order.

DDP rebuilds its buckets after the first step (with static_graph after the second),
so nothing may be keyed by the index of a bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from . import storage
from .errors import RefusedError
from .masks import MaskSet
from .parameters import ParameterTable
from .types import Digest, Digester

_PIECE = 1 << 16  # Elements.


@dataclass(frozen=True)
class BucketLayout:
    """The parameters of one bucket, in order. Equal on ranks with equal digest."""

    parameters: tuple[int, ...]  # Indices into the ParameterTable.
    elements: int
    digest: Digest


class LayoutCache:
    """Layouts of the buckets seen so far, so that a step computes none anew."""

    def __init__(self, table: ParameterTable, digest_of: Digester) -> None:
        self._table = table
        self._digest_of = digest_of
        # The order of a bucket's elements: DDP's is that of when the model was wrapped.
        self._strides = {id(p): storage.bucket_strides(p) for _, p in table}
        self._buckets: dict[tuple[object, ...], BucketLayout] = {}

    def bucket(self, parameters: Sequence[Tensor], buffer: Tensor) -> BucketLayout:
        """The layout of these parameters.

        Raises:
          KeyError: a parameter is not of this model.
          RefusedError: one has its elements in another order than at the beginning.
        """
        for parameter in parameters:
            self._check_order(parameter)
        key = (*map(id, parameters), buffer.dtype)
        layout = self._buckets.get(key)
        if layout is None:
            layout = self._buckets[key] = self._make(parameters, buffer)
        return layout

    def _check_order(self, parameter: Tensor) -> None:
        before = self._strides.get(id(parameter))
        if before is None or parameter.stride() == before:
            return
        if parameter.dim() != len(before) or not storage.same_strides(
            storage.bucket_strides(parameter), before, parameter.shape
        ):
            name = self._table.names[self._table.index_of(parameter)]
            raise RefusedError(
                f"{name} has its elements in another order (memory format) than when "
                "the model was attached: gradients would reach the wrong ones.\n"
                "Convert the model before it is wrapped; or close the session, then "
                "wrap and attach the model anew."
            )

    def _make(self, parameters: Sequence[Tensor], buffer: Tensor) -> BucketLayout:
        indices = tuple(self._table.index_of(parameter) for parameter in parameters)
        names = self._table.names
        text = "\n".join(
            f"{names[i]} {tuple(p.shape)} {storage.bucket_strides(p)}"
            for i, p in zip(indices, parameters, strict=True)
        )
        digest = self._digest_of(f"{buffer.dtype} {buffer.numel()}\n{text}".encode())
        return BucketLayout(indices, buffer.numel(), digest)


def masks_in(
    bucket: BucketLayout, table: ParameterTable, masks: MaskSet
) -> Iterator[tuple[int, slice, Tensor]]:
    """The bucket's parameters that have a mask: the index of each, its place in the
    bucket and its mask, 1-D and in the order of the bucket."""
    entries = list(table)
    first = 0
    for index in bucket.parameters:
        name, parameter = entries[index]
        end = first + parameter.numel()
        mask = masks.masks.get(name)
        if mask is not None:
            yield index, slice(first, end), storage.flatten(mask, parameter)
        first = end


def bucket_bits(
    bucket: BucketLayout, table: ParameterTable, masks: MaskSet
) -> npt.NDArray[np.uint8]:
    """As storage.pack(), in the order of the bucket; made without a byte for each
    element, since gradients and the memory of FULL steps are there, too."""
    bits = np.full(-(-bucket.elements // 8), 255, dtype=np.uint8)
    bits[bits.size - 1 :] >>= -bucket.elements % 8
    for _, place, mask in masks_in(bucket, table, masks):
        first = place.start
        for piece in torch.split(mask.cpu(), _PIECE):
            _clear(bits, first, piece)
            first += piece.numel()
    return bits


def _clear(bits: npt.NDArray[np.uint8], first: int, piece: Tensor) -> None:
    """The bits from element `first` on that are not kept; their neighbours in a byte
    stay."""
    begin = first % 8
    end = begin + piece.numel()
    padded = torch.ones(end + -end % 8, dtype=torch.bool)
    padded[begin:end] = piece
    packed = storage.pack(padded)
    bits[first // 8 :][: packed.size] &= packed
