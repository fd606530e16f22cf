"""Both daemons as systemd starts them: what they tell it, and when."""

from __future__ import annotations

import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemons import BIN
from patience import PATIENCE_SECONDS


class Manager:
    """The socket that NOTIFY_SOCKET names."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "notify"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        self._socket.settimeout(PATIENCE_SECONDS)

    def told(self) -> str:
        return self._socket.recv(4096).decode()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not pytest's: its path may be too long for a socket.
    with tempfile.TemporaryDirectory(prefix="pactrain-e2e-") as folder:
        yield Path(folder)


def start(manager: Manager, folder: Path, daemon: str) -> subprocess.Popen[bytes]:
    flags = ["--insecure-local", "--listen=127.0.0.1:0", "--listen-metrics=127.0.0.1:0"]
    if daemon == "agent":
        # Nobody is there: it is ready all the same, and waits.
        flags += ["--name=a", "--coordinator=127.0.0.1:1", f"--socket=unix:{folder}/agent.sock"]
    else:
        flags += [f"--state-dir={folder}/state"]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [str(BIN / f"pactrain-{daemon}"), *flags],
            env={"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "100000"},
            stdout=subprocess.DEVNULL,
            stderr=log,
        )


@pytest.mark.parametrize("daemon", ["coordinator", "agent"])
def test_it_says_when_it_is_ready_that_it_lives_and_that_it_stops(folder, daemon):
    manager = Manager(folder)
    process = start(manager, folder, daemon)
    try:
        assert manager.told() == "READY=1"
        assert [manager.told() for _ in range(3)] == ["WATCHDOG=1"] * 3
        process.send_signal(signal.SIGTERM)
        while (word := manager.told()) == "WATCHDOG=1":
            pass
        assert word == "STOPPING=1"
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        manager.close()


@pytest.mark.parametrize("daemon", ["coordinator", "agent"])
def test_a_reload_ends_nothing_and_is_logged(folder, daemon):
    manager = Manager(folder)
    process = start(manager, folder, daemon)
    try:
        assert manager.told() == "READY=1"
        process.send_signal(signal.SIGHUP)
        # It lives, and says so each 50 ms.
        while "the settings were read again" not in (folder / "log").read_text():
            assert manager.told() == "WATCHDOG=1"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        manager.close()
