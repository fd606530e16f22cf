"""Ranks that differ never train on in silence, and none waits for one that failed."""

from __future__ import annotations

import differing_scenarios as scenarios
import pytest
from differing_scenarios import Alone, BiasBySeed, ByHandAlone, BySeed, SparsifierAlone
from test_training import values

PATIENCE = 60  # Seconds; a fifth of what attach() waits for ranks that are late.


@pytest.mark.parametrize(
    ("pruner", "own"),
    [
        (BySeed, False),
        (BySeed, True),
        (BiasBySeed, False),
        (Alone, False),
        (SparsifierAlone, True),
        (ByHandAlone, False),
    ],
)
def test_tracked_masks_that_differ_end_the_job_within_a_few_steps(cluster, launch, pruner, own):
    launched = launch(cluster, scenarios.differs, pruner=pruner, own=own)
    for result in values(launched.finish()):
        assert result["error"] == "ResyncRequiredError", result
        assert scenarios.DIFFERS <= result["step"] < scenarios.DIFFERS + 4
        assert "parameters differ" in result["text"]
        assert f"Masks differ: {pruner.name} (rank 0 keeps" in result["text"]
        assert "Prune on all ranks alike" in result["text"].splitlines()[-1]


@pytest.mark.parametrize("pruner", [BySeed, Alone])
def test_so_do_masks_of_torch_that_are_declared(cluster, launch, pruner):
    launched = launch(cluster, scenarios.differs, pruner=pruner, masks=None)
    for result in values(launched.finish()):
        assert result["error"] == "ResyncRequiredError", result
        assert result["step"] == scenarios.DIFFERS
        assert "Masks differ: 2.weight (rank 0 keeps" in result["text"]
        assert "session.sync_masks() on all" in result["text"]


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("weights", "Weights differ: 0.weight (ranks 0 and 1)"),
        ("masks", "Masks differ: 2.bias (rank 0 keeps all, rank 1 "),
        ("alike", ""),
    ],
)
def test_what_one_rank_did_last_is_in_the_summary_of_rank_0(cluster, launch, own, how, text):
    summary = values(launch(cluster, scenarios.ends_apart, how=how, own=own).finish())[0]
    assert text in summary
    assert ("ranks did not end alike" in summary) == bool(text)


@pytest.mark.parametrize("masks", ["track", None])
@pytest.mark.parametrize("own", [False, True])
def test_masks_that_are_sent_from_rank_0_are_everyones(cluster, launch, own, masks):
    launched = launch(cluster, scenarios.differs, pruner=BySeed, own=own, syncs=True, masks=masks)
    first, second = values(launched.finish())
    assert first["error"] == second["error"] == "none", first["text"]
    assert first["mask"] == second["mask"]


def test_masks_made_between_wrapping_and_attaching_are_rank_0s_as_in_plain_ddp(cluster, launch):
    first, second = values(launch(cluster, scenarios.differs, pruner=BySeed, before=True).finish())
    assert first["error"] == second["error"] == "none", first["text"]
    assert first["mask"] == second["mask"]


@pytest.mark.parametrize(
    ("by_rank", "text"),
    [
        (
            [{"masks": "track", "settle": 10}, {"masks": "track", "settle": 4}],
            "settle differs: rank 0 has 10, rank 1 has 4",
        ),
        (
            [{"masks": "track"}, {}],
            "masks differs: rank 0 has 'track', rank 1 has declared ones",
        ),
        (
            [{"activate_at": 4}, {}],
            "activate_at differs: rank 0 has 4, rank 1 has none",
        ),
        (
            [{"pin": "TERNARY 7", "pin_from": 5}, {"pin": "FULL", "pin_from": 5}],
            "pin differs: rank 0 has TERNARY 7 levels, rank 1 has FULL fp32",
        ),
        (
            [{"pin": "FULL", "pin_from": 5}, {"pin": "FULL"}],
            "pin_from differs: rank 0 has 5, rank 1 has 1",
        ),
        ([{}, {"gse": False}], "gse differs: rank 0 has True, rank 1 has False"),
        (
            [{"sync_masks": False}, {}],
            "sync_masks differs: rank 0 has False, rank 1 has True",
        ),
    ],
)
@pytest.mark.parametrize("own", [False, True])
def test_arguments_that_differ_are_refused_in_the_words_of_the_script(
    cluster, launch, by_rank, text, own
):
    for rank in launch(cluster, scenarios.attaches_with, by_rank=by_rank, own=own).finish():
        assert rank.error == "RefusedError", rank
        assert text in rank.text
        assert "on all ranks" in rank.text or "all ranks the same" in rank.text
        assert rank.seconds < PATIENCE


@pytest.mark.parametrize(("own", "grouped"), [(False, True), (True, True), (True, False)])
@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_fails_in_attach_is_named_at_the_others(cluster, launch, own, grouped, failing):
    arguments = {"settle": 0} if failing else {"masks": {"nobody.weight": None}}
    ranks = launch(
        cluster, scenarios.fails_alone, own=own, grouped=grouped, failing=failing, **arguments
    ).finish()
    reason = "settle is 0" if failing else "nobody.weight"
    assert ranks[failing].error == "InvalidArgument", ranks
    other = ranks[1 - failing]
    assert other.error == "RefusedError", ranks
    assert f"rank {failing} " in other.text.lower()
    assert reason in other.text
    assert other.seconds < PATIENCE


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize(
    "wrong",
    [{"on_shrink": "stop"}, {"variables": {"PACTRAIN_ATTACH_TIMEOUT": "soon"}}],
)
def test_so_is_one_with_a_wrong_on_shrink_or_variable(cluster, launch, grouped, wrong):
    ranks = launch(cluster, scenarios.fails_alone, own=True, grouped=grouped, failing=1, **wrong)
    first, second = ranks.finish()
    assert second.error == "InvalidArgument", second
    assert first.error == "RefusedError", first
    assert "rank 1 " in first.text.lower()
    assert "'stop'" in first.text or "'soon'" in first.text
    assert first.seconds < PATIENCE


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("failing", [0, 1])
def test_so_is_one_that_fails_when_agents_know_it_already(cluster, launch, own, failing):
    ranks = launch(
        cluster, scenarios.fails_alone, own=own, grouped=True, failing=failing, late=True
    ).finish()
    assert ranks[failing].error == "ValueError", ranks
    other = ranks[1 - failing]
    assert other.error == "RefusedError", ranks
    assert f"rank {failing} " in other.text.lower()
    assert "ValueError: no place for masks" in other.text
    assert other.seconds < PATIENCE
