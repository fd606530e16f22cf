"""The process that keeps embedded daemons, and ends them when the job has ended.

Started by embedded.py as `python -I -S warden.py SETTINGS`; standard library only. It
outlives the trainer that started it: a trainer that is killed cannot tidy up. The
daemons die with this process, whatever ends it.

SETTINGS is JSON: {"folder": the private directory, removed at the end; "trainers":
[[pid, start ticks], ...]; "linger_seconds": how long the daemons go on after the last
of these, for trainers of other hosts}. A line of standard input starts a daemon,
{"argv": [...], "key_file": the job's key, which it gets as an open descriptor, "log":
file of its standard error}, and is answered by {"listening": {...}} or {"error": text,
"status": exit status, if it ended}. One that "waits" (true) is answered by {} at once;
{"tell": text} gives it the line that it waits for, and is answered as above. After the
end of the input it waits until every trainer has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence

# The first attach() waits for this process: no shutil, pathlib and typing at its start,
# which take half as long as the rest.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import types
    from typing import Any

    # A daemon, its program and its log.
    Started = tuple[subprocess.Popen[bytes], str, str]

READY_SECONDS = 30.0
_STOP_SECONDS = 0.5  # Nobody is left who could miss a daemon.
_LAST_LINES = 5
_PR_SET_PDEATHSIG = 1
_SYS_PIDFD_OPEN = 434  # On every architecture; Linux 5.3 and later.

_libc = ctypes.CDLL(None, use_errno=True)


def start_ticks(pid: int) -> int:
    """When the process started: tells it from a later one of the same number.

    Raises:
      OSError: there is no such process.
    """
    with open(f"/proc/{pid}/stat") as file:
        stat = file.read()
    return int(stat.rpartition(")")[2].split()[19])  # Field 22; proc(5).


def open_pidfd(pid: int) -> int:
    """As os.pidfd_open(), which Pythons built against old kernel headers lack.

    Raises:
      ProcessLookupError: there is no such process.
      OSError: the kernel has no pidfds.
    """
    fd = int(_libc.syscall(_SYS_PIDFD_OPEN, pid, 0))
    if fd < 0:
        raise OSError(ctypes.get_errno(), f"pidfd_open of process {pid}")
    return fd


def open_trainers(trainers: Iterable[Sequence[int]]) -> list[int]:
    """A pidfd of each that still runs."""
    opened = []
    for pid, ticks in trainers:
        try:
            fd = open_pidfd(pid)
        except ProcessLookupError:
            continue
        with contextlib.suppress(OSError):
            if start_ticks(pid) == ticks:
                opened.append(fd)
                continue
        os.close(fd)
    return opened


def wait_for_all(pidfds: Iterable[int]) -> None:
    """Returns when all these processes have ended, in whatever way."""
    poll = select.poll()
    left = set(pidfds)
    for fd in left:
        poll.register(fd, select.POLLIN)
    while left:
        for fd, _ in poll.poll():
            poll.unregister(fd)
            os.close(fd)
            left.discard(fd)


def start_daemon(
    argv: Sequence[str], key_file: str, log: str, waits: bool = False
) -> subprocess.Popen[bytes]:
    """Starts a daemon that is killed when this process, which has one thread, ends.

    `waits`: it will be told something on its standard input.

    Raises:
      OSError: it cannot be run, the key not be read or the log not be written.
    """
    me = os.getpid()

    def die_with_me() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != me:
            os._exit(1)

    with open(log, "ab") as stderr, open(key_file, "rb") as key:
        # Neither in its environment nor on its command line, which others can read.
        return subprocess.Popen(
            [argv[0], f"--job-key-file=/proc/self/fd/{key.fileno()}", *argv[1:]],
            pass_fds=[key.fileno()],
            stdin=subprocess.PIPE if waits else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            preexec_fn=die_with_me,  # noqa: PLW1509  (There is one thread.)
        )


def wait_until_listening(process: subprocess.Popen[bytes]) -> dict[str, str]:
    """The addresses in a daemon's line `listening a=... b=...`.

    Raises:
      RuntimeError: it ended, or did not write the line in time.
    """
    assert process.stdout is not None
    end = time.monotonic() + READY_SECONDS
    text = b""
    while b"\n" not in text:
        left = end - time.monotonic()
        if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
            raise RuntimeError(f"did not listen within {READY_SECONDS:g} s")
        part = os.read(process.stdout.fileno(), 4096)
        if not part:
            raise RuntimeError(f"ended with status {end_daemon(process)}")
        text += part
    words = text.splitlines()[0].decode("utf-8", "replace").split()
    return dict(word.split("=", 1) for word in words if "=" in word)


def end_daemon(process: subprocess.Popen[bytes]) -> int:
    """Stops it, gently if it listens to that; its exit status."""
    process.terminate()
    try:
        return process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def last_lines(log: str) -> str:
    """The end of a log, indented; empty if there is none."""
    try:
        with open(log, errors="replace") as file:
            lines = file.read().splitlines()[-_LAST_LINES:]
    except OSError:
        return ""
    return "".join(f"\n  {line}" for line in lines)


def tell(process: subprocess.Popen[bytes], text: str) -> None:
    """Gives it the line that it waits for."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # It ended, and its log says why.
        process.stdin.write(text.encode() + b"\n")
        process.stdin.close()


def answer(request: Mapping[str, Any], daemons: list[Started]) -> dict[str, Any]:
    """Does what one line of the input asks for."""
    if "tell" in request:
        process, program, log = next(s for s in daemons if s[0].stdin)
        tell(process, request["tell"])
    else:
        program, log = request["argv"][0], request["log"]
        try:
            process = start_daemon(**request)
        except (OSError, subprocess.SubprocessError) as error:
            return {"error": f"{program} cannot be started: {error}"}
        daemons.append((process, program, log))
        if process.stdin:
            return {}
    try:
        return {"listening": wait_until_listening(process)}
    except (OSError, RuntimeError) as error:
        text = f"{program} {error}{last_lines(log)}"
        return {"error": text, "status": process.returncode}


def _import_shutil() -> types.ModuleType:
    """Once nobody waits, but before the end: the library may be gone by then."""
    import shutil  # noqa: PLC0415

    return shutil


def main() -> None:
    settings = json.loads(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    daemons: list[Started] = []
    try:
        trainers = open_trainers(settings["trainers"])
        for line in sys.stdin:
            print(json.dumps(answer(json.loads(line), daemons)), flush=True)
        _import_shutil()
        wait_for_all(trainers)
        time.sleep(settings["linger_seconds"])
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for process, *_ in daemons:  # The agent, then its coordinator.
            end_daemon(process)
        _import_shutil().rmtree(settings["folder"], ignore_errors=True)


if __name__ == "__main__":
    main()
