"""Who runs what a step has to wait for: the caller, or a thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Protocol, TypeAlias

Work: TypeAlias = "Callable[[], object]"


class Waiter(Protocol):
    def run(self, work: Work) -> None: ...
    def finish(self) -> None: ...
    def stop(self, timeout_seconds: float) -> bool: ...


class Caller:
    """Runs what it is given when it is asked to finish."""

    def __init__(self) -> None:
        self._work: Work | None = None

    def run(self, work: Work) -> None:
        self._work = work

    def finish(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work()

    def stop(self, timeout_seconds: float) -> bool:
        self.finish()
        return True


class WaiterThread:
    """One thread that runs what it is given, in order; daemonic."""

    def __init__(self, begin: Work = lambda: None) -> None:
        """The thread calls `begin` first."""
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=_run, args=(begin, self._queue), name="pactrain-waiter", daemon=True
        )
        self._thread.start()

    def run(self, work: Work) -> None:
        self._queue.put(work)

    def finish(self) -> None:
        """Nothing: it need not be asked."""

    def stop(self, timeout_seconds: float) -> bool:
        self._queue.put(None)
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()


class DeviceThread(WaiterThread):
    """The same; finish() waits until all is done that was given before."""

    def __init__(self, begin: Work) -> None:
        super().__init__(begin)
        self._idle = threading.Condition()
        self._open = 0

    def run(self, work: Work) -> None:
        def counted() -> None:
            try:
                work()
            finally:
                with self._idle:
                    self._open -= 1
                    self._idle.notify_all()

        with self._idle:
            self._open += 1
        super().run(counted)

    def finish(self) -> None:
        with self._idle:  # Each piece of work has a bound of its own.
            self._idle.wait_for(lambda: not self._open)


def _run(begin: Work, work: queue.SimpleQueue[Work | None]) -> None:
    begin()
    while (item := work.get()) is not None:
        item()
        del item
