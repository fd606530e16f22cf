"""The systemd units, without a systemd that runs; with one: tests/dist/test_package.py."""

from __future__ import annotations

from pathlib import Path

import programs
import pytest
import units

pytestmark = pytest.mark.skipif(units.why_none() is not None, reason=str(units.why_none()))
UNITS = [units.FOLDER / name for name in units.NAMES]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_takes_it_and_finds_it_hardened(unit: Path) -> None:
    assert units.complaints(unit) == ""
    assert units.score(unit) <= units.MOST_EXPOSED


def test_a_mistake_and_a_lost_line_are_found(tmp_path: Path) -> None:
    text = UNITS[0].read_text()
    worse = tmp_path / UNITS[0].name
    worse.write_text(text.replace("ProtectHome=yes", "ProtectHom=yes"))
    assert "ProtectHom" in units.complaints(worse)
    worse.write_text(text.replace("CapabilityBoundingSet=\n", ""))
    assert units.score(worse) > units.MOST_EXPOSED


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_its_command_is_the_programs(unit: Path) -> None:
    program, *words = units.command_line(unit)
    assert program == f"/usr/bin/{unit.stem}"
    assert programs.unknown(words, unit.stem) == []
    sample = f"pactrain-{unit.stem.removeprefix('pactrain-')}.yaml"
    settings = words[words.index("--config") + 1]
    assert (programs.ROOT / "deploy" / sample).is_file()
    assert settings == f"/etc/pactrain/{unit.stem.removeprefix('pactrain-')}.yaml"


def test_users_and_folders_are_those_of_the_units() -> None:
    users = (units.FOLDER / "pactrain.sysusers").read_text()
    for unit in UNITS:
        assert f"\nu {unit.stem} - " in users
        assert f"\nUser={unit.stem}\n" in unit.read_text()
    folders = (units.FOLDER / "pactrain.tmpfiles").read_text()
    assert "\nd /run/pactrain 0750 pactrain-agent pactrain -" in folders
    assert "\nReadWritePaths=/run/pactrain\n" in UNITS[1].read_text()
    assert "--socket-group pactrain" in UNITS[1].read_text()
