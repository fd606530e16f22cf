"""What differs between ranks whose step was refused since they differ, by name.

The agents compare one digest of each rank and end the session where two are not equal.
Then ranks tell each other the digests of each parameter, where they met at the start.

Agents compare within steps. What changed after the last one that did (masks as they
move, weights every 100 steps) is compared when sessions are closed, by notes.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence

from ._library import NativeSession
from .board import Board
from .errors import PacTrainError, ResyncRequiredError
from .mask_keeper import MaskKeeper
from .parameters import ParameterTable, some_of

_SIGN = "parameters differ"  # As agents say it.
_PATIENCE_SECONDS = 30.0  # All have failed in the same step.
_END_PATIENCE_SECONDS = 3.0  # Of rank 0 for those that close later than it.
_SHOWN = 3
_MASKS = "Masks differ"
_PRUNE_ALIKE = (
    "Prune on all ranks alike, with one seed; or call session.{call}() on all right "
    "after torch.nn.utils.prune: it gives them rank 0's masks."
)

_AT_THE_END = (
    "ranks did not end alike. {what} Something came at one rank alone: a backward pass "
    "that was not exchanged (no_sync()), pruning, or weights that were written, as "
    "averages to evaluate are. What was saved depends on the rank that saved it"
)

logger = logging.getLogger("pactrain")

Note = Mapping[str, Mapping[str, str]]  # Kind, name, and what has to be equal.


class Differences:
    """Not thread-safe: asked once, when a session has ended."""

    def __init__(
        self,
        native: NativeSession,
        table: ParameterTable,
        keeper: MaskKeeper,
        board: Callable[[float], Board] | None,
    ) -> None:
        """`board` gives one for so many seconds; None: ranks meet nowhere."""
        self._native = native
        self._table = table
        self._keeper = keeper
        self._board = board

    def explain(self, error: PacTrainError) -> PacTrainError:
        """The error with the names of what differs, if that is what it is about."""
        text = str(error)
        if not isinstance(error, ResyncRequiredError) or _SIGN not in text:
            return error
        what = self._compared() or self._of_this_rank()
        if not what:
            return error
        head, _, todo = text.rpartition("\n")
        advice = ""
        if self._keeper.tracks or _MASKS in what:
            call = "sync_buffers" if self._keeper.tracks else "sync_masks"
            advice = _PRUNE_ALIKE.format(call=call) + " "
        explained = ResyncRequiredError(f"{head}\n{what}\n{advice}{todo}")
        explained.__cause__ = error
        return explained

    def at_end(self) -> None:
        """Called by close(). Each rank leaves a note in its own time; rank 0 compares
        them, and its summary says what differs.

        Ranks that have loaded weights since their last step are not compared.
        """
        native = self._native
        # An exception ends this process: the others need not be waited for.
        failed = getattr(sys, "last_value", None) is not None
        if self._board is None or failed or native.closed or native.is_final:
            return
        if native.world_size == 1:
            return
        said: list[str] = []
        try:
            board = self._board(_END_PATIENCE_SECONDS)
            self._leave_note(board)
            if native.rank == 0:
                notes = board.read_of_all(native.world_size, said.append)
                what = self._compared_at_end(board, notes)
                self._keeper.apart = [_AT_THE_END.format(what=what)] if what else []
        except (PacTrainError, RuntimeError) as error:
            logger.info(
                "ranks were not compared at the end, since not all had closed their "
                "session within %g s of this one: %s",
                _END_PATIENCE_SECONDS,
                said[0] if said else error,
            )

    def _leave_note(self, board: Board) -> None:
        """First what is read only where it is needed."""
        native, named = self._native, self._note(self._keeper.seen_at_end())
        board.write(f"{native.rank}/named", named)
        digests = {
            kind: native.digest_of(repr(sorted(items.items())).encode()).short
            for kind, items in named.items()
        }
        place = {"generation": str(native.generation), "step": str(native.next_step)}
        loaded = str(self._keeper.weights.loaded)  # Since the last step.
        board.write(str(native.rank), {**digests, **place, "loaded": loaded})

    def _compared_at_end(self, board: Board, notes: Sequence[Mapping[str, str]]) -> str:
        """Empty: ranks are equal, or are not to be compared."""
        first = notes[0]
        if any(n["loaded"] == str(True) or not _same_place(n, first) for n in notes):
            return ""
        kinds = ("values", "masks")
        for rank, note in enumerate(notes):
            if any(note[kind] != first[kind] for kind in kinds):
                named = [board.read(f"{r}/named", f"rank {r}") for r in (0, rank)]
                # Those between are as rank 0.
                return describe([named[0]] * rank + [named[1]]).replace("\n", " ")
        return ""

    def _of_this_rank(self) -> str:
        if not self._keeper.tracks:
            return ""
        moved = self._keeper.moved_most or "nothing"
        return (
            "Tracked masks are compared, too. Elements that have moved at rank "
            f"{self._native.rank}: {moved}."
        )

    def _compared(self) -> str:
        """Empty: not all ranks came, or all is equal."""
        if self._board is None:
            return ""
        rank, world_size = self._native.rank, self._native.world_size
        try:
            board = self._board(_PATIENCE_SECONDS)
            board.write(str(rank), self._note(self._keeper.seen()))
            if rank == 0:
                notes = board.read_of_all(world_size, lambda missing: None)
                board.write("verdict", describe(notes))
            return str(board.read("verdict", "rank 0"))
        except (PacTrainError, RuntimeError):
            return ""  # The step's own error says enough.

    def _note(self, masks: Mapping[str, str]) -> Note:
        digest_of = self._native.digest_of
        values = self._table.digests_by_name(digest_of)
        return {
            "values": {name: digest.short for name, digest in values.items()},
            "masks": masks,
        }


def _same_place(note: Mapping[str, str], other: Mapping[str, str]) -> bool:
    return all(note[key] == other[key] for key in ("generation", "step"))


def describe(notes: Sequence[Note]) -> str:
    """`notes` is by rank. Empty: they are equal."""
    lines = []
    for kind, title in (
        ("masks", _MASKS),
        ("values", "Weights differ"),
    ):
        found = [
            text
            for name in dict.fromkeys(n for note in notes for n in note[kind])
            if (text := _difference(name, [note[kind].get(name) for note in notes]))
        ]
        if found:
            lines.append(f"{title}: {some_of(found, _SHOWN)}.")
    return "\n".join(lines)


def _difference(name: str, values: Sequence[str | None]) -> str:
    """Of one parameter, by rank."""
    for rank, value in enumerate(values):
        if value == values[0]:
            continue
        sides = [_kept(value) for value in (values[0], value)]
        if any(sides):
            return f"{name} (rank 0 keeps {sides[0]}, rank {rank} {sides[1]})"
        return f"{name} (ranks 0 and {rank})"
    return ""


def _kept(value: str | None) -> str:
    """Of a mask."""
    return "all" if value is None else value.partition(" ")[2]
