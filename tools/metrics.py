"""Writes docs/metrics.md from what the daemons in out/bin list (--list-metrics).

tools/metrics.py            writes it
tools/metrics.py --check    exit status 1 if it is stale
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs" / "metrics.md"
HEAD = """\
# Metrics

Made from the programs by `tools/metrics.py`; do not edit. How to scrape them, and what to build
on them: [monitoring.md](monitoring.md).

Label `training_job` is the job's name: Prometheus sets `job` itself. `model` counts the attached
models of a job from 0. Series of a job come with the job, with zeros from the start, at most 200
for each attached model; an agent keeps those of ended jobs until it stops, and a coordinator those
of the 100 that ended last in order and the 100 that failed last. An agent's counters grow since it
saw the job first.
"""


def page() -> str:
    """As it is to be; CalledProcessError or OSError if a daemon cannot list its metrics."""
    text = HEAD
    for daemon in ("coordinator", "agent"):
        argv = [str(ROOT / "out" / "bin" / f"pactrain-{daemon}"), "--list-metrics"]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        text += f"\n## {daemon.capitalize()}\n\n{done.stdout}"
    return text


def series_names(text: str) -> set[str]:
    """The names that the tables of docs/metrics.md allow in a query."""
    names: set[str] = set()
    for name, kind in re.findall(r"^\| `(\w+)` \| (\w+) \|", text, re.MULTILINE):
        ends = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        names |= {name + end for end in ends}
    return names


def main(arguments: Sequence[str]) -> int:
    text = page()
    if list(arguments) == ["--check"]:
        if DOCS.exists() and DOCS.read_text() == text:
            return 0
        print("docs/metrics.md is stale: run make build, then tools/metrics.py")
        return 1
    DOCS.write_text(text)
    print(f"{DOCS.relative_to(ROOT)}: {len(series_names(text))} names")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
