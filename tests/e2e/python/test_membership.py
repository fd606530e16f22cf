"""Ranks that come and go while a script without any try trains on."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from daemons import Cluster
from elastic import BATCHES, STOP, equal, logged, on, pair, stopped, values
from patience import PATIENCE_SECONDS

# Longer than a trainer waits for a word of its agent: --step-deadline of own_cluster and 2 s.
SILENT_SECONDS = 6.0 + 2.0 + 2.0


@pytest.mark.parametrize("on_shrink", ["pause", "continue"])
def test_an_agent_is_killed_and_started_again(own_cluster, join, undisturbed, on_shrink):
    wanted = undisturbed()
    ranks = pair(join, own_cluster, own_cluster.new_job(), on_shrink=on_shrink)
    stopped(*ranks)
    own_cluster.agents[1].kill()
    own_cluster.agents[1].restart()
    on(*ranks)
    results = values(*ranks)
    assert equal(results)
    assert [result["batches"] for result in results] == [list(range(BATCHES))] * 2
    assert results[0]["digest"] == wanted  # So every batch was applied once.
    assert results[0]["world"].generation > 1


def test_an_agent_that_is_away_for_a_while_is_waited_for(own_cluster, join, undisturbed):
    wanted = undisturbed()
    ranks = pair(join, own_cluster, own_cluster.new_job())
    stopped(*ranks)
    own_cluster.agents[1].kill()
    on(*ranks)
    ranks[0].wait_until(lambda: True, 1)
    own_cluster.agents[1].restart()
    results = values(*ranks)
    assert equal(results)
    assert results[0]["digest"] == wanted


def test_an_agent_that_is_frozen_for_a_while_is_waited_for(own_cluster, join, undisturbed):
    wanted = undisturbed()
    ranks = pair(join, own_cluster, own_cluster.new_job())
    stopped(*ranks)
    frozen = own_cluster.agents[1].child.process
    frozen.send_signal(signal.SIGSTOP)
    on(*ranks)
    time.sleep(SILENT_SECONDS)
    frozen.send_signal(signal.SIGCONT)
    results = values(*ranks)
    assert equal(results)
    assert [result["batches"] for result in results] == [list(range(BATCHES))] * 2
    assert results[0]["digest"] == wanted


def test_all_that_is_killed_with_its_agents_begins_anew_at_once(own_cluster, join):
    job = own_cluster.new_job()
    ranks = pair(join, own_cluster, job)
    stopped(*ranks)
    for agent in own_cluster.agents:
        agent.kill()
    for rank in ranks:
        rank.kill(0)
    for agent in own_cluster.agents:
        agent.restart()
    results = values(*pair(join, own_cluster, job, stops=()))
    assert equal(results)
    assert [result["began"] for result in results] == [0, 0]
    assert results[0]["world"].generation == 2


def test_nothing_begins_beside_a_rank_that_outlived_its_agent(own_cluster, join):
    job = own_cluster.new_job()
    ranks = pair(join, own_cluster, job)
    stopped(*ranks)
    for agent in own_cluster.agents:
        agent.kill()
    ranks[1].kill(0)
    for agent in own_cluster.agents:
        agent.restart()
    logged(own_cluster.agents[1], "is gone: ended while its agent was away")
    again = join(own_cluster, job, 1, 1, stops=())
    on(ranks[0])
    results = values(ranks[0], again)
    assert equal(results)
    assert [result["began"] for result in results] == [0, STOP]


class States:
    """The state directory of a coordinator, and copies of it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._state = cluster.folder / "state"

    def back_up(self) -> Path:
        """As an operator does: while the coordinator is down. All agents are back then."""
        self._cluster.coordinator.kill()
        copy = self._cluster.folder / "backup"
        shutil.copytree(self._state, copy)
        self._cluster.coordinator.restart()
        for agent in self._cluster.agents:
            logged(self._cluster.coordinator, f"agent '{agent.name}' of site")
        return copy

    def put(self, other: Path) -> Path:
        """In place of the one that is there, which is returned."""
        self._cluster.coordinator.kill()
        there = self._cluster.folder / "there"
        self._state.rename(there)
        other.rename(self._state)
        self._cluster.coordinator.restart()
        return there


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_restored_state_directory_is_refused_with_what_to_do(
    own_cluster, join, undisturbed, is_lost
):
    wanted = undisturbed()
    job = own_cluster.new_job()
    ranks = pair(join, own_cluster, job, stops=(STOP, 2 * STOP))
    stopped(*ranks)
    states = States(own_cluster)
    copy = states.back_up()
    on(*ranks)
    for rank in ranks:
        rank.wait_said(2 * STOP)
    # What the copy does not know.
    subprocess.run(own_cluster.admin("pin", job, "FULL"), check=True)
    newest = states.put(copy)
    logged(own_cluster.coordinator, "THE STATE DIRECTORY IS AN OLDER COPY")
    for agent in own_cluster.agents:
        logged(agent, "refused this agent (THE STATE DIRECTORY IS AN OLDER COPY")
    # As it says: the newest one, or an empty one and then all agents.
    own_cluster.coordinator.kill()
    shutil.rmtree(own_cluster.folder / "state")
    if not is_lost:
        newest.rename(own_cluster.folder / "state")
    own_cluster.coordinator.restart()
    if is_lost:
        for agent in own_cluster.agents:
            agent.restart()
    on(*ranks)
    results = values(*ranks)
    assert equal(results)
    assert [result["batches"] for result in results] == [list(range(BATCHES))] * 2
    assert results[0]["digest"] == wanted


def test_agents_that_followed_an_older_copy_are_started_anew_on_the_newest(
    own_cluster, join, undisturbed
):
    wanted = undisturbed()
    job = own_cluster.new_job()
    ranks = pair(join, own_cluster, job, stops=(STOP, 2 * STOP))
    stopped(*ranks)
    states = States(own_cluster)
    copy = states.back_up()
    own_cluster.agents[0].restart()  # So ranks come to a generation that it lacks.
    on(*ranks)
    for rank in ranks:
        rank.wait_said(2 * STOP)
    # Before it is there: by the word of one of these the coordinator would listen to no rank.
    for agent in own_cluster.agents:
        agent.kill()
    newest = states.put(copy)
    for agent in own_cluster.agents:
        agent.restart()
    on(*ranks)
    logged(own_cluster.coordinator, "THE STATE DIRECTORY IS AN OLDER COPY: rank ")
    logged(own_cluster.coordinator, "on the newest state directory and then all agents anew")
    own_cluster.coordinator.kill()
    shutil.rmtree(own_cluster.folder / "state")
    newest.rename(own_cluster.folder / "state")
    own_cluster.coordinator.restart()
    for agent in own_cluster.agents:
        agent.restart()
    results = values(*ranks)
    assert equal(results)
    assert [result["batches"] for result in results] == [list(range(BATCHES))] * 2
    assert results[0]["digest"] == wanted


def test_with_masks_in_force_it_is_the_same(own_cluster, join):
    ranks = pair(join, own_cluster, own_cluster.new_job(), amount=0.6, until=60)
    stopped(*ranks)
    own_cluster.agents[0].kill()
    own_cluster.agents[0].restart()
    on(*ranks)
    results = values(*ranks)
    assert equal(results)
    assert results[0]["stats"]["pactrain/masks_active"] == 1


def test_pause_waits_for_a_killed_trainer(own_cluster, join):
    job = own_cluster.new_job()
    first, second = pair(join, own_cluster, job)
    stopped(first, second)
    second.kill(0)
    on(first)
    again = join(own_cluster, job, 1, 1, stops=())
    results = values(first, again)
    assert equal(results)
    assert results[0]["batches"] == list(range(BATCHES))
    assert results[0]["sizes"] == [2]
    assert results[1]["began"] == STOP
    assert results[1]["batches"] == list(range(STOP, BATCHES))


def test_a_slow_rank_is_waited_for_much_longer_than_the_step_deadline(tmp_path, join):
    cluster = Cluster(tmp_path, sites=2, agent_flags=["--step-deadline=500ms"])
    try:
        ranks = pair(join, cluster, cluster.new_job())
        stopped(*ranks)
        on(ranks[0])
        logged(cluster.agents[0], "waits: agent agent-1 (site site-1): rank 1 has not")
        time.sleep(2)
        on(ranks[1])
        results = values(*ranks)
        assert equal(results)
        assert results[0]["world"].generation == 1
    finally:
        cluster.stop()


def test_pause_waits_for_a_rank_that_was_slower_than_that(own_cluster, join, undisturbed):
    wanted = undisturbed()
    ranks = pair(join, own_cluster, own_cluster.new_job())
    stopped(*ranks)
    on(ranks[0])
    logged(own_cluster.agents[0], "generation 1 ended (straggler)")
    on(ranks[1])
    results = values(*ranks)
    assert equal(results)
    assert results[0]["digest"] == wanted
    assert results[0]["world"].generation > 1


def test_continue_goes_on_without_a_slow_rank_until_it_is_back(own_cluster, join):
    options = {"on_shrink": "continue", "sizes": (2, 1, 2), "until": 0}
    ranks = pair(join, own_cluster, own_cluster.new_job(), **options)
    stopped(*ranks)
    on(ranks[0])
    ranks[0].wait_said("world size 1")  # Else the other may be back before a batch of one.
    on(ranks[1])
    assert equal(values(*ranks))


def test_continue_goes_on_with_those_that_are_left(own_cluster, join):
    sites, job = "site-0:1,site-1:1", own_cluster.new_job()
    ranks = pair(join, own_cluster, job, on_shrink="continue", sites=sites)
    stopped(*ranks)
    ranks[0].kill(0)
    own_cluster.agents[0].kill()
    on(ranks[1])
    (result,) = values(ranks[1])
    assert result["batches"] == list(range(BATCHES))
    assert result["sizes"] == [2, 1]
    assert (result["world"].rank, result["world"].world_size) == (0, 1)


def test_a_third_site_joins_and_leaves_again(chain, join):
    job = chain.new_job()
    ranks = pair(join, chain, job, stops=(STOP,), sizes=(2, 3, 2))
    stopped(*ranks)
    third = join(chain, job, 2, 2, sites="", stops=(), lasts=10, until=5000)
    on(*ranks)
    (left,) = values(third)
    results = values(*ranks)
    assert equal(results)
    assert left["began"] >= STOP
    assert left["world"].world_size == 3
    assert left["sizes"] == [2, 3]  # The others' place came with the state.
    assert results[0]["world"].world_size == 2
    assert results[0]["batches"] == list(range(len(results[0]["batches"])))


def test_a_newcomer_has_the_others_bits(chain, join):
    job = chain.new_job()
    ranks = pair(join, chain, job, stops=(STOP,), sizes=(2, 3))
    stopped(*ranks)
    third = join(chain, job, 2, 2, sites="", stops=(), sizes=(2, 3))
    on(*ranks)
    results = values(*ranks, third)
    assert equal(results)
    assert results[2]["began"] >= STOP


def test_a_rank_with_a_memory_fault_is_named_and_gives_its_state_to_nobody(chain, join):
    sites, job = "site-0:1,site-1:1,site-2:1", chain.new_job()
    ranks = [
        join(chain, job, site, site, sites=sites, on_shrink="continue", fault=site == 0)
        for site in range(3)
    ]
    stopped(*ranks)
    chain.agents[2].kill()
    chain.agents[2].restart()
    on(*ranks)
    (faulty,) = ranks[0].finish()
    assert faulty.error == "RefusedError", faulty
    assert "claims a state of lineage" in faulty.text
    assert "hold other parameters after the same steps" in faulty.text
    results = values(*ranks[1:])
    assert equal(results)
    assert results[0]["batches"] == list(range(BATCHES))
    assert results[0]["sizes"] == [3, 2]


def test_of_two_ranks_that_differ_none_is_believed_until_an_operator_says(own_cluster, join):
    job = own_cluster.new_job()
    faulty, other = (
        join(own_cluster, job, site, site, on_shrink="continue", fault=site == 0)
        for site in range(2)
    )
    stopped(faulty, other)
    own_cluster.agents[1].kill()
    own_cluster.agents[1].restart()
    on(faulty, other)
    logged(own_cluster.coordinator, "hold other parameters after the same steps")
    faulty.kill(0)  # Who waits longer is not right by that.
    logged(own_cluster.agents[0], "is gone: ")
    evict = own_cluster.admin("evict", own_cluster.agents[0].name)
    subprocess.run(evict, check=True, timeout=PATIENCE_SECONDS)
    (result,) = values(other)
    assert result["batches"] == list(range(BATCHES))
    assert result["sizes"] == [2, 1]


def test_abort_ends_all_as_ever(own_cluster, join):
    ranks = pair(join, own_cluster, own_cluster.new_job(), on_shrink="abort")
    stopped(*ranks)
    ranks[1].kill(0)
    on(ranks[0])
    (ended,) = ranks[0].finish()
    assert ended.error in {"StepNotAppliedError", "ResyncRequiredError"}, ended


def wait_until_it_ends(cluster: Cluster, job: str) -> None:
    """The generation of a job, since somebody wants to join it."""
    end = time.monotonic() + PATIENCE_SECONDS
    command = cluster.admin("job", job)
    while re.search("state +running", subprocess.check_output(command, text=True)):
        assert time.monotonic() < end, "nobody has joined"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"share": False}, "place (Place), scheduler (StepLR); this rank nothing"),
        ({"width": 0}, "model"),
    ],
)
def test_a_newcomer_that_does_not_fit_goes_and_the_others_go_on(
    own_cluster, join, undisturbed, options, words
):
    wanted = undisturbed()
    job = own_cluster.new_job()
    ranks = pair(join, own_cluster, job)
    stopped(*ranks)
    third = join(own_cluster, job, 1, 2, sites="", stops=(), **options)
    if "share" in options:  # It is let in, and sees then that it does not fit.
        wait_until_it_ends(own_cluster, job)
        on(*ranks)
        (refused,) = third.finish()
    else:
        (refused,) = third.finish()
        on(*ranks)
    assert refused.error == "RefusedError", refused
    assert words in refused.text
    results = values(*ranks)
    assert equal(results)
    assert results[0]["digest"] == wanted
