"""The script of `make gpu-check`, on the device and the driver that need no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import device_scenarios
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "device"))
import gpu_check
import gpu_figures

PACKAGE = Path(__file__).parents[3] / "python_client" / "src"
RIGHT = {"took_seconds": 1.0}
MEASURED = ("right,", "missed:")  # What stand-ins reach says nothing of a GPU.


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The package of this checkout."""
    path = tmp_path_factory.mktemp("wheel") / "pactrain.whl"
    with zipfile.ZipFile(path, "w") as packed:
        for file in (PACKAGE / "pactrain").rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                packed.write(file, file.relative_to(PACKAGE))
    return path


@pytest.fixture
def tried(wheel, tmp_path):
    """tried(part) -> the script's word for it, and what it has found."""
    if "without nvcc" in device_scenarios.kernels_here():
        pytest.skip("the trainer library was built without nvcc")
    device_scenarios.queued.build()
    device_scenarios.queued.build_driver()
    device_scenarios.queued.build_nccl()
    results = tmp_path / "results.json"

    def run(part):
        options = ["--place=queued:0", f"--part={part}", f"--results={results}", "--patience=8"]
        done = subprocess.run(
            [sys.executable, gpu_check.__file__, str(wheel), *options],
            env=os.environ | {gpu_check.WIDTH: "8"},
            capture_output=True,
            text=True,
            timeout=1000,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        answer = json.loads(results.read_text())[part]
        assert "skipped" not in answer
        return done.stdout.split()[1], answer

    return run


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
        pytest.param(
            *("training", {"resumed by torch": "torch", "mixed by device": "device"}),
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_part_is_right_where_all_is(tried, part, paths):
    said, answer = tried(part)
    assert said == "right,", answer
    assert answer.get("paths") == paths
    assert paths or answer["elements"] > 5000


@pytest.mark.nightly
def test_frameworks_are_tried_on_the_cpu(wheel, tmp_path):
    results = tmp_path / "results.json"
    options = ["--place=cpu", "--part=frameworks", f"--results={results}", "--patience=8"]
    command = [sys.executable, gpu_check.__file__, str(wheel), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert done.stdout.startswith("frameworks: right,"), done.stdout + done.stderr
    kinds = json.loads(results.read_text())["frameworks"]["kinds"]
    assert kinds.keys() == {"plain", "accelerate", "lightning", "transformers"}


@pytest.mark.nightly
def test_a_lost_rank_gives_the_other_a_typed_error(tried):
    assert tried("lost_rank")[0] == "right,"


def test_figures_are_of_copies_and_kernels(tried):
    said, answer = tried("figures")
    assert said in MEASURED, answer
    assert min(answer[name] for name in ("device_copy", "to_host", "to_device")) > 0
    assert answer["shares"].keys() == {"compact", "expand_divide"}


@pytest.mark.nightly
def test_within_steps_copies_and_what_is_computed_beside_are_measured(tried):
    said, answer = tried("beside")
    assert said in MEASURED, answer
    by_torch, by_device = (answer[f"beside by {path}"] for path in ("torch", "device"))
    assert by_torch["shares"].keys() == {"to_host", "to_device"}
    assert min(by_torch["shares"].values()) > 0
    for found in (by_torch, by_device):
        assert found["slower"] == found["beside_seconds"] / found["alone_seconds"] > 0


@pytest.mark.nightly
def test_steps_at_a_limited_rate_are_measured_beside_those_of_the_cpu(tried):
    said, answer = tried("link")
    assert said in MEASURED, answer
    assert answer["times"].keys() == {"torch", "device"}
    where = ("on the CPU", "by torch", "by device")
    sent = {answer[f"link {how}"]["bytes"] for how in where}
    assert len(sent) == 1


@pytest.mark.parametrize(
    ("said", "key", "words"),
    [
        ({"error": "RefusedError: no", "refused": True}, "skipped", "link by device: Refused"),
        ({"error": "it hung"}, "failed", "link by device: it hung"),
        ({"path": "torch", "seconds": 1.0}, "failed", "link by device: it went by torch"),
    ],
)
def test_what_was_not_measured_as_asked_is_no_figure(monkeypatch, said, key, words):
    monkeypatch.setattr(gpu_figures.gpu_job, "ranks_of", lambda *_: [said])
    answer = {}
    assert gpu_figures.measured(answer, Path(), "cuda:0", "device", "link") == {}
    assert answer[key][0].startswith(words)


def test_a_goal_that_is_missed_is_named_beside_its_figure():
    assert gpu_figures.below({"compact": 0.75, "expand": 0.7}, 0.75) == ["expand: 0.70, goal 0.75"]
    assert gpu_figures.above("step", 1.031, 1.03) == ["step: 1.031, goal 1.03"]
    assert gpu_figures.above("step", 1.03, 1.03) == gpu_figures.above("step", None, 1.03) == []


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

    def part(name, arguments, package, seconds):
        seen.append(len(json.loads(results.read_text())) if results.exists() else 0)
        return RIGHT | (answer if name == "kernels" else {})

    monkeypatch.setattr(gpu_check, "run_part", part)
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", str(empty), f"--results={results}"])
    monkeypatch.setenv(gpu_check.WIDTH, "8")
    assert gpu_check.main() == status
    assert seen == list(range(len(gpu_check.PARTS)))  # Written anew after each part.
    assert f"kernels: {words}" in capsys.readouterr().out


def test_a_part_has_no_more_time_than_all_have_left(monkeypatch, capsys, tmp_path):
    empty = tmp_path / "x.whl"
    with zipfile.ZipFile(empty, "w") as packed:
        packed.writestr("pactrain/_native/agent", "")
    now, given = [0.0], {}

    def part(name, arguments, package, seconds):
        given[name] = seconds
        now[0] += 100
        return RIGHT

    monkeypatch.setattr(gpu_check, "run_part", part)
    monkeypatch.setattr(gpu_check.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", str(empty), f"--results={tmp_path / 'r'}"])
    monkeypatch.setenv(gpu_check.WIDTH, "8")
    assert gpu_check.main() == 0
    assert given["lost_rank"] == gpu_check.ALL_SECONDS - 500
    assert "frameworks: skipped: 530 s are over" in capsys.readouterr().out
    assert "frameworks" not in given


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
