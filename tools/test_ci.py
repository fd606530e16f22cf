"""`.ci/run` runs tests and verify side by side, and forgets neither's failure."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Instead of make: says what it makes, and fails where FAILING has that.
MAKE = """#!/bin/bash
echo "made ${@: -1}"
cat "$GROUPED" >"out/grouped-${@: -1}"
[[ " $FAILING " != *" ${@: -1} "* ]]
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / ".ci").mkdir()
    (tmp_path / "tools").mkdir()
    (tmp_path / "out").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run")
    for stub, text in (("tools/setup", "#!/bin/bash\n"), ("make", MAKE)):
        (tmp_path / stub).write_text(text)
        (tmp_path / stub).chmod(0o755)
    (tmp_path / "grouped").write_text("1\n")  # Not the kernel's own setting.
    return tmp_path


def run(tree: Path, failing: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": f"{tree}{os.pathsep}{os.environ['PATH']}", "FAILING": failing}
    env["GROUPED"] = str(tree / "grouped")
    return subprocess.run([tree / ".ci/run"], env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("failing", "said"),
    [
        ("test", "ci: failed: test"),
        ("verify", "ci: failed: verify"),
        ("test verify", "ci: failed: test verify"),
    ],
)
def test_a_failure_of_either_fails_it_and_both_are_shown(
    tree: Path, failing: str, said: str
) -> None:
    done = run(tree, failing)
    assert done.returncode != 0
    lines = done.stdout.splitlines()
    assert {"made test", "made verify", said} <= set(lines)


def test_it_passes_if_all_do_and_says_what_each_section_took(tree: Path) -> None:
    done = run(tree, "")
    assert done.returncode == 0, done.stderr
    for section in ("setup", "build", "tests and verify", "attacks"):
        assert f"== ci: {section} took " in done.stdout
    assert "ci: failed" not in done.stdout


def test_nothing_is_tested_where_the_build_fails(tree: Path) -> None:
    done = run(tree, "build")
    assert done.returncode != 0
    assert "made test" not in done.stdout


@pytest.mark.parametrize(("failing", "before"), [("", "1\n"), ("test", "1\n"), ("", "0\n")])
def test_low_priority_counts_in_all_sessions_while_it_runs(
    tree: Path, failing: str, before: str
) -> None:
    """Else verify, which has a session of its own, takes half of the machine from the tests."""
    (tree / "grouped").write_text(before)
    run(tree, failing)
    assert (tree / "out/grouped-test").read_text() == "0\n"
    assert (tree / "out/grouped-verify").read_text() == "0\n"
    assert (tree / "grouped").read_text() == before
