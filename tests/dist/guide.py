"""A page of docs/ as what a person does: its fenced commands, typed on machines.

A block of `sh` begins with a comment that says where: "# on machine 1", "# on machines 2
and 3". A block of `text` after it is what its last command prints: the words of each line,
in order, with "..." for anything. Until that is so the last line of the block is typed
again, as a person does.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```$", re.M | re.S)
DONE = "--- done"


@dataclass
class Step:
    machines: list[int]
    commands: list[str]
    shown: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"on {self.machines}: {'; '.join(self.commands)}"


def steps(page: str) -> list[Step]:
    found: list[Step] = []
    for kind, text in BLOCK.findall(page):
        first, *rest = text.splitlines()
        if kind == "sh":
            where = re.fullmatch(r"# on machines? ([\d, and]+)", first)
            if where is None:
                raise ValueError(f"a block says not where: {first!r}")
            found.append(Step([int(n) for n in re.findall(r"\d", where[1])], rest))
        else:
            found[-1].shown = [first, *rest]
    return found


def shows(said: str, wanted: list[str]) -> bool:
    """Each line's words are there, in this order."""
    place = 0
    for word in (word for line in wanted for word in line.split() if word != "..."):
        place = said.find(word, place) + len(word)
        if place < len(word):
            return False
    return True


class Machine:
    """A shell in a namespace, with a home folder of its own, that a person types into."""

    def __init__(self, namespace: str, home: Path, environment: dict[str, str]) -> None:
        home.mkdir()
        self._namespace = namespace
        self._shell = subprocess.Popen(
            ["ip", "netns", "exec", namespace, "bash", "--norc", "--noprofile", "-m"],
            cwd=home,
            env=environment | {"HOME": str(home)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __enter__(self) -> Machine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Switches it off."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._shell.wait(timeout=300)

    def processes(self) -> list[int]:
        command = ["ip", "netns", "pids", self._namespace]
        return [int(pid) for pid in subprocess.check_output(command, text=True).split()]

    def type(self, command: str) -> tuple[int, str]:
        """Its exit code, and what it printed."""
        assert self._shell.stdin is not None and self._shell.stdout is not None
        self._shell.stdin.write(f"{command}\nprintf '\\n%s %d\\n' '{DONE}' $?\n")
        self._shell.stdin.flush()
        said = ""
        for line in self._shell.stdout:
            if line.startswith(DONE):
                return int(line.split()[-1]), said
            said += line
        raise RuntimeError(f"the shell ended after {command!r}: {said}")


def follow(step: Step, machines: dict[int, Machine], patience: float) -> str:
    """What is wrong with it, in words; empty: nothing."""
    for number in step.machines:
        code, said = 0, ""
        for command in step.commands:
            code, said = machines[number].type(command)
            if code != 0 and not (step.shown and command == step.commands[-1]):
                return f"machine {number}: {command}: exit code {code}: {said}"
        end = time.monotonic() + patience
        while step.shown and not (code == 0 and shows(said, step.shown)):
            if time.monotonic() > end:
                return f"machine {number}: {step.commands[-1]}: not {step.shown}, but: {said}"
            time.sleep(0.5)
            code, said = machines[number].type(step.commands[-1])
    return ""
