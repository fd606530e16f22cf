"""What has been measured: a file in bench/results for each command, and whether it still holds.

    {"command", "commit", "date", "processor", "memory", "sources", "figures"}

`figures` is what the command wrote under out/. It is stale once one of `sources`, folders and
files, differs from what it was at `commit`.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from bench.machine import processor as processor

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path("bench/results")
# No figure depends on them, so they may differ from the commit while something is measured.
TEXTS = (":(exclude)docs", ":(exclude)*.md", f":(exclude){FOLDER}")
NO_SOURCES = (*TEXTS, ":(exclude)*_test.cc", ":(exclude)*test_*.py", ":(exclude)*testdata*")
BUILD = (".bazelrc", "BUILD", "WORKSPACE", "third_party", "tools/bazel_env", "tools/build",
         "tools/packages", "tools/requirements.txt", "tools/setup")  # fmt: skip
PACTRAIN = (*BUILD, "agent", "base", "config", "coordinator", "kernels", "proto", "protocol",
            "python_client/src", "trainer")  # fmt: skip

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Measurement:
    """One command; `short` is what makes it take less where only the machinery is tried."""

    name: str
    module: str
    make: str  # What a user types.
    out: str  # Where it writes its figures.
    sources: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    short: tuple[str, ...] = ()  # Arguments, and variables as NAME=value.
    needs_data: bool = False  # PACTRAIN_DATA's.
    plot: str = ""
    passed: tuple[str, ...] = ()  # Variables of the caller's, which the command then shows.

    def command(self, short: bool, env: Mapping[str, str]) -> str:
        if not short or not self.short:
            set_ = [f" {name}={env[name]}" for name in self.passed if env.get(name)]
            return "".join([self.make, *set_])
        settings = [f"{name}={value}" for name, value in self.env.items()]
        settings += [word for word in self.short if not word.startswith("-")]
        options = [word for word in self.short if word.startswith("-")]
        return " ".join([*settings, ".venv/bin/python", "-m", self.module, *options])


def modules(module: str) -> tuple[str, ...]:
    """The files of a module of bench and of all that it imports or starts by name."""
    found = [module]
    for name in found:  # Grows meanwhile.
        for node in ast.walk(ast.parse((ROOT / path_of(name)).read_text())):
            named: list[str] = []
            if isinstance(node, ast.Import):
                named = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                named = [str(node.module), *(f"{node.module}.{a.name}" for a in node.names)]
            elif isinstance(node, ast.Constant):  # python -m bench.demo_train
                named = [str(node.value)]
            found += [one for one in dict.fromkeys(named)
                      if re.fullmatch(r"bench\.\w+", one) and one not in found
                      and (ROOT / path_of(one)).exists()]  # fmt: skip
    return tuple(sorted(map(path_of, found)))


def path_of(module: str) -> str:
    return f"{module.replace('.', '/')}.py"


def exchange(rate: str) -> Measurement:
    return Measurement(f"exchange-{rate}", "bench.exchange", f"make bench-exchange RATE={rate}",
                       "bench-exchange.json", (*PACTRAIN, *modules("bench.exchange")),
                       {"RATE": rate}, ("ROUNDS=1",), passed=("ROUNDS",))  # fmt: skip


def demo(data: str, make: str, env: Mapping[str, str]) -> Measurement:
    return Measurement(f"demo-{data}", "bench.demo", make, "demo/summary.json",
                       (*PACTRAIN, *modules("bench.demo")), env, ("--steps=30",),
                       needs_data=not env, plot="demo/plot.png")  # fmt: skip


MEASUREMENTS = (
    demo("digits", "make demo", {"PACTRAIN_DATA": ""}),
    demo("cifar10", "make demo PACTRAIN_DATA=folder", {}),
    Measurement("bytes", "bench.bytes", "make bench-bytes", "bench-bytes.json",
                (*PACTRAIN, *modules("bench.bytes"))),
    exchange("100mbit"),
    exchange("500mbit"),
    exchange("1gbit"),
    Measurement("tls", "bench.tls", "make bench-tls", "bench-tls.json",
                (*PACTRAIN, *modules("bench.tls")), short=("--rounds=2",)),
    Measurement("kernels", "bench.kernels", "make bench-kernels", "bench-kernels.json",
                (*BUILD, "kernels", "base/crew.h", "base/crew.cc", "bench/BUILD",
                 "bench/kernels_benchmark.cc", *modules("bench.kernels")),
                short=("--repetitions=1",)),
)  # fmt: skip


class GitError(RuntimeError):
    """Says which git command failed and why."""


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    if done.returncode != 0:
        raise GitError(f"'git {' '.join(arguments)}' failed: {done.stderr.strip()}")
    return done.stdout.strip()


def commit_of(root: Path) -> str:
    """The commit that the files here are. GitError: they differ from it, or there is none."""
    changed = git(root, "status", "--porcelain", "--", ".", *TEXTS).splitlines()
    if changed:
        names = ", ".join(line.split(maxsplit=1)[1] for line in changed[:5])
        raise GitError(f"these files are not those of the last commit: {names}; figures are of a"
                       " commit: commit or stash them, then measure")  # fmt: skip
    return git(root, "rev-parse", "--short=10", "HEAD")


def is_stale(root: Path, result: Result) -> bool | None:
    """None: this clone lacks the commit (a shallow one, or history was rewritten), or is none."""
    commit = result["commit"]
    try:
        git(root, "cat-file", "-e", f"{commit}^{{commit}}")
        return git(root, "diff", "--name-only", commit, "HEAD", "--",
                   *result["sources"], *NO_SOURCES) != ""  # fmt: skip
    except (GitError, OSError):
        return None


def is_short(name: str, result: Result) -> bool:
    """Whether it is not of the full command: figures of one round, or of a few steps."""
    make = next((m.make for m in MEASUREMENTS if m.name == name), "")
    full = rf"{re.escape(make)}( ROUNDS=(?!1$)\d+)?"
    return re.fullmatch(full, result["command"]) is None


def load(root: Path) -> dict[str, Result]:
    """All that there are, by name."""
    files = sorted((root / FOLDER).glob("*.json"))
    return {file.stem: json.loads(file.read_text()) for file in files}


def record(root: Path, measurement: Measurement, command: str, commit: str, figures: Any) -> None:
    result = {
        "command": command,
        "commit": commit,
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
        "processor": processor(),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "sources": measurement.sources,
        "figures": figures,
    }
    path = root / FOLDER / f"{measurement.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
