"""Manual pages of the programs, from what each says with --help."""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
from pathlib import Path

COLUMN = 30  # Where --help has what a flag is for.
# By section: 1 is for commands of users, 8 for daemons.
SECTIONS = {"pactrain-admin": 1, "pactrain-coordinator": 8, "pactrain-agent": 8}


def wrapped(line: str) -> str:
    """Its second column stays one; beside roff's margin it fits a terminal."""
    head = re.match(r" {2}\S+(?: \S+)*? {2,}| *", line)
    indent = head[0] if head else ""
    lines = textwrap.wrap(line[len(indent) :], 72 - len(indent), break_on_hyphens=False)
    return ("\n" + " " * len(indent)).join([indent + "".join(lines[:1]), *lines[1:]])


def help_of(program: Path, *command: str) -> str:
    """Without what is of this machine: where the program lies, the host's name."""
    said = subprocess.run([program, *command, "--help"], check=True, capture_output=True, text=True)
    text = said.stdout.replace(f"{program.parent}/", "")
    host = re.escape(os.uname().nodename)
    text = re.sub(rf"^(.*)={host}\s+", lambda found: found[1].ljust(COLUMN), text, flags=re.M)
    return "\n".join(wrapped(line).rstrip() for line in text.strip().splitlines())


def commands_of(text: str) -> list[str]:
    _, _, commands = text.partition("\nSubcommands:\n")
    return re.findall(r"^  (\S+)", commands, re.M)


def as_shown(text: str) -> str:
    """Lines as they are, for roff."""
    lines = text.replace("\\", r"\e").replace("-", r"\-").splitlines()
    shown = "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in lines)
    return f".nf\n{shown}\n.fi\n"


def page(program: Path, version: str) -> str:
    name, text = program.name, help_of(program)
    summary = " ".join(text.partition(f"{name}: ")[2].partition("\nUsage")[0].split()).rstrip(".")
    said = f'.TH {name.upper()} {SECTIONS[name]} "" "PacTrain {version}"\n'
    said += f".SH NAME\n{name} \\- {as_shown(summary).splitlines()[1]}\n"
    said += f".SH DESCRIPTION\n{as_shown(text)}"
    for command in commands_of(text):
        said += f".SH {command.upper()}\n{as_shown(help_of(program, command))}"
    return said + ".SH SEE ALSO\n/usr/share/doc/pactrain/docs/operations.md\n"


def write(programs: Path, folder: Path, version: str) -> None:
    """folder/man1/pactrain-admin.1 and the like."""
    for name, section in SECTIONS.items():
        target = folder / f"man{section}" / f"{name}.{section}"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page(programs / name, version))
