"""Pruning through real daemons: schedules, kinds and methods."""

from __future__ import annotations

import mask_scenarios
import pytest
from test_training import equal_digests, values


def check_schedule(results):
    equal_digests(results)
    for result in results:
        assert result["seen"] == results[0]["seen"]  # In force after the same steps.
        assert len(result["seen"]) == 10
        assert result["wrong"] == 0
        assert result["not_inside"] == 0
        assert result["layers"]["2.weight"] == result["layers"]["4.weight"] == 205
        # Compacted to compacted, and no step was lost or sent dense for it.
        assert result["full_after"] == 0
        assert result["stats"]["pactrain/dense_steps"] == 0
        assert result["stats"]["pactrain/failed_steps"] == 0
        assert result["stats"]["pactrain/steps"] == result["made"] == result["numbered"]


@pytest.mark.parametrize("kind", ["zero", "freeze"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_ten_mask_changes_in_a_running_job(cluster, launch, optimizer, kind):
    launched = launch(cluster, mask_scenarios.scheduled, world=4, optimizer=optimizer, kind=kind)
    check_schedule(values(launched.finish()))


def test_ten_mask_changes_over_a_chain_of_three_sites_with_bf16(chain, launch):
    scenario = mask_scenarios.scheduled
    launched = launch(chain, scenario, world=3, optimizer="sgd", kind="zero")
    check_schedule(values(launched.finish()))


def test_grasp_by_the_batches_of_each_rank_ends_with_rank_zeros_masks(cluster, launch):
    launched = launch(cluster, mask_scenarios.grasp_then_again, world=4)
    results = values(launched.finish())
    equal_digests(results)
    assert any(result["replaced"] for result in results)
    for result in results:
        assert result["masks"] == results[0]["masks"]
        assert result["inside"]
        assert result["kept"][1] < result["kept"][0]
        assert result["outside"] == 0
        assert result["lost"] == 0
        assert result["dense"] == 0
        assert result["mode"] == "COMPACTED fp32"


@pytest.mark.parametrize(
    ("failing", "argument"), [(0, "loss"), (1, "loss"), (0, "exempt"), (1, "amount")]
)
def test_grasp_that_fails_on_one_rank_is_told_to_all(cluster, launch, failing, argument):
    scenario = mask_scenarios.grasp_fails_on
    launched = launch(cluster, scenario, failing=failing, argument=argument)
    results = values(launched.finish())
    equal_digests(results)
    for rank, result in enumerate(results):
        assert not result["masked"]
        if rank == failing:
            assert result["error"] == (
                "ArithmeticError" if argument == "loss" else "InvalidArgument"
            )
        else:
            assert result["error"] == "PacTrainError"
            assert f"prune() failed on rank {failing}" in result["text"]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_frozen_weights_are_rank_zeros_at_attach_for_ever(cluster, launch, optimizer):
    scenario = mask_scenarios.frozen_seeded_differently
    results = values(launch(cluster, scenario, world=4, optimizer=optimizer).finish())
    equal_digests(results)
    for result in results:
        assert result["wrong"] == 0
        assert result["trained"] > 0.9 * result["kept"]
        assert result["mode"] == "COMPACTED fp32"


def test_schedules_that_differ_between_ranks_do_no_harm(cluster, launch):
    results = values(launch(cluster, mask_scenarios.schedules_of_their_own).finish())
    equal_digests([result["alone"] for result in results])
    equal_digests(results)
    for result in results:
        assert result["changes"] == (1, False)
        assert result["mode"] == "COMPACTED fp32"


def test_a_frozen_schedule_goes_on_where_it_was(cluster, launch, tmp_path):
    job, file = cluster.new_job(), str(tmp_path / "saved.pt")

    def run(start):
        scenario = mask_scenarios.resumed
        results = values(launch(cluster, scenario, job=job, file=file, start=start).finish())
        equal_digests(results)
        return results

    assert [result["changes"] for result in run(True)] == [2, 2]
    for result in run(False):
        assert result["wrong"] == 0  # Against the masks and values of the checkpoint.
        assert result["changes"] == 4
        assert result["report"].frozen == {"2.weight", "4.weight"}
        kept = {name: kept for name, _, kept in result["report"].layers}
        assert kept["2.weight"] == 256


def test_weights_that_are_changed_by_hand_are_masked(cluster, launch):
    results = values(launch(cluster, mask_scenarios.by_hand).finish())
    equal_digests(results)
    for result in results:
        assert result["seen"] == [0]
        assert result["outside"] == result["report"].outside == 0
        assert result["report"].sparsity > 0.3


@pytest.mark.parametrize("pruned", [True, False])
def test_weights_that_are_loaded_in_mid_run_keep_all_that_their_masks_keep(cluster, launch, pruned):
    results = values(launch(cluster, mask_scenarios.loaded_in_mid_run, pruned=pruned).finish())
    equal_digests(results)
    for result in results:
        assert result["largest"]
        assert result["lost"] == 0
        assert ("Call prune() again, now" in result["error"]) == (not pruned)
        assert result["stats"]["pactrain/dense_steps"] > 0
        assert result["mode"] == "COMPACTED fp32"
