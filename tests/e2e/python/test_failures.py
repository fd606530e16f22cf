"""Who is killed or missing, and what the others are told."""

from __future__ import annotations

import time

import scenarios

DEADLINE_SECONDS = 6.0  # --step-deadline of own_cluster.
TYPED = {
    "StepNotAppliedError",
    "ResyncRequiredError",
    "AgentUnresponsiveError",
}


def memory_files(cluster, agents):
    return [cluster.agents[number].memory_files() for number in agents]


def wait_until_released(cluster, agents, seconds=10.0):
    """Until the agents hold no memory that trainers used; they have left by now."""
    end = time.monotonic() + seconds
    while any(held := memory_files(cluster, agents)):
        assert time.monotonic() < end, f"still held after {seconds} s: {held}"
        time.sleep(0.05)


def test_the_coordinator_may_die_and_come_back(own_cluster, launch):
    running = launch(own_cluster, scenarios.interrupted)
    running.wait_said("training")
    own_cluster.coordinator.kill()
    running.tell(15)
    results = [rank.value for rank in running.finish()]
    assert [result["steps"] for result in results] == [20, 20]
    assert len({result["digest"] for result in results}) == 1
    own_cluster.coordinator.restart()
    again = launch(own_cluster, scenarios.attach_only).finish()
    assert [rank.value for rank in again] == ["attached"] * 2


def test_a_killed_trainer_ends_the_others_with_a_typed_error(own_cluster, launch):
    running = launch(own_cluster, scenarios.interrupted, world=4)
    running.wait_said("training")
    assert all(memory_files(own_cluster, [0, 1]))
    running.tell(15, [0, 1, 2])
    running.kill(3)
    ranks = running.finish(DEADLINE_SECONDS + 20)
    for rank in ranks[:3]:
        assert rank.value["error"] in TYPED, rank
        assert rank.value["untouched"]
        assert rank.value["cleared"]
        assert rank.value["text"].count("\n") >= 1
    assert len({rank.value["digest"] for rank in ranks[:3]}) == 1
    wait_until_released(own_cluster, [0, 1])
    again = launch(own_cluster, scenarios.attach_only, world=4).finish()
    assert [rank.value for rank in again] == ["attached"] * 4


def test_a_killed_agent_ends_all_with_typed_errors(own_cluster, launch):
    running = launch(own_cluster, scenarios.interrupted, world=4)
    running.wait_said("training")
    assert all(memory_files(own_cluster, [0, 1]))
    own_cluster.agents[1].kill()
    running.tell(15)
    ranks = running.finish(DEADLINE_SECONDS + 20)
    for number, rank in enumerate(ranks):
        assert rank.value["error"] in TYPED, rank
        assert rank.value["untouched"]
        if number >= 2:
            assert rank.value["error"] == "AgentUnresponsiveError"
    assert len({rank.value["digest"] for rank in ranks}) == 1
    wait_until_released(own_cluster, [0])
    assert not own_cluster.socket(1).exists()
    own_cluster.agents[1].restart()  # On the socket path of the dead one.
    again = launch(own_cluster, scenarios.attach_only).finish()
    assert [rank.value for rank in again] == ["attached"] * 2


def test_a_missing_agent_is_one_clear_error(cluster, launch):
    nowhere = {"PACTRAIN_AGENT": "unix:/nowhere/agent.sock"}
    for rank in launch(cluster, scenarios.attach_only, environment=nowhere).finish():
        assert rank.error == "AgentUnresponsiveError"
        assert "/nowhere/agent.sock" in rank.text


def test_bad_settings_are_errors_before_anyone_waits(cluster, launch):
    ranks = launch(cluster, scenarios.attach_only, amount=1.5).finish()
    assert [rank.error for rank in ranks] == ["InvalidArgument"] * 2
    assert "amount is 1.5" in ranks[0].text
    site = {"PACTRAIN_SITE": "elsewhere"}
    for rank in launch(cluster, scenarios.attach_only, environment=site).finish():
        assert rank.error == "RefusedError"
        assert "elsewhere" in rank.text


def test_a_rank_that_never_attaches_is_named(cluster, launch):
    quick = {"PACTRAIN_ATTACH_TIMEOUT": "2"}
    running = launch(cluster, scenarios.only_rank_zero_attaches, environment=quick)
    running.wait_until(lambda: bool(running.ranks[0].error), 20)
    assert running.ranks[0].error == "CoordinatorUnavailableError"
    assert "1" in running.ranks[0].text


def test_ranks_with_different_job_names_are_refused_at_once(cluster, launch):
    for rank in launch(cluster, scenarios.jobs_of_their_own).finish():
        assert rank.error == "RefusedError"
        assert "rank 0 has 'job-of-rank-0', rank 1 has 'job-of-rank-1'" in rank.text


def test_an_agent_that_only_some_ranks_have_is_refused_at_once(cluster, launch):
    for rank in launch(cluster, scenarios.agent_of_rank_zero_only).finish():
        assert rank.error == "RefusedError"
        assert f"rank 0 has unix:{cluster.socket(0)}, rank 1 has none" in rank.text
