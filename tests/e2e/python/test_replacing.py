"""A job that begins anew although ranks that hold its state may live."""

from __future__ import annotations

import calendar
import re
import signal
import subprocess
import time

import pytest
from conftest import SHORT, running
from daemons import Cluster, Daemon
from elastic import BATCHES, STOP, Join, equal, on, pair, stopped, values
from launcher import Launch
from patience import PATIENCE_SECONDS
from replacing_scenarios import told, until_replaced

PRESUMED_SECONDS = 10  # The least that --presume-dead-after takes.
WAITS_FOR = "rank 0 (agent 'agent-0', site 'site-0') may hold this job's state and train on"


def other_nodes(cluster: Cluster) -> list[Daemon]:
    """A node more for each site."""
    nodes = [cluster.start_agent(2 + site, site, SHORT) for site in range(2)]
    cluster.agents += nodes
    return nodes


def send(what: signal.Signals, agents: list[Daemon], ranks: list[Launch]) -> None:
    for agent in agents:
        agent.child.process.send_signal(what)
    for rank in ranks:
        rank.kill(0, what)


def taken_away(cluster: Cluster, ranks: list[Launch]) -> None:
    """The nodes of all ranks, whole; others have their names then."""
    for agent in cluster.agents:
        agent.kill()
    for rank in ranks:
        rank.kill(0)
    for number, agent in enumerate(cluster.agents):
        cluster.socket(number).with_suffix(".sock.trainers").unlink()
        agent.restart()


def shown(cluster: Cluster, *words: str) -> str:
    return subprocess.check_output(cluster.admin(*words), text=True, timeout=PATIENCE_SECONDS)


def waits(cluster: Cluster, job: str, ranks: list[Launch]) -> None:
    """The rank that users look at and the operator are told for whom, and what can be done."""
    ranks[0].wait_until(
        lambda: any(WAITS_FOR in str(word) for word in ranks[0].ranks[0].said), PATIENCE_SECONDS
    )
    said = shown(cluster, "job", job)
    assert WAITS_FOR in said
    assert "out of sight since " in said
    assert f"`pactrain-admin forget {job}`" in said
    assert "PACTRAIN_REPLACE=1" in said


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_launch_that_replaces_begins_at_once_and_old_ranks_end_unchanged(
    own_cluster: Cluster, join: Join, is_stopped: bool
) -> None:
    job = own_cluster.new_job()
    old = pair(join, own_cluster, job, scenario=until_replaced)
    stopped(*old)
    old_nodes, _ = list(own_cluster.agents), other_nodes(own_cluster)
    if is_stopped:  # Else they are in sight, and their agents answer.
        send(signal.SIGSTOP, old_nodes, old)
    launched = time.time()
    new = [
        join(own_cluster, job, site, site, agent=2 + site, replace=True, stops=())
        for site in range(2)
    ]
    results = values(*new)
    ended = time.time()
    assert equal(results)
    assert [result["batches"] for result in results] == [list(range(BATCHES))] * 2
    assert results[0]["world"].generation == 2
    if is_stopped:
        send(signal.SIGCONT, old_nodes, old)
    on(*old)
    for rank in values(*old):
        assert rank["untouched"]
        assert rank["batches"] >= STOP
        said = re.search(
            r"which is over: launch 'site-0:1,site-1:1 \w+' of 2 ranks replaced it on purpose "
            r"with generation 2 at (\S+)\.\n",
            rank["text"],
        )
        assert said, rank["text"]
        at = calendar.timegm(time.strptime(said[1], "%Y-%m-%dT%H:%M:%SZ"))
        assert int(launched) <= at <= ended
    assert "lineage ended" in shown(own_cluster, "audit")


def test_a_job_whose_nodes_are_gone_waits_until_it_is_forgotten(
    own_cluster: Cluster, join: Join
) -> None:
    job = own_cluster.new_job()
    old = pair(join, own_cluster, job)
    stopped(*old)
    taken_away(own_cluster, old)
    new = pair(join, own_cluster, job, stops=(), scenario=told)
    waits(own_cluster, job, new)
    assert f"forgot the state of job {job}" in shown(own_cluster, "forget", job)
    results = values(*new)
    assert equal(results)
    assert [result["batches"] for result in results] == [list(range(BATCHES))] * 2
    assert results[0]["world"].generation == 2


def test_a_job_whose_nodes_are_gone_begins_when_they_are_presumed_dead(
    join: Join,
) -> None:
    flags = [f"--presume-dead-after={PRESUMED_SECONDS}s"]
    with running(sites=2, agent_flags=SHORT, coordinator_flags=flags) as cluster:
        job = cluster.new_job()
        old = pair(join, cluster, job)
        stopped(*old)
        taken = time.monotonic()
        taken_away(cluster, old)
        new = pair(join, cluster, job, stops=(), scenario=told)
        waits(cluster, job, new)
        assert f"(for {PRESUMED_SECONDS}s, --presume-dead-after)" in shown(cluster, "job", job)
        for rank in new:
            rank.wait_said("world size 2")
        assert time.monotonic() - taken > PRESUMED_SECONDS
        results = values(*new)
        assert equal(results)
        assert [result["batches"] for result in results] == [list(range(BATCHES))] * 2
        assert results[0]["world"].generation == 2
