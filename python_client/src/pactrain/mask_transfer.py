"""The masks of a rank, as words for one that comes later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from . import agreement, words
from .errors import RefusedError
from .masks import Declared, MaskSet
from .parameters import ParameterTable

_HEAD = 2  # settle_steps, and flags, which only Python ranks have.
_TOLERATES, _NEWER = 1, 2


@dataclass(frozen=True)
class Transfer:
    """What a rank wants, and how far that is agreed on.

    `newer`: the weights are newer than masks that come in force and are not those
    wanted. `tolerate_outside`: weights outside the masks may be zeroed.
    """

    current: MaskSet
    active: MaskSet | None
    agreed: MaskSet | None
    settle_steps: int
    tolerate_outside: bool
    newer: bool

    @property
    def frozen(self) -> frozenset[str]:
        """Whose values were taken when all agreed."""
        return self.agreed.frozen if self.agreed else frozenset()


def words_of(table: ParameterTable) -> int:
    """How many pack() makes."""
    return _HEAD + 3 * (1 + agreement.packed_words(table) + _name_words(table))


def pack(table: ParameterTable, given: Transfer) -> words.Words:
    """The head, and of each mask set whether there is one, its masks, and whose are
    unenforced."""
    flags = _TOLERATES * given.tolerate_outside + _NEWER * given.newer
    packed = [np.array([given.settle_steps, flags], dtype=np.uint32)]
    for masks in (given.current, given.active, given.agreed):
        packed += [
            np.array([masks is not None], dtype=np.uint32),
            agreement.pack_masks(table, masks),
            agreement.name_bits(table, masks.unenforced if masks else ()),
        ]
    return np.concatenate(packed)


def unpack(
    table: ParameterTable,
    data: npt.NDArray[np.uint8],
    make: Callable[[Declared], MaskSet],
) -> Transfer:
    """What pack() gave at another rank of the same model.

    Raises:
      RefusedError: it is too short, or has no masks.
    """
    if data.size != 4 * words_of(table):
        raise RefusedError(
            f"The masks that came have {data.size} bytes; allowed are "
            f"{4 * words_of(table)}.\nUse one release of pactrain on all ranks."
        )
    packed, names = data.copy().view(np.uint32), _name_words(table)
    sets: list[MaskSet | None] = []
    for one in packed[_HEAD:].reshape(3, -1):
        declared = agreement.unpack_masks(table, one[1:-names])
        unenforced = agreement.named_bits(table, one[-names:])
        declared = Declared(declared.masks, declared.frozen, unenforced)
        sets.append(make(declared) if one[0] else None)
    current, active, agreed = sets
    flags = int(packed[1])
    return Transfer(
        current or make(Declared({})),
        *(active, agreed, int(packed[0])),
        *(bool(flags & _TOLERATES), bool(flags & _NEWER)),
    )


def _name_words(table: ParameterTable) -> int:
    return -(-len(table) // 32)
