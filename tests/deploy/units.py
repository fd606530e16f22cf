"""The systemd units: what systemd itself says of them."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import programs

FOLDER = programs.ROOT / "deploy/systemd"
NAMES = tuple(f"{daemon}.service" for daemon in programs.DAEMONS)
MOST_EXPOSED = 2.0  # Of 10; the network and who its trainers are has to be left.


def why_none() -> str | None:
    return None if shutil.which("systemd-analyze") else "systemd-analyze is not installed"


def score(unit: Path) -> float:
    """How exposed systemd finds it: 0 to 10."""
    command = ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(unit)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", said)
    assert found is not None, said
    return float(found[1])


def complaints(unit: Path) -> str:
    """What systemd would say when it loads it, with the programs where the package has them."""
    with tempfile.TemporaryDirectory() as folder:
        text = unit.read_text().replace("/usr/bin/pactrain", f"{programs.BIN}/pactrain")
        text = re.sub(r"^Documentation=.*\n", "", text, flags=re.M)
        copy = Path(folder) / unit.name
        copy.write_text(text)
        command = ["systemd-analyze", "verify", "--man=no", str(copy)]
        done = subprocess.run(command, capture_output=True, text=True)
        lines = [line for line in done.stderr.splitlines() if "pactrain" in line]
        return "\n".join(lines) or ("" if done.returncode == 0 else done.stderr)


def command_line(unit: Path) -> list[str]:
    (line,) = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.M)
    return str(line).split()
