"""All PACTRAIN_* variables are in the users' table."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
ROOMS = ("agent", "base", "config", "coordinator", "python_client/src", "trainer")
# Quoted alone: "PACTRAIN_SITE", not the prefix "PACTRAIN_AGENT_".
QUOTED = re.compile(r"""["'](PACTRAIN_[A-Z_]*[A-Z])["']""")
TESTS = re.compile(r"(^|/)tests?/|_test\.|test_")


def table() -> set[str]:
    """The names in the first column of the table in the user guide."""
    rows = [
        line.split(" | ")[0]
        for line in (ROOT / "docs/environment.md").read_text().splitlines()
        if line.startswith("| `PACTRAIN_")
    ]
    return {name for row in rows for name in re.findall(r"`(PACTRAIN_[A-Z_]+)`", row)}


def in_code() -> dict[str, str]:
    """Names that code has in quotes, and a file for each; header guards are not quoted."""
    command = ["git", "ls-files", "--", *(f"{room}/" for room in ROOMS)]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    found = {}
    for path in names.split():
        if path.endswith((".py", ".cc", ".h")) and not TESTS.search(path):
            for name in QUOTED.findall((ROOT / path).read_text()):
                found[name] = path
    return found


def test_every_variable_that_code_names_is_in_the_table() -> None:
    prefixes = {"PACTRAIN_AGENT", "PACTRAIN_COORDINATOR"}  # Both are variables, too.
    found = in_code()
    assert {"PACTRAIN_SITES", "PACTRAIN_ADMIN_TLS_CERT", *prefixes} <= set(found)
    assert not {name: path for name, path in found.items() if name not in table()}


def test_every_setting_of_a_daemon_is_in_the_table() -> None:
    schema = (ROOT / "proto/pactrain/v1/config.proto").read_text()
    for daemon in ("Coordinator", "Agent"):
        body = schema.partition(f"message {daemon}Config {{")[2].partition("\n}")[0]
        fields = re.findall(r"^  (?:\w+ )?\w+ (\w+) = \d+", body, re.MULTILINE)
        assert len(fields) > 10
        wanted = {f"PACTRAIN_{daemon.upper()}_{field.upper()}" for field in fields}
        prefix = f"PACTRAIN_{daemon.upper()}_"
        have = {name for name in table() if name.startswith(prefix)}
        assert have == wanted | {f"{prefix}CONFIG"}


def test_the_doctor_knows_the_table() -> None:
    doctor = (ROOT / "coordinator/admin/variables.cc").read_text()
    own = set(QUOTED.findall(doctor))
    daemons = re.compile("PACTRAIN_(AGENT|COORDINATOR)_(?!CONFIG)")
    embedded = {
        f"PACTRAIN_{key.upper().replace('-', '_')}"
        for key in re.findall(r'"([a-z-]+)"', doctor.partition("kEmbedded[]")[2].partition(";")[0])
    }
    assert own | embedded == {name for name in table() if not daemons.match(name)}
