"""The console command is the program that lies in the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pactrain import command

RUN = (
    "import pathlib, sys; from pactrain import command; "
    "command.ADMIN = pathlib.Path(sys.argv.pop(1)); command.main()"
)


def run(package: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`pactrain ARGUMENTS` as if the package lay in this folder."""
    program = package / "_native" / command.ADMIN.name
    argv = [sys.executable, "-c", RUN, str(program), *arguments]
    return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60)


def test_arguments_and_exit_code_are_those_of_the_program(tmp_path: Path) -> None:
    program = tmp_path / "_native" / command.ADMIN.name
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "got $*"\nexit 7\n')
    program.chmod(0o755)
    done = run(tmp_path, "doctor", "--json")
    assert done.stdout == "got doctor --json\n"
    assert done.returncode == 7


def test_a_missing_program_is_said_in_words(tmp_path: Path) -> None:
    done = run(tmp_path, "doctor")
    assert done.returncode == 1
    assert "pactrain-admin cannot be run: No such file or directory" in done.stderr
    assert "install the wheel again" in done.stderr


def test_the_package_has_the_console_command() -> None:
    project = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert '[project.scripts]\npactrain = "pactrain.command:main"\n' in project
