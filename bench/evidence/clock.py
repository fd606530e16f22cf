"""When in a step something is to happen."""

from __future__ import annotations

import time


class Clock:
    """Of one step."""

    def __init__(self) -> None:
        self._start = 0.0

    def begin(self) -> None:
        self._start = time.monotonic()

    def sleep_until(self, seconds: float) -> None:
        """After the beginning: what else this process does meanwhile makes no step longer."""
        if (left := self._start + seconds - time.monotonic()) > 0:
            time.sleep(left)
