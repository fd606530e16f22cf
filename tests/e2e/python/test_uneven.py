"""Uneven data: join() as torch's, and a rank that ends without it is named."""

from __future__ import annotations

import re

import pytest
import uneven_scenarios


@pytest.mark.parametrize("batches", [[3, 8], [8, 3]])
def test_ranks_with_fewer_batches_join(cluster, launch, batches):
    ranks = launch(cluster, uneven_scenarios.joined, batches=batches).finish()
    results = [rank.value for rank in ranks]
    assert all(results), [rank.text for rank in ranks]
    assert len({result["digest"] for result in results}) == 1
    assert len({result["after"] for result in results}) == 1
    assert results[0]["mean"] == results[1]["mean"]
    for result in results:
        assert result["steps"] == 9
        assert result["digest"] == result["plain"]


def test_a_rank_that_ends_early_is_named(cluster, launch):
    ranks = launch(cluster, uneven_scenarios.one_ends_early).finish()
    assert not ranks[1].error
    assert ranks[0].error == "StepNotAppliedError"
    # By its agent, or, if the next step was not open yet there, by the coordinator.
    assert re.search(
        r"rank 1 at agent \S+ \(site \S+\) ended in order after step \d+: unequal "
        r"numbers of batches\?",
        ranks[0].text,
    )
    assert "Give all ranks equally many batches" in ranks[0].text
    assert "checkpoint" not in ranks[0].text
