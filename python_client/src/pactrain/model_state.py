"""All that a rank has to have in common with the others: given, taken and compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from . import state_codec
from .buffers import BufferSync
from .errors import RefusedError
from .mask_keeper import MaskKeeper
from .parameters import ParameterTable, plain_name
from .shared import Shared
from .state_codec import Blob
from .types import Digest, Digester


class ModelState:
    """Parameters (also without gradients), buffers, masks and what the script shares.

    Not thread-safe: used between steps.
    """

    def __init__(
        self,
        module: nn.Module,
        table: ParameterTable,
        keeper: MaskKeeper,
        shared: Shared,
        syncs_buffers: bool,
    ) -> None:
        """Where `syncs_buffers` is off every rank has buffers of its own; only a
        newcomer takes another's."""
        self.shared = shared
        self._module = module
        self._table = table
        self._keeper = keeper
        self._syncs_buffers = syncs_buffers

    def digest(self, digest_of: Digester) -> Digest:
        """Of the parameters' values."""
        return self._table.value_digest(digest_of)

    def encode(self) -> Blob:
        """Raises:
        InvalidArgument: a shared object's state cannot be sent.
        """
        return state_codec.encode(
            {
                "parameters": self._parameters(),
                "buffers": self._buffers(),
                "masks": self._keeper.transfer(),
                "shared": self.shared.state(),
            }
        )

    def load(self, state: Mapping[str, Any], newcomer: bool, whole: bool) -> None:
        """Takes what encode() gave at another rank.

        Not `whole`: what the script itself goes on with (schedulers, its progress) is
        left alone.

        Raises:
          RefusedError: the two models differ, or the classes of what is shared; nothing
            has been changed. Or the number of unnamed optimizers does.
        """
        self.shared.check(state["shared"])
        pairs = _pairs("parameter", self._parameters(), state["parameters"])
        if newcomer or self._syncs_buffers:
            pairs += _pairs("buffer", self._buffers(), state["buffers"])
        with torch.no_grad():
            for mine, theirs in pairs:
                mine.copy_(theirs)
        self.shared.load(state["shared"], optimizers_only=not whole)
        self._keeper.take_transfer(state["masks"], self.shared.optimizers)

    def drop_gradients(self) -> None:
        for _, parameter in self._table:
            parameter.grad = None

    def _parameters(self) -> dict[str, Tensor]:
        named = self._module.named_parameters()
        return {plain_name(name): parameter.detach() for name, parameter in named}

    def _buffers(self) -> dict[str, Tensor]:
        buffers = BufferSync(self._module, with_masks=self._keeper.tracks)
        return {plain_name(name): buffer for name, buffer in buffers.tensors()}


def _pairs(
    kind: str, mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor]
) -> list[tuple[Tensor, Tensor]]:
    """Tensors of equal names, shapes and types."""
    for name in [*mine, *theirs]:
        here, there = _kind(mine.get(name)), _kind(theirs.get(name))
        if here != there:
            raise RefusedError(
                f"The {kind} {name!r} is {here} here, and {there} at the rank that "
                "gives its state.\nMake the same model on all ranks."
            )
    return [(tensor, theirs[name]) for name, tensor in mine.items()]


def _kind(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"
