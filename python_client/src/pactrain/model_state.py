"""All that a rank has to have in common with the others: given, taken and compared.

The model's part has one form in all languages: the masks (mask_keeper.py), the values
of frozen weights, parameters and buffers, each as the bytes of its elements in the
order of indices, one after the other in the order in which the model has them.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import Tensor, nn

from .buffers import synced_buffers
from .errors import RefusedError
from .mask_keeper import MaskKeeper
from .parameters import ParameterTable, plain_name
from .shared import Blob, Shared
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

    def layout(self, digest_of: Digester) -> str:
        """What has to be equal for encode() to fit elsewhere, as a setting."""
        named = [*self._module.named_parameters(), *self._buffers()]
        lines = "\n".join(
            f"{plain_name(name)} {tuple(t.shape)} {t.dtype}"
            for name, t in named
            if t.numel()
        )
        return f"parameters_and_buffers {digest_of(lines.encode()).short}\n"

    def encode(self) -> tuple[Blob, Blob]:
        """The model's part, and that of optimizers and script.

        Raises:
        InvalidArgument: a shared object's state cannot be sent.
        """
        own = self.shared.encode()
        masks, values = self._keeper.transfer()
        tensors = [*values, *self._parameters(), *(b for _, b in self._buffers())]
        return np.concatenate([masks.view(np.uint8), *map(_bytes, tensors)]), own

    def load(self, common: Blob, own: Blob, newcomer: bool, whole: bool) -> None:
        """Takes what encode() gave at another rank.

        Not `whole`: what the script itself goes on with (schedulers, its progress) is
        left alone.

        Raises:
          RefusedError: it does not fit; nothing has been changed, but for what
            Shared.load() names.
        """
        shared = self.shared.decode(own, optimizers_only=not whole)
        masks = self._keeper.unpack_transfer(common[: 4 * self._keeper.transfer_words])
        frozen = [p for name, p in self._table if name in masks.frozen]
        parameters, buffers = self._parameters(), [b for _, b in self._buffers()]
        mine = [*frozen, *parameters, *buffers]
        sizes = [t.numel() * t.element_size() for t in mine]
        ends = list(itertools.accumulate([4 * self._keeper.transfer_words, *sizes]))
        if ends[-1] != common.size:
            raise RefusedError(
                f"The state that came has {common.size} bytes; this model's has "
                f"{ends[-1]}.\nUse one release of pactrain on all ranks."
            )
        theirs = [
            torch.from_numpy(common[first:last].copy()).view(t.dtype).reshape(t.shape)
            for t, first, last in zip(mine, ends, ends[1:], strict=False)
        ]
        pairs = zip(theirs, frozen, strict=False)
        values, rest = [v.to(p.device) for v, p in pairs], theirs[len(frozen) :]
        if newcomer or self._syncs_buffers:
            parameters += buffers
        # First, since it may fail.
        self.shared.load(shared, optimizers_only=not whole)
        with torch.no_grad():
            for tensor, values_of in zip(parameters, rest, strict=False):
                tensor.copy_(values_of)
        self._keeper.take_transfer(masks, values, self.shared.optimizers)

    def drop_gradients(self) -> None:
        for _, parameter in self._table:
            parameter.grad = None

    def _parameters(self) -> list[Tensor]:
        return [parameter.detach() for parameter in self._module.parameters()]

    def _buffers(self) -> list[tuple[str, Tensor]]:
        return synced_buffers(self._module, with_masks=self._keeper.tracks)


def _bytes(tensor: Tensor) -> Blob:
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    view: Blob = flat.cpu().numpy()
    return view
