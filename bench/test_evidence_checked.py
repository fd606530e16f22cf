"""Damaged files of the evidence: each is refused by its name, its place and its field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.evidence import blocks, many, runs, scale, step_times, steps

GOOD: dict[str, Any] = json.loads((steps.COMMITTED / "vgg" / "ddp-1.json").read_text())


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("curve", [], "a list of [step, score]"),
        ("curve", "abc", "a list of [step, score]"),
        ("curve", [[10, 1.0], [10, 2.0]], "steps growing"),
        ("curve", [[0.5, 1.0]], "a list of [step, score]"),
        ("test", "x", "a number or null"),
        ("seed", "2", "a whole number from 1"),
        ("seed", True, "a whole number from 1"),
        ("workload", None, "a text"),
        ("keep", 50, "at most 1"),
        ("keep", 0, "above 0"),
        ("bytes_per_element", float("nan"), "a number from 0"),
        ("rate_factor", float("inf"), "a number above 0"),
    ],
)
def test_a_piece_that_cannot_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str, value: Any, said: str
) -> None:
    monkeypatch.setattr(steps, "FOLDER", tmp_path)
    path = steps.piece_path("vgg", "ddp", 1)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(GOOD | {field: value}))
    with pytest.raises(ValueError, match=f"field '{field}' = ") as raised:
        steps.read_piece(path)
    assert said in str(raised.value)
    assert "vgg/ddp-1.json" in str(raised.value)


def test_a_run_that_diverged_is_a_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "FOLDER", tmp_path)
    path = steps.piece_path("vgg", "ddp", 1)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(GOOD | {"curve": [[10, float("nan")]], "test": float("nan")}))
    assert steps.read_piece(path)["seed"] == 1


def test_pieces_of_another_length_than_their_workloads_are_no_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "FOLDER", tmp_path)
    for seed, planned in ((1, 390), (2, 200)):
        path = steps.piece_path("vgg", "ddp", seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(GOOD | {"seed": seed, "steps": planned}))
    with pytest.raises(ValueError, match=r"ddp-2.json: steps = 200, allowed: 390"):
        steps.read_pieces(["vgg"])


@pytest.mark.parametrize("text", ["{}", "[]", '{"target": "80", "unit": "points"}',
                                  '{"target": NaN, "unit": "points"}'])  # fmt: skip
def test_a_damaged_target_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(steps, "FOLDER", tmp_path)
    (tmp_path / "vgg").mkdir()
    (tmp_path / "vgg" / steps.TARGET).write_text(text)
    with pytest.raises(ValueError, match=r"vgg/target.json"):
        steps.read_targets()


@pytest.mark.parametrize("text", ["{}", "[3]", '{"rows": 5, "wall_seconds": 1}', '[{"row": 3}]',
                                  '{"rows": [{"row": 3}], "wall_seconds": 1}'])  # fmt: skip
def test_what_was_measured_beside_is_refused_when_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    path = tmp_path / "chain" / "vgg19.json"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ValueError, match=r"vgg19.json: .* allowed: "):
        step_times.read_times(folder=tmp_path)
    for module, name, read in ((scale, "SCALE", scale.read_scale), (many, "RESULT", many.read_many),
                               (runs, "RESULT", runs.read_runs)):  # fmt: skip
        monkeypatch.setattr(module, name, path)
        with pytest.raises(ValueError, match=r"vgg19.json: .* allowed: "):
            read()


def test_a_row_that_nobody_knows_changes_no_figure(tmp_path: Path) -> None:
    path = step_times.path_of("vgg19", folder=tmp_path)
    path.parent.mkdir(parents=True)
    content = json.loads(step_times.path_of("vgg19").read_text())
    for field, value in (("row", "nonsense"), ("steps", ["x"]), ("steps", [-1.0]), ("steps", [])):
        rows = [content["rows"][0] | {field: value}]
        path.write_text(json.dumps(content | {"rows": rows}))
        with pytest.raises(ValueError, match=f"vgg19.json: rows 1: field '{field}'"):
            step_times.read_times(folder=tmp_path)


@pytest.mark.parametrize("text", ["[]", '{"figures": 3}', '{"figures": {"elements": 4}}'])
def test_a_damaged_measurement_of_the_testbed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(scale, "TESTBED", tmp_path)
    (tmp_path / f"{next(iter(scale.TESTS))}.json").write_text(text)
    with pytest.raises(ValueError, match="allowed: "):
        scale.read_testbed()


@pytest.mark.parametrize("text", ["[]", '{"vgg": 3}', '{"vgg": {"0.5": 2}}'])
def test_damaged_counts_of_blocks_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    path = tmp_path / "blocks.json"
    path.write_text(text)
    monkeypatch.setattr(blocks, "RESULT", path)
    with pytest.raises(ValueError, match=r"blocks.json: .* allowed: "):
        blocks.read_blocks()
