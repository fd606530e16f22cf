"""Which ends of a script leave the job, and which lose a rank."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pactrain import script_end, session

SCRIPT = """
import atexit, importlib.util, multiprocessing, sys, threading

spec = importlib.util.spec_from_file_location("script_end", sys.argv[1])
script_end = importlib.util.module_from_spec(spec)  # Without torch: it is quicker.
spec.loader.exec_module(script_end)

def fail():
    raise ValueError("mine")

def end(how):
    {"returns": lambda: None, "raises": fail, "exits": sys.exit,
     "exits with 1": lambda: sys.exit(1),
     "is interrupted": lambda: (_ for _ in ()).throw(KeyboardInterrupt()),
     "has caught": caught, "has a thread that raises": thread}[how]()

def caught():
    try:
        fail()
    except ValueError:
        pass

def thread():
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()

def child(how):
    atexit.register(lambda: print("failed" if script_end.script_failed() else "done"))
    script_end.watch_this_process()
    end(how)

if __name__ == "__main__":
    if sys.argv[3:] == ["spawn"]:
        process = multiprocessing.get_context("spawn").Process(
            target=child, args=(sys.argv[2],)
        )
        process.start()
        process.join()
    else:
        if sys.argv[3:] == ["interactive"]:
            sys.ps1 = ">>> "
        child(sys.argv[2])
"""


@pytest.mark.parametrize(
    ("how", "where", "end"),
    [
        ("returns", "", "done"),
        ("raises", "", "failed"),
        ("is interrupted", "", "failed"),
        ("exits", "", "done"),
        ("exits with 1", "", "done"),
        ("has caught", "", "done"),
        ("has a thread that raises", "", "done"),
        ("raises", "interactive", "done"),
        ("returns", "spawn", "done"),
        ("exits", "spawn", "done"),
        ("raises", "spawn", "failed"),
        ("exits with 1", "spawn", "failed"),  # As torch.multiprocessing.spawn does it.
    ],
)
def test_a_script_that_ends_by_an_exception_has_failed(tmp_path, how, where, end):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, script, script_end.__file__, how, *where.split()]
    ended = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=60
    )
    assert ended.stdout.split() == [end], ended.stderr


@pytest.mark.parametrize("failed", [False, True])
def test_a_rank_whose_script_failed_does_not_leave(wrap, net, monkeypatch, failed):
    wrapped = wrap(net)
    monkeypatch.setattr(session, "script_failed", lambda: failed)
    session._close_all()
    assert wrapped.native.closed != failed
