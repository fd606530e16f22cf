"""docs/three-machines.md, word by word: three network namespaces, tarball and wheel."""

from __future__ import annotations

import shutil
import sys
import sysconfig
import time
from contextlib import ExitStack
from pathlib import Path

import guide
import pytest
from conftest import ROOT, the_one

sys.path.insert(0, str(ROOT))

from bench.testbed import NamespaceTestbed, run, why_no_namespaces

PAGE = ROOT / "docs/three-machines.md"
# Stands for the machines' sshd: brings a file into the other one's home folder.
SCP = """#!/bin/bash
[[ $# == 3 && $1 == -p && $3 == 192.0.2.?: ]] || { echo "scp: $*" >&2; exit 1; }
number=${3%:}
exec cp -p "$2" "$HOME/../${number##*.}/"
"""

no_machines = pytest.mark.skipif(
    why_no_namespaces() is not None, reason=f"no namespaces: {why_no_namespaces()}"
)


def test_a_page_is_read_as_it_is_typed() -> None:
    (step,) = guide.steps("a\n```sh\n# on machines 2 and 3\nx\ny\n```\n\n```text\na ... c\n```\n")
    assert step == guide.Step([2, 3], ["x", "y"], ["a ... c"])
    assert guide.shows("a  b c", step.shown)
    assert not guide.shows("c a", step.shown)
    with pytest.raises(ValueError, match="not where"):
        guide.steps("```sh\nx\n```\n")


def other_packages(folder: Path) -> str:
    """What pip finds installed already: all that we have, but PacTrain."""
    folder.mkdir()
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "pactrain" not in entry.name.lower() and entry.suffix != ".pth":
            (folder / entry.name).symlink_to(entry)
    return str(folder)


@no_machines
def test_three_machines_by_hand(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "scp").write_text(SCP)
    (tools / "scp").chmod(0o755)
    environment = {
        "PATH": f"{tools}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "PYTHONPATH": other_packages(tmp_path / "packages"),
        "PIP_NO_INDEX": "1",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
    }
    steps = guide.steps(PAGE.read_text())
    if shutil.which("prometheus") is None:
        steps = [step for step in steps if not step.commands[0].startswith("prometheus ")]
    with NamespaceTestbed({"a": 3}, []) as bed, ExitStack() as stack:
        machines = {}
        for number, host in enumerate(bed.hosts, 1):
            assert host.namespace is not None
            run(*f"ip -n {host.namespace} addr add 192.0.2.{number}/24 dev e0".split())
            home = tmp_path / str(number)
            machines[number] = stack.enter_context(
                guide.Machine(host.namespace, home, environment)
            )
            for pattern in ("*.tar.gz", "*.whl"):
                shutil.copy(the_one(pattern), home)
        for step in steps:
            wrong = guide.follow(step, machines, patience=300)
            if wrong:
                logs = "\n".join(
                    f"== {log}\n{log.read_text()[-2000:]}" for log in tmp_path.glob("?/*.log")
                )
                raise AssertionError(f"{step}: {wrong}\n{logs}")
        # The page ends all that it has begun; what a shell is in goes with it.
        for number, machine in machines.items():
            end = time.monotonic() + 300
            while len(machine.processes()) > 1:
                assert time.monotonic() < end, f"machine {number} still runs {machine.processes()}"
                time.sleep(0.1)
