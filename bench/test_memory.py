"""The figures that bench.memory makes of what trainers say, and a run of a small network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.memory import COMPACTED_GOAL, figures, in_parts, main, table
from bench.memory_train import ROWS

ROOT = Path(__file__).resolve().parent.parent


def rows(pruned_peak: int, pruned_end: int) -> dict[str, dict[str, tuple[int, int]]]:
    """Of parameters of 100 bytes; plain DDP peaks at 400 and ends at 300."""
    parts = {"wrap": (350, 200), "later steps": (400, 300)}
    found = {row: dict(parts) for row in ROWS}
    found["pruned"]["later steps"] = (pruned_peak, pruned_end)
    return found


def test_ratios_are_above_plain_ddp_in_bytes_of_the_parameters() -> None:
    result = figures(rows(550, 380), 100)
    assert (result["peak_ratio"], result["steady_ratio"]) == (1.5, 0.8)
    assert result["peak_ratios"]["whole"] == 0.0
    assert result["met"]


@pytest.mark.parametrize(("peak", "end"), [(640, 380), (550, 400)])
def test_a_ratio_over_its_goal_is_missed(peak: int, end: int) -> None:
    result = figures(rows(peak, end), 100)
    assert not result["met"]
    assert f"(of {COMPACTED_GOAL:.1f})" in table(rows(peak, end), result)


def test_lines_of_one_part_have_its_highest_peak_and_its_last_end() -> None:
    events = [{"part": "later steps", "peak": p, "resident": r} for p, r in ((3, 1), (2, 2))]
    assert in_parts(events) == {"later steps": (3, 2)}


@pytest.mark.nightly
def test_a_small_run_ends_with_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--width=64", "--steps=3"])  # Goals are for large models.
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["elements"] == 4 * 64 * 64
    assert result["bytes"].keys() == set(ROWS)
    assert json.loads((ROOT / "out" / "bench-memory.json").read_text()) == result
