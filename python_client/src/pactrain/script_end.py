"""How a child of multiprocessing ends: having done what it was to do, or not.

Of the main process its exit status tells that, but only after Python's own end
(pt_close_at_exit). multiprocessing catches what ends a child, and its forked children
end by os._exit().
"""

from __future__ import annotations

import functools
import multiprocessing
import multiprocessing.util
import sys

_failed = False


def is_child() -> bool:
    """Whether multiprocessing started this process."""
    return multiprocessing.parent_process() is not None


def child_failed() -> bool:
    """At exit: whether an exception or a status that is not 0 ends this child."""
    return _failed


@functools.cache
def watch_this_process() -> None:
    """To be called before its end."""
    if is_child():
        multiprocessing.util.Finalize(None, _look, exitpriority=0)


def _look() -> None:
    """While the exception that ends a child is on its way."""
    global _failed
    error = sys.exc_info()[1]
    done = isinstance(error, SystemExit) and not error.code
    _failed = error is not None and not done
