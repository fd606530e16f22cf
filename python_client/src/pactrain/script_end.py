"""How this process ends: having done what it was to do, or by an exception."""

from __future__ import annotations

import functools
import multiprocessing
import multiprocessing.util
import sys

_failed_as_child = False


def script_failed() -> bool:
    """At exit: whether an exception that nobody caught ends the script.

    sys.exit() in the main process does not count, whatever its status: by then nothing
    tells it from a script that is done. In an interactive interpreter an exception ends
    nothing.
    """
    uncaught = getattr(sys, "last_value", None) is not None
    return _failed_as_child or (uncaught and not hasattr(sys, "ps1"))


@functools.cache
def watch_this_process() -> None:
    """For children of multiprocessing, which catches exceptions and then exits."""
    if multiprocessing.parent_process() is not None:
        multiprocessing.util.Finalize(None, _look, exitpriority=0)


def _look() -> None:
    """While the exception that ends a child is on its way."""
    global _failed_as_child
    error = sys.exc_info()[1]
    done = isinstance(error, SystemExit) and not error.code
    _failed_as_child = error is not None and not done
