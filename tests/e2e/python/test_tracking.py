"""Masks that other libraries make, once and again, with masks="track"."""

from __future__ import annotations

import pytest
import tracking_scenarios
from test_training import equal_digests, values
from tracking_scenarios import (
    SECOND,
    SETTLE,
    ByHand,
    ByHandWeightsOnly,
    RigL,
    Sparsifier,
    TorchPrune,
    TwoOfFour,
)


def run(cluster, launch, **arguments):
    """What rank 0 recorded; ranks are alike."""
    results = values(launch(cluster, tracking_scenarios.tracked, **arguments).finish())
    equal_digests(results)
    for result in results:
        assert result["rows"] == results[0]["rows"]
        assert result["digests"] == results[0]["digests"]
    return results[0]


def table(result):
    """The course of a run, for people."""
    lines = [f"{'step':>4} {'unchanged':>9} {'ratio':>5}  mode"]
    lines += [f"{s:4} {u:5}/{SETTLE:<3} {r:5.2f}  {mode}" for s, u, mode, r in result["rows"]]
    return "\n".join(lines)


def modes(result, first, end):
    return {mode for step, _, mode, _ in result["rows"] if first <= step < end}


def settles_moves_and_settles_again(result):
    text = table(result)
    print(text)
    rows = {step: row for step, *row in result["rows"]}
    assert modes(result, 1, SETTLE + 1) == {"FULL"}, text
    assert modes(result, 3 * SETTLE, SECOND) == {"COMPACTED"}, text
    assert min(rows[step][0] for step in range(SECOND, SECOND + 5)) == 0, text
    assert modes(result, 40, 46) == {"COMPACTED"}, text
    assert result["stats"]["pactrain/first_compacted_step"] <= 3 * SETTLE
    assert SECOND <= result["stats"]["pactrain/mask_last_change"] <= SECOND + 6
    assert result["keep"] == pytest.approx(result["wanted"], abs=0.01)
    assert result["stats"]["pactrain/failed_steps"] == 0


@pytest.mark.parametrize("library", [TorchPrune, Sparsifier, TwoOfFour, ByHand, RigL])
def test_a_library_goes_compacted_by_itself_again_and_again(cluster, launch, library):
    result = run(cluster, launch, library=library, own=library is TorchPrune)
    settles_moves_and_settles_again(result)
    if library is RigL:
        assert result["grown"] > 100


@pytest.mark.parametrize("library", [TwoOfFour, RigL])
def test_a_tracked_run_is_the_same_run_always_full_and_masked(cluster, launch, library):
    result = run(cluster, launch, library=library)
    full = run(cluster, launch, library=library, pin="FULL")
    assert modes(full, 1, 46) == {"FULL"}
    assert result["stats"]["pactrain/first_compacted_step"] > 0
    assert result["digests"] == full["digests"]


def test_gradients_outside_that_are_not_zero_make_steps_dense_and_are_told(cluster, launch):
    result = run(cluster, launch, library=ByHandWeightsOnly)
    assert modes(result, 12, SECOND) == {"DENSE"}
    assert "COMPACTED" not in modes(result, 1, 46)
    summary = result["summary"]
    assert "gradients outside the masks are not zero in 4.weight, 2.weight" in summary
    assert "attach with gse=True" in summary


def test_with_gse_a_script_that_masks_weights_alone_goes_compacted(cluster, launch):
    result = run(cluster, launch, library=ByHandWeightsOnly, gse=True)
    settles_moves_and_settles_again(result)
