"""The demo can be stopped at any stage, and leaves nothing: no process, namespace or file.

A tiny copy of it: of its runs only the one with all daemons, with one trainer a site and
weights that were never trained.
"""

from __future__ import annotations

import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bench import model, testbed
from bench.processes import Child

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 300.0  # For each stage; far more than it takes.
TINY = """
import os, sys
from pathlib import Path
from bench import demo

run = demo.Demo.run

def only_pactrain(self, kind, *rest):
    return run(self, kind, *rest) if kind == "pactrain" else demo.Outcome()

folder = Path(sys.argv[1])
demo.OUT = folder / "out"
demo.TRAINERS_PER_HOST = 1
demo.WORLD = 3
demo.Demo.run = only_pactrain
demo.pretrain = lambda: str(folder / "weights.pt")
demo.demo_report.print_model = lambda *_: None
demo.demo_report.finish = lambda *_: False  # Its goals are missed.
sys.exit(demo.main(sys.argv[2:], os.environ))
"""


class Demo:
    def __init__(self, folder: Path, steps: int, keep: bool = False, check: bool = False) -> None:
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.mark = f"PACTRAIN_TEST_MARK={uuid.uuid4().hex}"
        torch.save(model.make_model().state_dict(), folder / "weights.pt")
        name, value = self.mark.split("=")
        env = {name: value, "KEEP": "1" if keep else "", "CHECK": "1" if check else "",
               "TMPDIR": str(self.temporary),
               "PACTRAIN_DATA": "", "PYTHONPATH": str(ROOT)}  # fmt: skip
        argv = [sys.executable, "-c", TINY, str(folder), f"--steps={steps}"]
        self.child = Child("demo", argv, env, folder / "demo.log")

    def interrupt(self) -> int:
        """Ctrl-C; the exit status."""
        self.child.process.send_signal(signal.SIGINT)
        self.child.wait_for("stopped; everything that was started is gone", SECONDS)
        return self.child.process.wait(SECONDS)

    def processes(self) -> list[str]:
        """The command lines of all that it started and that still run."""
        return [
            (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and self.mark.encode() in environment(entry)
        ]

    def namespaces(self) -> list[str]:
        if testbed.why_no_namespaces() is not None:
            return []
        prefix = f"{testbed.PREFIX}{self.child.process.pid}-"
        return [name for name in testbed.namespaces() if name.startswith(prefix)]

    def left(self) -> list[object]:
        """All that is still there of it, apart from its logs."""
        # Torch makes an empty cache of its own, which later runs share.
        files = [f for f in self.temporary.iterdir() if "torchinductor" not in f.name]
        return [*self.processes(), *self.namespaces(), *files]


def environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:  # It has ended, or is somebody else's.
        return b""


@pytest.fixture
def demos(tmp_path: Path) -> Iterator[list[Demo]]:
    made: list[Demo] = []
    yield made
    for demo in made:
        if demo.child.process.poll() is None:
            demo.child.process.kill()  # Its children die with it.
            demo.child.process.wait()


def test_ctrl_c_while_it_trains_leaves_nothing(tmp_path: Path, demos: list[Demo]) -> None:
    demo = Demo(tmp_path, steps=100_000)
    demos.append(demo)
    demo.child.wait_for("PacTrain: from step 1: COMPACTED fp32", SECONDS)
    assert demo.interrupt() == 130
    assert demo.left() == []


def test_keep_leaves_it_up_until_ctrl_c(tmp_path: Path, demos: list[Demo]) -> None:
    demo = Demo(tmp_path, steps=2, keep=True)
    demos.append(demo)
    demo.child.wait_for("KEEP=1: still running until Ctrl-C", SECONDS)
    demo.child.wait_for("agent c0", SECONDS)
    assert sum("pactrain-agent" in line for line in demo.processes()) >= 3
    assert any("pactrain-coordinator" in line for line in demo.processes())
    assert demo.interrupt() == 130
    assert demo.left() == []


@pytest.mark.parametrize(("check", "status"), [(False, 0), (True, 1)])
def test_a_missed_goal_fails_only_a_check(
    tmp_path: Path, demos: list[Demo], check: bool, status: int
) -> None:
    demo = Demo(tmp_path, steps=2, check=check)
    demos.append(demo)
    assert demo.child.process.wait(SECONDS) == status
    assert ("a goal is not met" in (tmp_path / "demo.log").read_text()) == check
