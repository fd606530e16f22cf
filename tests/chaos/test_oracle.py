"""The judge of chaos runs sees what it is there for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import oracle
import pytest

Log = list[dict[str, Any]]


def trained(seats: Sequence[Sequence[int]], lineage: str = "a", start: int = 0) -> Log:
    """What a rank writes whose steps, from batch `start` + 1 on, were of these seats."""
    state, log = oracle.State(), []
    if start:
        for batch in range(1, start + 1):
            state = state.after(batch, (0, 1))
        state = oracle.State(weights=state.weights)
    for batch, of in enumerate(seats, start + 1):
        state = state.after(batch, of)
        log.append(
            {
                "time": 30.0 * (lineage != "a") + batch,
                "batch": batch,
                "seats": list(of),
                "ranks": len(of),
                "generation": 1,
                "lineage": lineage,
                "digest": oracle.digest(state.weights, state.velocity),
            }
        )
    return log


def judged(*logs: Log, replaced: int = 0) -> oracle.Verdict:
    return oracle.judge(logs, replaced, bound_s=60)


BOTH = ((0, 1),) * 25


@pytest.mark.parametrize("seats", [range(ranks) for ranks in range(1, 7)])
def test_a_mean_tells_whose_gradients_it_is_of(seats: range) -> None:
    for batch in range(1, 40):
        summed = np.sum([oracle.gradient(batch, seat) for seat in seats], axis=0)
        of: oracle.Values = summed * np.float32(1 / len(seats))
        assert oracle.seats_in(batch, of) == list(seats)
        assert oracle.seats_in(batch + 1, of) is None


def test_a_mean_with_one_rank_twice_or_one_element_wrong_is_none() -> None:
    twice: oracle.Values = oracle.gradient(3, 0) + oracle.gradient(3, 1) / np.float32(2)
    assert oracle.seats_in(3, twice) is None
    of = oracle.mean(3, (0, 1))
    of[-2] += 60
    assert oracle.seats_in(3, of) is None


def test_ranks_that_agree_and_come_and_go_are_fine() -> None:
    log = trained([*BOTH, (0, 1, 2), (0,)])
    verdict = judged(log, log[:20], log[25:26])
    assert verdict == oracle.Verdict(steps=27)


def test_weights_that_are_not_the_sum_are_found_also_where_all_ranks_agree() -> None:
    log = trained(BOTH)
    log[7]["digest"] = "0" * 16
    assert judged(log, log).divergent_steps == 1


@pytest.mark.parametrize(("field", "value"), [("seats", [1]), ("seats", None), ("ranks", 3)])
def test_a_rank_that_took_another_sum_is_found(field: str, value: object) -> None:
    log, other = trained(BOTH), trained(BOTH)
    other[4][field] = value
    assert judged(log, other).divergent_steps > 0


def test_a_step_that_is_made_again_is_a_lost_state() -> None:
    log, other = trained(BOTH), trained(BOTH)
    other[9]["generation"] = 2
    assert judged(log, other).lost_states == 1


def test_a_rank_that_goes_back_is_found() -> None:
    log = trained(BOTH)
    verdict = judged([*log, log[3]])
    assert verdict.lost_states == 1
    assert verdict.why == ["lost state: a rank went back from batch 25 to 4"]


def test_a_new_beginning_beside_a_trained_job_is_a_lost_state() -> None:
    assert judged(trained(BOTH), trained(BOTH[:3], lineage="b")).lost_states == 1


def test_a_job_that_was_replaced_goes_on_from_a_checkpoint() -> None:
    old, new = trained(BOTH), trained(BOTH, lineage="b", start=20)
    assert judged(old, new, replaced=1) == oracle.Verdict(steps=50)
    assert judged(old, new).lost_states == 1


def test_a_job_that_was_replaced_from_elsewhere_is_found() -> None:
    between = trained(BOTH, lineage="b", start=13)
    assert judged(trained(BOTH), between, replaced=1).lost_states == 1
    other = trained(BOTH, lineage="b", start=20)
    other[0]["digest"] = "0" * 16
    assert judged(trained(BOTH), other, replaced=1).divergent_steps == 1


def test_a_step_that_came_too_late_is_found() -> None:
    log = trained(BOTH)
    for line in log[10:]:
        line["time"] += 61
    assert judged(log, log).over_bound_waits == 1
    attaches = [{"time": log[10]["time"] - 59, "attaches": True}]
    assert judged(log, attaches).over_bound_waits == 0
