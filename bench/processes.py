"""Child processes that never outlive us: started, read line by line, and stopped together."""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

from bench.closing import Closing

PR_SET_PDEATHSIG = 1
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_libc = ctypes.CDLL(None, use_errno=True)


class ProcessError(RuntimeError):
    """A child ended or stayed silent when it should not; carries the end of its log."""


def _die_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def interrupt_on_signals() -> None:
    """From now on the first signal to stop raises KeyboardInterrupt; more do nothing.

    Also SIGINT where a shell's background job (&) would ignore it: whoever sends it to us
    means us. Only nohup's word stays: SIGHUP is ignored where it was.
    """
    for number in STOPPING:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    for more in STOPPING:  # Nothing may disturb the clean-up.
        signal.signal(more, signal.SIG_IGN)
    raise KeyboardInterrupt


class Child:
    """A running process; stdout comes as lines, stderr goes to `log`."""

    def __init__(self, name: str, argv: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.argv = tuple(argv)
        self.log = log
        self._lines: queue.Queue[str] = queue.Queue()
        with log.open("wb") as stderr:
            # A session of its own: Ctrl-C reaches us only, and we stop the children in order.
            self.process = subprocess.Popen(
                argv,
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        assert self.process.stdout is not None
        reader = threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True)
        reader.start()

    def _read(self, stdout: IO[str]) -> None:
        for line in stdout:
            self._lines.put(line.rstrip("\n"))

    def line(self, timeout_seconds: float) -> str | None:
        """The next line of stdout; None if none came in time (0: if none is there)."""
        try:
            return self._lines.get(timeout=timeout_seconds)
        except queue.Empty:
            return None

    def wait_for(self, word: str, timeout_seconds: float) -> str:
        """The first line with `word` in it. ProcessError if the process ends or time is over."""
        end = time.monotonic() + timeout_seconds
        while time.monotonic() < end:
            ended = self.process.poll() is not None
            line = self.line(0.1)
            if line is not None and word in line:
                return line
            if line is None and ended:
                break
        raise self.error(f"did not print '{word}' within {timeout_seconds:.0f} s")

    def error(self, what: str) -> ProcessError:
        tail = self.log.read_text(errors="replace").splitlines()[-15:]
        status = self.process.poll()
        state = "is running" if status is None else f"ended with status {status}"
        return ProcessError("\n".join([f"{self.name} {what}; it {state}. Its log ends:", *tail]))


class Children(Closing):
    """All children of a run; close() or leaving the with block ends them."""

    def __init__(self, logs: Path, patience_seconds: float = 5.0) -> None:
        self._logs = logs
        self._patience_seconds = patience_seconds
        self._children: list[Child] = []

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str]) -> Child:
        child = Child(name, argv, env, self._logs / f"{name}.log")
        self._children.append(child)
        return child

    def named(self, name: str) -> Child:
        """The newest that is called so. KeyError: there is none."""
        for child in reversed(self._children):
            if child.name == name:
                return child
        raise KeyError(name)

    def check(self) -> None:
        """ProcessError if any child failed."""
        for child in self._children:
            if child.process.poll() not in (None, 0):
                raise child.error("failed")

    def wait(self, timeout_seconds: float) -> None:
        """Until all have ended well; ProcessError otherwise."""
        end = time.monotonic() + timeout_seconds
        for child in self._children:
            try:
                child.process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise child.error(f"did not end within {timeout_seconds:.0f} s") from None
        self.check()

    def close(self) -> None:
        """Asks all to end, and kills what is still there after the patience."""
        running = [c.process for c in self._children if c.process.poll() is None]
        for process in running:
            _signal(process, signal.SIGTERM)
        end = time.monotonic() + self._patience_seconds
        for process in running:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                _signal(process, signal.SIGKILL)
                process.wait()
        self._children.clear()


def _signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """To the whole session of a child."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
