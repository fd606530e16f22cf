"""What `make gpu-check` leaves for a machine with a GPU."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = runpy.run_path(str(Path(__file__).with_name("pack_gpu_check.py")))
pack = TOOL["pack"]


def wheel_in(folder: Path, name: str = "a.whl", size: int = 3) -> Path:
    folder.mkdir(exist_ok=True)
    with (folder / name).open("wb") as file:
        file.truncate(size)
    return folder


def test_the_wheel_and_the_script_with_its_modules_are_all(tmp_path: Path) -> None:
    target = tmp_path / "out"
    wheel_in(target, "old.whl")
    packed = pack(wheel_in(tmp_path / "dist"), target)
    assert {"a.whl", "gpu_check.py", "gpu_rank.py"} < {file.name for file in packed}
    assert sorted(target.iterdir()) == sorted(packed)


def test_the_script_starts_with_nothing_but_what_is_packed(tmp_path: Path) -> None:
    pack(wheel_in(tmp_path / "dist"), tmp_path / "out")
    script = [sys.executable, str(tmp_path / "out" / "gpu_check.py"), "--help"]
    done = subprocess.run(script, env={}, capture_output=True, text=True, timeout=300, check=True)
    assert "pactrain-VERSION.whl" in done.stdout


def test_without_one_wheel_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="has 0 wheels; one is wanted"):
        pack(tmp_path, tmp_path / "out")
    wheel_in(wheel_in(tmp_path / "dist"), "b.whl")
    with pytest.raises(SystemExit, match="has 2 wheels"):
        pack(tmp_path / "dist", tmp_path / "out")


def test_what_is_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="allowed are 67,108,864"):
        pack(wheel_in(tmp_path / "dist", size=64 << 20), tmp_path / "out")
