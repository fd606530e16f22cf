"""A daemon that says that it is of another release."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path


def of_release(own: Path, folder: Path, minors_later: int) -> Path:
    """The same program in `folder`, but for its number; MINOR has to stay one digit."""
    text = subprocess.run([str(own), "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"(\d+\.)(\d)(\.\d+)", text.stdout)
    assert found is not None, text.stdout
    minor = int(found[2]) + minors_later
    assert minor <= 9, found[0]
    number = f"{found[1]}{minor}{found[3]}"
    program = folder / f"{own.name}-of-{number}"
    data = own.read_bytes()
    assert data.count(found[0].encode() + b"\0") >= 1
    program.write_bytes(data.replace(found[0].encode() + b"\0", number.encode() + b"\0"))
    shutil.copymode(own, program)
    return program
