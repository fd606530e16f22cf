"""Jobs that start their own daemons: their environment, and what they leave behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from pathlib import Path

from daemons import BIN
from patience import PATIENCE, PATIENCE_SECONDS


class EmbeddedJobs:
    """Jobs without PACTRAIN_AGENT whose private directories lie in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def environment(self, node: int = 0) -> dict[str, str]:
        return {
            "PACTRAIN_AGENT": "",
            "PACTRAIN_JOB_ID": "",
            "PACTRAIN_ATTACH_TIMEOUT": PATIENCE,
            "PACTRAIN_DAEMON_DIR": str(BIN.absolute()),
            "TMPDIR": str(self.folder),
            "GROUP_RANK": str(node),
        }

    def directories(self) -> list[str]:
        """Those of nodes; torchrun leaves some of its own."""
        return sorted(path.name for path in self.folder.glob("pactrain-*"))

    def processes(self, name: str = "") -> list[int]:
        """Wardens and daemons of these jobs; only those with `name` in their command."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                command = (entry / "cmdline").read_text().replace("\0", " ")
            except (OSError, UnicodeDecodeError):
                continue
            if entry.name.isdigit() and f"{self.folder}/pactrain-" in command:
                found += [int(entry.name)] if name in command else []
        return found

    def kill(self, name: str) -> None:
        for pid in self.processes(name):
            with contextlib.suppress(ProcessLookupError):  # It has just ended by itself.
                os.kill(pid, signal.SIGKILL)

    def must_leave_nothing(self) -> None:
        assert self.wait_for_end(), self.processes()
        assert self.directories() == []

    def wait_for_end(self) -> bool:
        """Whether wardens and daemons that run now end in time."""
        end = time.monotonic() + PATIENCE_SECONDS
        for pid in self.processes():
            try:
                fd = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            left = max(0.0, end - time.monotonic())
            ended = bool(select.select([fd], [], [], left)[0])
            os.close(fd)
            if not ended:
                return False
        return True
