"""Notes that ranks leave for each other, over torch.distributed's store."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import Any

from torch.distributed import distributed_c10d

from .errors import CoordinatorUnavailableError


class Board:
    """Notes under one prefix; each is written once and read by anybody.

    Every wait ends within `timeout_seconds` of the board's making.
    """

    def __init__(
        self, store: distributed_c10d.Store, prefix: str, timeout_seconds: float
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._timeout_seconds = timeout_seconds
        self._end = time.monotonic() + timeout_seconds

    def write(self, name: str, note: Any) -> None:
        self._store.set(self._key(name), json.dumps(note))

    def read(self, name: str, waits_for: str) -> Any:
        """The note, as soon as it is there.

        Raises:
          CoordinatorUnavailableError: it was not written in time; names `waits_for`.
        """
        left = max(0.001, self._end - time.monotonic())
        try:
            self._store.wait([self._key(name)], timedelta(seconds=left))
        except RuntimeError as error:
            raise CoordinatorUnavailableError(
                f"Waited for {waits_for} for {self._timeout_seconds:g} s "
                "(PACTRAIN_ATTACH_TIMEOUT) without PACTRAIN_AGENT.\n"
                "Attach the model on all ranks; set PACTRAIN_AGENT on all or on none."
            ) from error
        return json.loads(self._store.get(self._key(name)))

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"
