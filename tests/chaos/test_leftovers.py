"""What a run leaves behind is found, and what it has taken away is not."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import leftovers


def test_processes_and_sockets_of_a_run_are_found(tmp_path: Path) -> None:
    assert leftovers.of_run(tmp_path) == frozenset()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path := tmp_path / "a.sock"))
        assert leftovers.of_run(tmp_path) == {f"socket {path}"}
        path.unlink()
    waits = [sys.executable, "-c", "import sys; print('waits', flush=True); sys.stdin.read()"]
    with subprocess.Popen(
        [*waits, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (found,) = leftovers.of_run(tmp_path)
        assert found.startswith(f"process {process.pid}: ")
        process.kill()
    assert leftovers.of_run(tmp_path) == frozenset()
