"""Two releases beside each other, changed for one another under a running job.

Run by `make deploy-check`. PACTRAIN_TEST_PREVIOUS names the folder of the release before, as
tools/previous makes it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from daemons import BIN, Cluster, Daemon
from elastic import (
    BATCHES,
    STOP,
    equal,
    logged,
    on,
    pair,
    stopped,
    values,
)
from launcher import Launch

PREVIOUS = Path(os.environ["PACTRAIN_TEST_PREVIOUS"])


def becomes(daemon: Daemon, folder: Path) -> None:
    """The daemon is stopped, and started again as the program of that folder."""
    program = folder / Path(daemon.argv[0]).name
    assert program.is_file(), program
    daemon.argv = [str(program), *daemon.argv[1:]]
    daemon.restart()


def all_older(cluster: Cluster) -> None:
    # An older coordinator refuses what a newer one has written.
    cluster.coordinator.kill()
    shutil.rmtree(cluster.folder / "state")
    for daemon in (cluster.coordinator, *cluster.agents):
        becomes(daemon, PREVIOUS / "bin")


@pytest.mark.parametrize("order", [("coordinator", 0, 1), (1, "coordinator", 0)])
def test_one_by_one_under_a_running_job(own_cluster: Cluster, join, undisturbed, order):
    wanted = undisturbed()
    """The daemons; trainers are of this release."""
    all_older(own_cluster)
    daemons = {"coordinator": own_cluster.coordinator, **dict(enumerate(own_cluster.agents))}
    stops = (STOP // 2, STOP, 2 * STOP)
    ranks = pair(join, own_cluster, own_cluster.new_job(), stops=stops)
    for stop, name in zip(stops, order, strict=True):
        for rank in ranks:
            rank.wait_said(stop)
        becomes(daemons[name], BIN)
        on(*ranks)
    results = values(*ranks)
    assert equal(results)
    assert [result["batches"] for result in results] == [list(range(BATCHES))] * 2
    assert results[0]["digest"] == wanted  # So every batch was applied once.


def meets_another_again(launch: Launch) -> None:
    said = launch.ranks[0].said
    launch.wait_until(lambda: said.count("world size 2") == 2, 60)


def test_node_by_node_as_the_page_says(own_cluster: Cluster, join):
    """docs/upkeep.md: the coordinator, then each node drained, with agent and wheel."""
    all_older(own_cluster)
    job = own_cluster.new_job()
    sizes = (2, 1, 2, 1, 2)
    options = {"on_shrink": "continue", "sizes": sizes, "lasts": 1_000_000}
    older = pair(join, own_cluster, job, packages=str(PREVIOUS / "python"), **options)
    stopped(*older)
    becomes(own_cluster.coordinator, BIN)
    for agent in own_cluster.agents:
        logged(own_cluster.coordinator, f"agent '{agent.name}' of site")
    ranks, stays = list(older), older[0]
    for node in (1, 0):
        subprocess.run(own_cluster.admin("drain", f"agent-{node}"), check=True)
        if node == 1:
            on(*older)
        (left,) = ranks[node].finish()
        assert left.error == "RefusedError" and "was drained by" in left.text, left
        becomes(own_cluster.agents[node], BIN)
        logged(own_cluster.agents[node], "connected with coordinator")
        ranks[node] = join(own_cluster, job, node, node, stops=(), **options)
        meets_another_again(stays)
        stays = ranks[node]
    results = values(*ranks)
    assert equal(results)
    assert [tuple(result["sizes"]) for result in results] == [sizes] * 2
