"""What ranks settle before the first step: equal settings and one mask set.

Every rank tells its settings and the digest of its masks; if the digests differ,
rank 0's masks go to all. Both are steps through the agents.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import asdict, astuple, dataclass, fields

import numpy as np
import torch
from torch import Tensor

from . import storage, words
from ._library import NativeSession, settings_difference
from .errors import PacTrainError, RefusedError
from .masks import Declared, MaskSet
from .parameters import ParameterTable
from .types import Digest

logger = logging.getLogger("pactrain")

_VERSION = 1
_SETTLE_WORDS = 4  # Of the digest.


@dataclass(frozen=True)
class Settings:
    """What has to be equal on all ranks. Small integers."""

    gse: int
    sync_masks: int
    buffer_sync_interval: int
    parameter_check_interval: int
    buffer_bytes: int
    settle_steps: int
    on_shrink: int
    activate_at: int = 0
    pin: int = 0
    pin_from: int = 0
    track: int = 0

    @property
    def text(self) -> str:
        """For ranks that come later, which take settle_steps with the state, unless
        each tracks its own masks."""
        items = asdict(self)
        if not self.track:
            del items["settle_steps"]
        return "".join(f"{name} {value}\n" for name, value in items.items())


def record_words(world_size: int) -> int:
    """Words of the first exchange, for the size of the slot."""
    return world_size * (len(fields(Settings)) + _SETTLE_WORDS)


def mask_words(table: ParameterTable, world_size: int) -> int:
    """Words of the second exchange, for the size of the slot: who failed, masks and
    kinds."""
    return -(-world_size // 32) + packed_words(table)


def packed_words(table: ParameterTable) -> int:
    """Words of pack_masks()."""
    return sum(-(-p.numel() // 32) for _, p in table) + -(-len(table) // 32)


def pack_masks(table: ParameterTable, masks: Declared | None) -> words.Words:
    """Masks and kinds as bits in bucket order; each mask begins a word. None: zeros."""
    if masks is None:
        return np.zeros(packed_words(table), dtype=np.uint32)
    pieces = [_mask_words(masks.masks.get(name), p) for name, p in table]
    return np.concatenate([*pieces, name_bits(table, masks.frozen)])


def unpack_masks(table: ParameterTable, packed: words.Words) -> Declared:
    """The reverse; masks that keep everything are left out."""
    masks: dict[str, Tensor] = {}
    offset = 0
    for name, parameter in table:
        size = -(-parameter.numel() // 32)
        flat = _flat(packed[offset : offset + size], parameter.numel())
        offset += size
        if not bool(flat.all()):
            masks[name] = storage.unflatten(flat, parameter)
    return Declared(masks, named_bits(table, packed[offset:]) & masks.keys())


def name_bits(table: ParameterTable, names: Collection[str]) -> words.Words:
    return _bits(torch.tensor([name in names for name in table.names]))


def named_bits(table: ParameterTable, bits: words.Words) -> frozenset[str]:
    """The reverse."""
    flags = _flat(bits, len(table)).tolist()
    return frozenset(n for n, flag in zip(table.names, flags, strict=True) if flag)


def agree(
    native: NativeSession, table: ParameterTable, mine: MaskSet, settings: Settings
) -> tuple[Declared | None, int]:
    """Returns what all ranks use from now on: masks, None if all had the same set
    already, and settle_steps.

    Raises:
      RefusedError: settings differ, or masks do and sync_masks is off; on all ranks.
      PacTrainError: the exchange failed.
    """
    all_settings, digests = _gather(native, mine, settings)
    _check_settings(all_settings)
    settle_steps = all_settings[0].settle_steps
    if settings.settle_steps != settle_steps:
        logger.warning(
            "rank %d: settle=%d was replaced by rank 0's, %d",
            native.rank,
            settings.settle_steps,
            settle_steps,
        )
    different = [r for r, digest in enumerate(digests) if digest != digests[0]]
    if not different:
        return None, settle_steps
    if not settings.sync_masks:
        raise RefusedError(
            f"Mask sets differ and sync_masks is off: rank 0 has {_text(digests[0])}, "
            f"rank {different[0]} has {_text(digests[different[0]])} (this is rank "
            f"{native.rank}, with {mine}).\n"
            "Prune all ranks alike, or attach with sync_masks=True."
        )
    return broadcast(native, table, mine), settle_steps


def _gather(
    native: NativeSession, mine: MaskSet, settings: Settings
) -> tuple[list[Settings], list[Digest]]:
    width, world_size = record_words(1), native.world_size
    record = [*astuple(settings), *mine.digest.words()]
    sent = np.zeros((world_size, width), dtype=np.uint32)
    sent[native.rank] = record
    layout = native.digest_of(f"pactrain settings {_VERSION} {width}".encode())
    received = words.exchange(native, sent.reshape(-1), layout)
    rows: list[list[int]] = received.reshape(world_size, width).tolist()
    return (
        [Settings(*row[:-_SETTLE_WORDS]) for row in rows],
        [_digest(row[-_SETTLE_WORDS:]) for row in rows],
    )


def _digest(parts: Sequence[int]) -> Digest:
    return Digest(parts[0] << 32 | parts[1], parts[2] << 32 | parts[3])


def _text(digest: Digest) -> str:
    return digest.short if digest else "none"


def _check_settings(all_settings: Sequence[Settings]) -> None:
    """
    Raises:
      RefusedError: some rank's differ from rank 0's; names both.
    """
    first = all_settings[0].text
    for rank, settings in enumerate(all_settings):
        difference = settings_difference(first, 0, settings.text, rank)
        if difference:
            raise RefusedError(difference)


def broadcast(
    native: NativeSession, table: ParameterTable, mine: Declared, failed: bool = False
) -> Declared:
    """Rank 0's masks and kinds. All ranks call it after the same step.

    REQUIRES: no step is open.
    Raises:
      PacTrainError: a rank called it with `failed`, or the exchange failed; on all.
    """
    ranks = torch.arange(native.world_size)
    failures = _bits((ranks == native.rank) & failed)
    packed = pack_masks(table, mine if native.rank == 0 else None)
    layout = native.digest_of(
        b"pactrain masks" + table.digest(native.digest_of).to_bytes()
    )
    received = words.exchange(native, np.concatenate([failures, packed]), layout)
    _check_failures(ranks[_flat(received[: failures.size], len(ranks))].tolist())
    return unpack_masks(table, received[failures.size :])


def _check_failures(ranks: Sequence[int]) -> None:
    if ranks:
        raise PacTrainError(
            f"prune() failed on rank {ranks[0]}, whose own error says why; masks are "
            "as before.\nMend that, and call prune() on all ranks again."
        )


def _mask_words(mask: Tensor | None, parameter: Tensor) -> words.Words:
    if mask is None:
        return np.full(-(-parameter.numel() // 32), 0xFFFFFFFF, dtype=np.uint32)
    return _bits(storage.flatten(mask, parameter))


def _bits(flat: Tensor) -> words.Words:
    return words.from_bytes(storage.pack(flat))


def _flat(bits: words.Words, elements: int) -> Tensor:
    return storage.unpack(bits.view(np.uint8), elements)
