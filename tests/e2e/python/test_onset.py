"""When decisions come in force: at once where all declare alike, else with known steps,
so that equal runs are equal bit for bit."""

from __future__ import annotations

import onset_scenarios
import pytest
from test_training import values


def runs(cluster, launch, count, **arguments):
    """What rank 0 recorded in each run; ranks of a run are alike."""
    recorded = []
    for _ in range(count):
        results = values(launch(cluster, onset_scenarios.recorded, **arguments).finish())
        assert all(result == results[0] for result in results)
        recorded.append(results[0])
    return recorded


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(
    "arguments",
    [
        {"amount": 0.0},
        {"amount": 0.7},
        {"amount": 0.7, "change_at": 6},
        {"amount": 0.7, "seed_by_rank": True},
        {"amount": 0.7, "activate_at": 5},
        {"amount": 0.7, "pin": "TERNARY 7", "pin_from": 9},
        {"amount": 0.3, "pin": "TERNARY 7", "pin_from": 12, "change_every": 5},
        {"amount": 0.0, "pin": "TERNARY 5"},
    ],
    ids=lambda arguments: "-".join(map(str, arguments.values())),
)
def test_three_equal_runs_are_equal_bit_for_bit(cluster, launch, own, arguments):
    first, *others = runs(cluster, launch, 3, own=own, **arguments)
    for other in others:
        assert other["modes"] == first["modes"]
        assert other["digests"] == first["digests"]


@pytest.mark.parametrize("own", [True, False])
def test_masks_that_all_ranks_declare_hold_from_the_first_step(cluster, launch, own):
    (run,) = runs(cluster, launch, 1, own=own, amount=0.7)
    assert run["compacted"] == 1
    assert set(run["modes"]) == {"COMPACTED 1"}
    assert run["failed"] == 0


def test_masks_of_rank_0_hold_with_the_fourth_step(cluster, launch):
    (run,) = runs(cluster, launch, 1, own=True, amount=0.7, seed_by_rank=True)
    assert run["compacted"] == 4


def test_masks_are_those_of_the_zeros_that_torchs_ddp_brings_from_rank_0(cluster, launch):
    (run,) = runs(cluster, launch, 1, own=False, amount=0.7, seed_by_rank=True)
    assert run["compacted"] == 1


@pytest.mark.parametrize("own", [True, False])
def test_a_script_says_with_which_step_masks_and_pin_hold(cluster, launch, own):
    onset = {"activate_at": 5, "pin": "TERNARY 7", "pin_from": 9}
    (run,) = runs(cluster, launch, 1, own=own, amount=0.7, **onset)
    assert (run["compacted"], run["ternary"]) == (5, 9)
    assert run["modes"] == ["FULL 1"] * 4 + ["COMPACTED 1"] * 4 + ["TERNARY 5"] * 8


@pytest.mark.parametrize(("every", "step"), [(5, 12), (11, 16)])
def test_a_pin_comes_with_masks_that_change_at_its_step(cluster, launch, every, step):
    """A change before step 11 is too late for step 12, and takes the pin along to step 16."""
    pin = {"pin": "TERNARY 7", "pin_from": 12}
    (run,) = runs(cluster, launch, 1, own=False, amount=0.3, change_every=every, steps=24, **pin)
    assert run["modes"] == ["COMPACTED 1"] * (step - 1) + ["TERNARY 5"] * (25 - step)
    assert run["failed"] == 0


def test_other_masks_hold_with_a_multiple_of_four(cluster, launch):
    (run,) = runs(cluster, launch, 1, own=True, amount=0.5, change_at=6)
    ratios = run["ratios"]
    assert len(set(ratios)) == 2
    assert ratios.index(ratios[-1]) + 1 == 8


@pytest.mark.parametrize("own", [True, False])
def test_ternary_comes_by_the_sixth_step_where_it_pays(adaptive, launch, own):
    results = values(
        launch(adaptive, onset_scenarios.recorded, world=6, own=own, amount=0.5).finish()
    )
    for result in results:
        assert result["compacted"] == 1
        assert 0 < result["ternary"] <= 6
        assert result["failed"] == 0
