"""What operators do while jobs train: backups, restoring one, draining a node, releases."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from daemons import BIN, Cluster
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

from bench.other_release import of_release


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


def test_a_drain_outlives_the_coordinator_until_it_is_taken_back(own_cluster, join):
    job = own_cluster.new_job()
    ranks = pair(join, own_cluster, job, on_shrink="continue")
    stopped(*ranks)
    subprocess.run(own_cluster.admin("drain", "agent-1"), check=True)
    own_cluster.coordinator.restart()
    for agent in own_cluster.agents:
        logged(own_cluster.coordinator, f"agent '{agent.name}' of site")
    on(*ranks)
    values(ranks[0])
    (leaves,) = ranks[1].finish()
    assert leaves.error == "RefusedError", leaves
    agents = own_cluster.admin("agents")
    shown = subprocess.run(agents, check=True, capture_output=True, text=True).stdout
    assert "agent 'agent-1' was drained by" in shown
    # Who comes there now is refused, until the drain is taken back.
    (refused,) = pair(join, own_cluster, own_cluster.new_job())[1].finish()
    assert "pactrain-admin undrain agent-1" in refused.text
    subprocess.run(own_cluster.admin("undrain", "agent-1"), check=True)
    assert "drained" not in subprocess.run(agents, capture_output=True, text=True).stdout
    assert equal(values(*pair(join, own_cluster, own_cluster.new_job(), stops=())))


def test_an_agent_of_a_release_that_is_no_neighbour_is_refused(own_cluster):
    agent = own_cluster.agents[1]
    agent.kill()
    program = of_release(BIN / "pactrain-agent", own_cluster.folder, minors_later=2)
    done = subprocess.run([str(program), *agent.argv[1:]], capture_output=True, text=True)
    assert done.returncode == 1
    number = program.name.rsplit("-", 1)[1]
    for said in (done.stderr, own_cluster.coordinator.child.log.read_text()):
        assert f"'agent-1' is of release {number}, this coordinator of release " in said
        assert f"bring both to {number}, where a job is to train on" in said


def test_a_neighbouring_release_is_told_of_and_trains(own_cluster, join):
    agent = own_cluster.agents[1]
    program = of_release(BIN / "pactrain-agent", own_cluster.folder, minors_later=1)
    agent.argv = [str(program), *agent.argv[1:]]
    agent.restart()
    for daemon in (own_cluster.coordinator, agent):
        logged(daemon, "neighbours work together; finish the upgrade")
    assert equal(values(*pair(join, own_cluster, own_cluster.new_job(), stops=())))
