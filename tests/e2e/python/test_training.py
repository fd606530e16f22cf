"""Training through real daemons: two sites, one agent each, two or four ranks."""

from __future__ import annotations

import pytest
import scenarios


def values(ranks):
    for rank in ranks:
        assert not rank.error, f"{rank.error}: {rank.text}"
    return [rank.value for rank in ranks]


def equal_digests(results):
    assert len({result["digest"] for result in results}) == 1
    assert all(result["finite"] for result in results)


def test_ranks_that_prune_different_weights_end_equal(cluster, launch):
    results = values(launch(cluster, scenarios.seeded_differently, world=4).finish())
    equal_digests(results)
    for result in results:
        assert result["mode"] == "COMPACTED fp32"
        assert result["outside"] == 0


def test_six_ranks_in_a_chain_of_three_sites_end_equal_with_bf16(chain, launch):
    results = values(launch(chain, scenarios.seeded_differently, world=6).finish())
    equal_digests(results)
    for result in results:
        assert result["mode"] == "COMPACTED bf16"
        assert result["outside"] == 0


def test_without_sync_masks_a_difference_is_refused_everywhere(cluster, launch):
    for rank in launch(cluster, scenarios.different_masks_without_sync).finish():
        assert rank.error == "RefusedError"
        assert "rank 0 has" in rank.text
        assert "rank 1 has" in rank.text


def test_weights_loaded_after_prune_are_an_error_and_can_be_repaired(cluster, launch):
    results = values(launch(cluster, scenarios.loaded_after_prune).finish())
    equal_digests(results)
    for result in results:
        assert "weights were loaded after prune" in result["text"]


def test_a_job_resumes_also_from_an_older_checkpoint(cluster, launch, tmp_path):
    job = cluster.new_job()

    def run(start, stop, save=()):
        launched = launch(
            cluster,
            scenarios.checkpointed,
            job=job,
            folder=str(tmp_path),
            start=start,
            stop=stop,
            save=list(save),
        )
        results = values(launched.finish())
        equal_digests(results)
        return results[0]

    first = run(0, 12, save=[6, 12])
    resumed = run(12, 0)
    assert resumed["first_step"] >= first["next_step"]
    assert resumed["keep"] == first["keep"] < 1
    assert resumed["mode"] == "COMPACTED fp32"
    older = run(6, 0)
    assert older["first_step"] >= resumed["next_step"]
    assert older["keep"] == first["keep"]


@pytest.mark.parametrize("inside", [True, False])
def test_one_rank_that_changes_its_mask_alone_does_no_harm(cluster, launch, inside):
    launched = launch(cluster, scenarios.one_rank_changes_its_mask, inside=inside)
    results = values(launched.finish())
    equal_digests([result["alone"] for result in results])
    equal_digests(results)
    for result in results:
        dense = result["alone"]["stats"]["pactrain/dense_steps"]
        assert (dense == 0) if inside else (dense > 0)


def test_a_gradient_outside_the_mask_makes_its_step_dense(cluster, launch):
    results = values(launch(cluster, scenarios.elements_outside).finish())
    equal_digests(results)
    for result in results:
        assert result["dense"] == result["dense_before"] + 1
        assert result["gradient"] == [1.0]  # 2 at one of two ranks: the mean.


@pytest.mark.parametrize("later", [False, True])
def test_weights_that_differ_between_ranks_end_the_job(cluster, launch, later):
    for result in values(launch(cluster, scenarios.diverged, later=later).finish()):
        assert result["error"] == "ResyncRequiredError", result
        assert result["final"]
        assert "site-1" in result["text"]


def test_another_bucket_cap_is_refused_with_both_sides_named(cluster, launch):
    results = values(launch(cluster, scenarios.another_bucket_cap).finish())
    for result in results:
        assert len(result["texts"]) == 2
        assert "agent-0 (site site-0)" in result["texts"][0]
        assert "agent-1 (site site-1)" in result["texts"][0]
        assert result["cleared"]


def test_another_model_is_refused_with_both_sides_named(cluster, launch):
    for rank in launch(cluster, scenarios.another_model).finish():
        assert rank.error == "RefusedError", rank
        assert "44 elements" in rank.text
        assert "55 elements" in rank.text
