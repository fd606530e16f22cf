"""A quarter of a core for a process and its children, by cgroup where there are any."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

# About a step. Of a longer one whoever computes takes a part in a row, which few steps notice,
# while what waits for answers is in the way of all of them: they could not be compared.
PERIOD_US = 4_000
QUARTER_US = PERIOD_US // 4
ROOT = Path("/sys/fs/cgroup")


def _folder() -> tuple[Path, dict[str, str]] | None:
    name = f"pactrain-attack-{os.getpid()}"
    if (ROOT / "cgroup.controllers").exists():
        return ROOT / name, {"cpu.max": f"{QUARTER_US} {PERIOD_US}"}
    if (ROOT / "cpu").is_dir():
        files = {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": str(QUARTER_US)}
        return ROOT / "cpu" / name, files
    return None


@contextlib.contextmanager
def quarter_core() -> Iterator[Path | None]:
    """The file that a process's number is to be written to; None: there is no such limit here."""
    found = _folder()
    if found is None:
        yield None
        return
    folder, files = found
    try:
        folder.mkdir()
        for name, value in files.items():
            (folder / name).write_text(value)
    except OSError:  # Not root, or the controller is not ours to use.
        with contextlib.suppress(OSError):
            folder.rmdir()
        yield None
        return
    try:
        yield folder / "cgroup.procs"
    finally:
        with contextlib.suppress(OSError):  # Who is in it ends a moment later.
            folder.rmdir()
