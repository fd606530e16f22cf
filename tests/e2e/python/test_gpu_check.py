"""The script of `make gpu-check`, on the device and the driver that need no GPU."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import device_scenarios
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "device"))
import gpu_check

PACKAGE = Path(__file__).parents[3] / "python_client" / "src"
RIGHT = {"took_seconds": 1.0}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The package of this checkout."""
    path = tmp_path_factory.mktemp("wheel") / "pactrain.whl"
    with zipfile.ZipFile(path, "w") as packed:
        for file in (PACKAGE / "pactrain").rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                packed.write(file, file.relative_to(PACKAGE))
    return path


@pytest.mark.parametrize(
    ("part", "paths"),
    [
        ("kernels", None),
        pytest.param(
            *("exchange", {"exact by torch": "torch", "exact by device": "device"}),
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            *("nccl", {"exact by nccl": "device", "node by nccl": "nccl"}),
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_part_is_right_where_all_is(wheel, tmp_path, part, paths):
    if "without nvcc" in device_scenarios.kernels_here():
        pytest.skip("the trainer library was built without nvcc")
    device_scenarios.queued.build()
    device_scenarios.queued.build_driver()
    device_scenarios.queued.build_nccl()
    results = tmp_path / "results.json"
    options = ["--place=queued:0", f"--part={part}", f"--results={results}", "--patience=8"]
    script = [sys.executable, gpu_check.__file__, str(wheel), *options]
    done = subprocess.run(script, capture_output=True, text=True, timeout=1000, check=False)
    answer = json.loads(results.read_text())[part]
    assert done.returncode == 0
    assert done.stdout.startswith(f"{part}: right, "), answer
    assert answer.get("paths") == paths
    assert paths or answer["elements"] > 5000


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        ({}, 0, "right, 1.0 s"),
        ({"wrong": ["compact: x"]}, 1, "wrong: compact: x"),
        ({"failed": ["it hung"]}, 0, "failed: it hung"),
        ({"skipped": ["there is no GPU"]}, 0, "skipped: there is no GPU"),
    ],
)
def test_wrong_bits_alone_are_status_1(monkeypatch, capsys, tmp_path, answer, status, words):
    empty = tmp_path / "x.whl"
    with zipfile.ZipFile(empty, "w") as packed:
        packed.writestr("pactrain/_native/agent", "")
    results = tmp_path / "results.json"
    seen = []

    def part(name, arguments, package):
        seen.append(len(json.loads(results.read_text())) if results.exists() else 0)
        return RIGHT | (answer if name == "kernels" else {})

    monkeypatch.setattr(gpu_check, "run_part", part)
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", str(empty), f"--results={results}"])
    monkeypatch.setenv(gpu_check.WIDTH, "8")
    assert gpu_check.main() == status
    assert seen == list(range(len(gpu_check.PARTS)))  # Written anew after each part.
    assert f"kernels: {words}" in capsys.readouterr().out


def test_bits_that_differ_are_wrong_and_a_refused_path_is_skipped(monkeypatch):
    found = {}
    monkeypatch.setattr(gpu_check, "job", lambda *_: found)
    expected = {"digest": "a", "masks": True, "path": "cpu"}
    answer = {"wrong": [], "paths": {}}

    def compare():
        gpu_check.compare(answer, expected, Path(), "cuda:0", "device", "exact")

    found |= {"digest": "a", "path": "device"}
    compare()
    assert answer == {"wrong": [], "paths": {"exact by device": "device"}}
    found["digest"] = "b"
    compare()
    assert len(answer["wrong"]) == 1
    found.clear()
    found |= {"error": "RefusedError: no", "refused": True}
    compare()
    assert answer["skipped"] == ["exact by device: RefusedError: no"]
    found["refused"] = False
    compare()
    assert len(answer["failed"]) == 1
