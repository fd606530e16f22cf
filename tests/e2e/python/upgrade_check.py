"""Two releases beside each other in one job, which becomes newer node by node while it runs.

Run by `make deploy-check`, as docs/upkeep.md says it: the coordinator first, then each node's
agent and, with it, the wheel of its launch. PACTRAIN_TEST_PREVIOUS names the folder with the
release before (tools/previous).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from daemons import BIN, Cluster, Daemon
from elastic import (
    BATCHES,
    STOP,
    equal,
    on,
    values,
)

PREVIOUS = Path(os.environ["PACTRAIN_TEST_PREVIOUS"])


def becomes(daemon: Daemon, folder: Path) -> None:
    """The daemon is stopped, and started again as the program of that folder."""
    program = folder / Path(daemon.argv[0]).name
    assert program.is_file(), program
    daemon.argv = [str(program), *daemon.argv[1:]]
    daemon.restart()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_one_by_one_under_a_running_job(own_cluster: Cluster, join, undisturbed, order):
    wanted = undisturbed()
    # An older coordinator refuses what a newer one has written.
    own_cluster.coordinator.kill()
    shutil.rmtree(own_cluster.folder / "state")
    for daemon in (own_cluster.coordinator, *own_cluster.agents):
        becomes(daemon, PREVIOUS / "bin")
    stops = (STOP // 2, STOP, 2 * STOP)
    job = own_cluster.new_job()
    old = {"stops": stops, "package": PREVIOUS / "python"}
    ranks = [join(own_cluster, job, site, site, **old) for site in (0, 1)]
    for rank in ranks:
        rank.wait_said(stops[0])
    becomes(own_cluster.coordinator, BIN)
    on(*ranks)
    for stop, node in zip(stops[1:], order, strict=True):
        for rank in ranks:
            rank.wait_said(stop)
        ranks[node].kill(0)
        becomes(own_cluster.agents[node], BIN)
        ranks[node] = join(own_cluster, job, node, node, stops=stops)
        on(ranks[1 - node])
    results = values(*ranks)
    assert equal(results)
    for result, stop in zip((results[node] for node in order), stops[1:], strict=True):
        assert result["began"] == stop
        assert result["batches"] == list(range(stop, BATCHES))
    assert results[0]["digest"] == wanted  # So every batch was applied once.
