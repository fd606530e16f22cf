"""Coordinator and agents of two releases beside each other, and changed under a running job.

Run by `make deploy-check`. PACTRAIN_TEST_PREVIOUS names a folder with the daemons of the
release before (tools/previous); the trainers are of this one.
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
    pair,
    values,
)

PREVIOUS = Path(os.environ["PACTRAIN_TEST_PREVIOUS"])


def becomes(daemon: Daemon, folder: Path) -> None:
    """The daemon is stopped, and started again as the program of that folder."""
    program = folder / Path(daemon.argv[0]).name
    assert program.is_file(), program
    daemon.argv = [str(program), *daemon.argv[1:]]
    daemon.restart()


@pytest.mark.parametrize("order", [("coordinator", 0, 1), (1, "coordinator", 0)])
def test_one_by_one_under_a_running_job(own_cluster: Cluster, join, undisturbed, order):
    wanted = undisturbed()
    # An older coordinator refuses what a newer one has written.
    own_cluster.coordinator.kill()
    shutil.rmtree(own_cluster.folder / "state")
    daemons = {"coordinator": own_cluster.coordinator, **dict(enumerate(own_cluster.agents))}
    for daemon in daemons.values():
        becomes(daemon, PREVIOUS)
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
