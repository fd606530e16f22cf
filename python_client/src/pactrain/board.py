"""Notes that ranks leave for each other, over torch.distributed's store."""

from __future__ import annotations

import collections
import json
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torch.distributed.distributed_c10d import Store

from .errors import CoordinatorUnavailableError
from .parameters import some_of

_PATIENCE = timedelta(seconds=5)  # For a start that needs no words.

_tries: collections.Counter[str] = collections.Counter()


def _ranks(ranks: Sequence[str]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {some_of(ranks)}"


def new_board(store: Store, prefix: str, timeout_seconds: float) -> Board:
    """One that nobody has written on, if all ranks call it equally often."""
    _tries[prefix] += 1
    return Board(store, f"{prefix}/{_tries[prefix]}", timeout_seconds)


class Board:
    """Notes under one prefix; each is written once and read by anybody.

    Every wait ends within `timeout_seconds` of the board's making.
    """

    def __init__(self, store: Store, prefix: str, timeout_seconds: float) -> None:
        self._store = store
        self._prefix = prefix
        self._timeout_seconds = timeout_seconds
        self._end = time.monotonic() + timeout_seconds

    def until(self, timeout_seconds: float) -> Board:
        """The same, with waits that end so much later than now."""
        return Board(self._store, self._prefix, timeout_seconds)

    def write(self, name: str, note: Any) -> None:
        self._store.set(self._key(name), json.dumps(note))

    def read(self, name: str, waits_for: str) -> Any:
        """The note, as soon as it is there.

        Raises:
          CoordinatorUnavailableError: it was not written in time; names `waits_for`.
        """
        try:
            self._store.wait([self._key(name)], self._left())
        except RuntimeError as error:
            raise self._late(waits_for) from error
        return json.loads(self._store.get(self._key(name)))

    def look(self, name: str) -> Any:
        """The note if it is there now, else None."""
        key = self._key(name)
        return json.loads(self._store.get(key)) if self._store.check([key]) else None

    def remove(self, name: str) -> None:
        """The note is gone; who has not read it yet waits in vain."""
        self._store.delete_key(self._key(name))

    def read_of_all(self, ranks: int, on_waiting: Callable[[str], None]) -> list[Any]:
        """The notes "0", "1", ... of all ranks. If that takes long, `on_waiting` is
        told once who is missing.

        Raises:
          CoordinatorUnavailableError: some were not written in time; names the ranks.
        """
        keys = [self._key(str(rank)) for rank in range(ranks)]
        missing = self._missing(keys, min(self._left(), _PATIENCE))
        if missing:
            on_waiting(f"waiting for {_ranks(missing)} of {ranks}")
            missing = self._missing(keys, self._left())
        if missing:
            raise self._late(_ranks(missing))
        return [json.loads(self._store.get(key)) for key in keys]

    def _left(self) -> timedelta:
        return timedelta(seconds=max(0.001, self._end - time.monotonic()))

    def _missing(self, keys: Sequence[str], timeout: timedelta) -> list[str]:
        """Ranks whose notes are not there after the timeout."""
        try:
            self._store.wait(list(keys), timeout)
        except RuntimeError:
            return [
                str(r) for r, key in enumerate(keys) if not self._store.check([key])
            ]
        return []

    def _late(self, waits_for: str) -> CoordinatorUnavailableError:
        return CoordinatorUnavailableError(
            f"Waited for {waits_for} for {self._timeout_seconds:g} s "
            "(PACTRAIN_ATTACH_TIMEOUT).\nAttach the model on all ranks."
        )

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"
