"""Children are heard, checked and never outlive us."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bench.processes import Children, ProcessError


def python(script: str) -> list[str]:
    return [sys.executable, "-u", "-c", script]


def test_a_failed_child_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        child = children.start("broken", python("raise SystemExit('no such file')"), {})
        child.process.wait(30)
        with pytest.raises(ProcessError, match=r"(?s)broken failed.*status 1.*no such file"):
            children.check()


def test_waiting_for_a_word_ends_when_the_child_does(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        child = children.start("short", python("print('hello')"), {})
        with pytest.raises(ProcessError, match="did not print 'listening'"):
            child.wait_for("listening", 30)


def test_close_also_ends_a_child_that_ignores_sigterm(tmp_path: Path) -> None:
    script = (
        "import signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('up')\n"
        "signal.pause()\n"
    )
    children = Children(tmp_path, patience_seconds=0.2)
    child = children.start("stubborn", python(script), {})
    child.wait_for("up", 30)
    children.close()
    assert not os.path.exists(f"/proc/{child.process.pid}")


def test_signals_to_stop_are_heard_also_in_a_background_job_but_not_nohups(tmp_path: Path) -> None:
    script = (
        "import signal\n"
        "from bench.processes import STOPPING, interrupt_on_signals\n"
        "for number in STOPPING:\n"
        "    signal.signal(number, signal.SIG_IGN)\n"
        "interrupt_on_signals()\n"
        "signal.raise_signal(signal.SIGHUP)\n"
        "try:\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    with Children(tmp_path) as children:
        children.start("job", python(script), {}).wait_for("interrupted", 30)
