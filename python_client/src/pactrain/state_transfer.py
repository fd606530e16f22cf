"""One rank's state goes to those that need it: XOR steps in which all take part.

First the donor says what it has, and those that need it mark themselves. All others
compare. If somebody needs the state, its size and digest follow, and then its bytes in
pieces. Nothing is looked at before the digest of the whole was checked.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from . import state_codec, storage, words
from .agreement import Settings, check_equal
from .errors import (
    InvalidArgument,
    RefusedError,
    ResyncRequiredError,
    StepNotAppliedError,
)
from .model_state import ModelState
from .state_codec import Blob
from .types import NO_DIGEST, Digest, Native, Progress
from .world import MAX_RANKS

_VERSION = 1
_NAMES_BYTES = 240
_PROBLEM_BYTES = 480
_MAX_STATE_BYTES = 1 << 40
# Of a piece: what a bad network may cost.
_ATTEMPTS = 10
_FORM = struct.Struct(f"<{len(fields(Settings))}I3QI16s16s{_NAMES_BYTES}s")
_ANNOUNCEMENT = struct.Struct(f"<Q16s{_PROBLEM_BYTES}s")
_NEEDY_BYTES = MAX_RANKS // 8
# For the size of the slot.
LEAST_SLOT_BYTES = 64 * -(-max(_FORM.size + _NEEDY_BYTES, _ANNOUNCEMENT.size) // 64)

logger = logging.getLogger("pactrain")


@dataclass(frozen=True)
class Taken:
    """`state` is None where this rank needs none."""

    progress: Progress  # The donor's.
    parameters: Digest  # The donor's.
    state: dict[str, Any] | None


@dataclass(frozen=True)
class _Header:
    settings: Settings
    progress: Progress
    unnamed_optimizers: int
    parameters: Digest
    names_digest: Digest
    names: str  # For messages; may be cut off.

    def pack(self) -> Blob:
        packed = _FORM.pack(
            *astuple(self.settings),
            *astuple(self.progress),
            self.unnamed_optimizers,
            self.parameters.to_bytes(),
            self.names_digest.to_bytes(),
            _cut(self.names, _NAMES_BYTES),
        )
        return np.frombuffer(packed, dtype=np.uint8)

    @staticmethod
    def unpack(data: Blob) -> _Header:
        values = _FORM.unpack(data[: _FORM.size].tobytes())
        count = len(fields(Settings))
        committed, sync_age, check_age, unnamed, parameters, names, text = values[
            count:
        ]
        return _Header(
            Settings(*values[:count]),
            Progress(committed, sync_age, check_age),
            unnamed,
            _digest(parameters),
            _digest(names),
            _text(text),
        )


class StateTransfer:
    """Of one model. `piece_bytes` has to be equal on all ranks and fit into the slot.

    Not thread-safe: used between steps.
    """

    def __init__(
        self,
        native: Native,
        local: ModelState,
        settings: Settings,
        piece_bytes: int,
    ) -> None:
        self._native = native
        self._local = local
        self._settings = settings
        self._piece_bytes = piece_bytes

    def run(self, mine: Progress, newcomer: bool) -> Taken:
        """All ranks of a generation with a donor call it before anything else.

        Raises:
          ResyncRequiredError: this rank's parameters should be the donor's, and are
            not.
          RefusedError: this rank needs the state and cannot take the donor's.
          PacTrainError: of a step; then the generation is over.
        """
        needs = self._native.needs_state
        donor = self._native.donor
        assert donor is not None
        header, needy = self._exchange_headers(mine, donor, needs)
        if needs:
            self._check(header, donor, newcomer)
        elif header.parameters != self._local.digest(self._native.digest_of):
            raise ResyncRequiredError(
                f"The parameters of rank {self._native.rank} differ from those of rank "
                f"{donor} after the same step.\n"
                "Load the last checkpoint at all ranks and start them again."
            )
        if not any(needy):
            return Taken(header.progress, header.parameters, None)
        blob = self._exchange_state(donor, needs)
        state = None if blob is None else state_codec.decode(blob)
        return Taken(header.progress, header.parameters, state)

    def _exchange_headers(
        self, mine: Progress, donor: int, needs: bool
    ) -> tuple[_Header, Sequence[bool]]:
        sent = np.zeros(_FORM.size + _NEEDY_BYTES, dtype=np.uint8)
        if self._native.rank == donor:
            sent[: _FORM.size] = self._header(mine).pack()
        ranks = np.arange(MAX_RANKS) == self._native.rank
        sent[_FORM.size :] = np.packbits(ranks & needs, bitorder="little")
        received = self._exchange("header", sent)
        needy = storage.unpack(received[_FORM.size :], MAX_RANKS).tolist()
        return _Header.unpack(received), needy

    def _header(self, mine: Progress) -> _Header:
        return _Header(
            self._settings,
            mine,
            len(self._local.shared.unnamed),
            self._local.digest(self._native.digest_of),
            *self._names(),
        )

    def _names(self) -> tuple[Digest, str]:
        """Of what is shared: their digest, and in words."""
        names = self._local.shared.names
        if not names:
            return NO_DIGEST, "nothing"
        return self._native.digest_of("\n".join(names).encode()), ", ".join(names)

    def _check(self, donors: _Header, donor: int, newcomer: bool) -> None:
        names_digest, names = self._names()
        check_equal((donor, donors.settings), (self._native.rank, self._settings))
        if newcomer and donors.unnamed_optimizers:
            raise RefusedError(
                f"Rank {donor} trains with an optimizer that it does not share, so "
                "that a newcomer cannot take its state.\n"
                "Call model.share(optimizer=optimizer) on all ranks, before the first "
                "step."
            )
        if donors.names_digest != names_digest:
            raise RefusedError(
                f"Rank {donor} shares {donors.names}, this rank {names}.\n"
                "Call model.share() with the same names on all ranks, before start() "
                "and before the first step."
            )

    def _exchange_state(self, donor: int, needs: bool) -> Blob | None:
        """The donor's state at those that need it."""
        blob: Blob | None = None
        announced = b""
        if self._native.rank == donor:
            blob, announced = self._announce()
        sent = np.zeros(_ANNOUNCEMENT.size, dtype=np.uint8)
        sent[: len(announced)] = np.frombuffer(announced, dtype=np.uint8)
        received = self._exchange("announcement", sent).tobytes()
        size, digest, problem = _ANNOUNCEMENT.unpack(received)
        if size == 0 or size > _MAX_STATE_BYTES:
            if not needs:
                return None
            raise RefusedError(
                f"Rank {donor} cannot give its state: "
                f"{_text(problem) or f'it has {size} bytes'}\n"
                "Correct what it shares (model.share()), and start this rank again."
            )
        taken = np.empty(size, dtype=np.uint8) if needs else None
        for first in range(0, size, self._piece_bytes):
            last = min(first + self._piece_bytes, size)
            piece = (
                np.zeros(last - first, np.uint8) if blob is None else blob[first:last]
            )
            received_piece = self._exchange("piece", piece)
            if taken is not None:
                taken[first:last] = received_piece
        if taken is not None and self._native.digest_of(taken) != _digest(digest):
            raise ResyncRequiredError(
                f"The state of rank {donor}, {size} bytes, came with another digest "
                "than was said before.\nStart this rank again."
            )
        return taken

    def _announce(self) -> tuple[Blob | None, bytes]:
        try:
            blob = self._local.encode()
        except InvalidArgument as error:
            logger.error("this rank cannot give its state: %s", error)
            first_line = _cut(str(error).splitlines()[0], _PROBLEM_BYTES)
            return None, _ANNOUNCEMENT.pack(0, NO_DIGEST.to_bytes(), first_line)
        digest = self._native.digest_of(blob).to_bytes()
        return blob, _ANNOUNCEMENT.pack(blob.size, digest, b"")

    def _exchange(self, what: str, data: npt.NDArray[np.uint8]) -> Blob:
        layout = self._native.digest_of(f"pactrain state {_VERSION} {what}".encode())
        sent = words.from_bytes(data)
        for attempts_left in reversed(range(_ATTEMPTS)):
            try:
                received = words.exchange(self._native, sent, layout)
                break
            except StepNotAppliedError:  # At all ranks.
                if self._native.is_final or not attempts_left:
                    raise
        return words.to_bytes(received, data.size)


def _digest(data: bytes) -> Digest:
    return Digest(int.from_bytes(data[:8], "big"), int.from_bytes(data[8:], "big"))


def _cut(text: str, size: int) -> bytes:
    """In UTF-8, without half a character at the end."""
    return text.encode()[:size].decode(errors="ignore").encode()


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")
