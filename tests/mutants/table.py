"""The rules that can be weakened, as tests/mutants/table.txt and as the code has them."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("table.txt")
HEADER = "base/weakened.h"


@dataclass(frozen=True)
class Rule:
    name: str
    where: str
    weakened: str
    caught_by: frozenset[str]
    sample: bool


def rules() -> list[Rule]:
    found = []
    for number, line in enumerate(TABLE.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 4:
            raise ValueError(
                f"{TABLE}:{number}: has {len(fields)} columns; write: name | where | "
                "what is left out | who must notice"
            )
        name, where, weakened, caught_by = fields
        found.append(
            Rule(
                name=name.split()[0],
                where=where,
                weakened=weakened,
                caught_by=frozenset(caught_by.split(", ")),
                sample=name.endswith("*"),
            )
        )
    return found


def places() -> dict[str, set[str]]:
    """The files in which the code asks for each rule."""
    out = subprocess.run(
        ["git", "grep", "-oE", r"PT_WEAKENED\(\w+\)", "--", "*.cc", "*.h"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found: dict[str, set[str]] = {}
    for line in out.splitlines():
        file, use = line.split(":", 1)
        name = re.sub(r"PT_WEAKENED\((\w+)\)", r"\1", use)
        if file != HEADER:
            found.setdefault(name, set()).add(file)
    return found
