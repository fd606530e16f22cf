"""What operators do while jobs train: backups, restoring one, draining a node."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from daemons import Cluster
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


def backed_up(cluster: Cluster, name: str) -> str:
    """While the coordinator runs; the file."""
    command = cluster.admin("backup", name, "--json")
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    path: str = json.loads(said)["path"]
    return path


def lost_and_restored(cluster: Cluster, backup: str) -> None:
    """The machine of the coordinator is gone with all but a copy of the backup."""
    copy = cluster.folder / "elsewhere"
    shutil.copy(backup, copy)
    cluster.coordinator.kill()
    shutil.rmtree(cluster.folder / "state")
    command = [*cluster.coordinator.argv, f"--restore={copy}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "start the coordinator on it" in done.stdout
    cluster.coordinator.restart()


def test_a_backup_takes_the_place_of_a_lost_state_directory(own_cluster, join, undisturbed):
    wanted = undisturbed()
    job = own_cluster.new_job()
    ranks = pair(join, own_cluster, job, stops=(STOP, 2 * STOP))
    stopped(*ranks)
    backup = backed_up(own_cluster, "nightly")
    on(*ranks)
    for rank in ranks:
        rank.wait_said(2 * STOP)
    subprocess.run(own_cluster.admin("pin", job, "FULL"), check=True)
    lost_and_restored(own_cluster, backup)
    for agent in own_cluster.agents:
        logged(own_cluster.coordinator, f"agent '{agent.name}' was told by a coordinator")
        logged(own_cluster.coordinator, f"agent '{agent.name}' of site")
    on(*ranks)
    results = values(*ranks)
    assert equal(results)
    assert results[0]["digest"] == wanted
    assert results[0]["world"].generation == 1
    shown = subprocess.run(own_cluster.admin("audit"), check=True, capture_output=True, text=True)
    assert "state restored" in shown.stdout and "backups/nightly" in shown.stdout
    # What agents were told of since is no longer there, on purpose.
    seen = own_cluster.admin("audit", "--verify")
    assert "went when a backup was restored" in subprocess.check_output(seen, text=True)


def test_ranks_that_regrouped_since_go_on_from_their_newest_state(own_cluster, join, undisturbed):
    job = own_cluster.new_job()
    ranks = pair(join, own_cluster, job, stops=(STOP, 2 * STOP))
    stopped(*ranks)
    backup = backed_up(own_cluster, "nightly")
    ranks[1].kill(0)
    on(ranks[0])
    ranks[1] = join(own_cluster, job, 1, 1, stops=(2 * STOP,))
    for rank in ranks:
        rank.wait_said(2 * STOP)
    lost_and_restored(own_cluster, backup)
    logged(own_cluster.coordinator, "the backup that was restored is older")
    on(*ranks)
    results = values(*ranks)
    assert equal(results)
    assert results[0]["batches"] == list(range(BATCHES))
    assert results[0]["world"].generation > 1_000_000_000


@pytest.mark.parametrize("on_shrink", ["pause", "continue"])
def test_the_others_go_on_when_a_node_is_drained(own_cluster, join, on_shrink):
    job = own_cluster.new_job()
    ranks = pair(join, own_cluster, job, on_shrink=on_shrink)
    stopped(*ranks)
    command = own_cluster.admin("drain", "agent-1")
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert f"its ranks leave {job}" in said
    on(*ranks)
    (stays,) = values(ranks[0])
    assert stays["batches"] == list(range(BATCHES))
    assert stays["sizes"] == [2, 1]
    (leaves,) = ranks[1].finish()
    assert leaves.error == "RefusedError", leaves
    assert "agent 'agent-1' was drained by" in leaves.text
    # Started again it takes trainers.
    own_cluster.agents[1].restart()
    logged(own_cluster.agents[1], "connected with coordinator")
    shown = subprocess.run(own_cluster.admin("agents"), check=True, capture_output=True, text=True)
    assert "drained" not in shown.stdout
