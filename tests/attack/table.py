"""The attacks: one line each of table.txt. As a program: prints what of them Bazel builds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("table.txt")
CC, PYTEST, LIVE = "cc", "py", "live"


@dataclass(frozen=True)
class Attack:
    """`what`: a program and the names of its tests, tests of pytest, or a kind of attacker.py."""

    name: str
    kind: str
    short: bool  # Also in the short form.
    what: str


def attacks(file: Path = TABLE) -> list[Attack]:
    """In the table's order. ValueError: a line that is none, or a name that comes twice."""
    found: dict[str, Attack] = {}
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, kind, what = (part.strip() for part in line.split("|", 2))
        short = kind.endswith("+")
        kind = kind.removesuffix("+")
        if kind not in (CC, PYTEST, LIVE) or not what or name in found:
            raise ValueError(f"{file.name}:{number}: '{line}' is no attack, or comes twice")
        found[name] = Attack(name, kind, short, what)
    return list(found.values())


def targets() -> list[str]:
    """Of Bazel, for the tests of it."""
    programs = {a.what.split()[0] for a in attacks() if a.kind == CC}
    return sorted("//" + ":".join(program.rsplit("/", 1)) for program in programs)


if __name__ == "__main__":
    print(*targets())
