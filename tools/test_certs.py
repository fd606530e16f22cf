"""tools/certs: what it says without making anything."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

CERTS = Path(__file__).parent / "certs"


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_shows_how_to_call_it(flag):
    text = subprocess.check_output([CERTS, flag], text=True)
    assert "tools/certs DIR --coordinator --agent node-1" in text
    assert "set -euo" not in text


def test_a_call_without_a_folder_names_the_help():
    call = subprocess.run([CERTS], capture_output=True, text=True, check=False)
    assert call.returncode == 2
    assert call.stderr.rstrip().endswith("--help")
