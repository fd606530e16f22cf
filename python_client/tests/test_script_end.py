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
    atexit.register(lambda: print("failed" if script_end.child_failed() else "done"))
    assert script_end.is_child()
    script_end.watch_this_process()
    end(how)

if __name__ == "__main__":
    assert not script_end.is_child()
    process = multiprocessing.get_context("spawn").Process(
        target=child, args=(sys.argv[2],)
    )
    process.start()
    process.join()
"""


@pytest.mark.parametrize(
    ("how", "end"),
    [
        ("returns", "done"),
        ("raises", "failed"),
        ("is interrupted", "failed"),
        ("exits", "done"),
        ("exits with 1", "failed"),  # As torch.multiprocessing.spawn does it.
        ("has caught", "done"),
        ("has a thread that raises", "done"),
    ],
)
def test_a_child_that_ends_by_an_exception_or_a_status_has_failed(tmp_path, how, end):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, script, script_end.__file__, how]
    ended = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=60
    )
    assert ended.stdout.split() == [end], ended.stderr


@pytest.mark.parametrize("failed", [False, True])
def test_a_child_that_failed_does_not_leave(wrap, net, monkeypatch, failed):
    wrapped = wrap(net)
    monkeypatch.setattr(session, "is_child", lambda: True)
    monkeypatch.setattr(session, "child_failed", lambda: failed)
    session._close_all()
    assert wrapped.native.closed != failed
    assert not wrapped.native.closed_at_exit


def test_the_exit_status_of_a_script_says_whether_it_leaves(wrap, net):
    wrapped = wrap(net)
    session._close_all()
    assert wrapped.native.closed_at_exit
    assert wrapped.session.closed
