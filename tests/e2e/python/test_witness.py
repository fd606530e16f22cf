"""Who writes to the coordinator's state directory, and agents that have seen more."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from pathlib import Path

import scenarios
from daemons import Cluster
from elastic import eventually, logged
from patience import PATIENCE_SECONDS

CUT = """
DELETE FROM audit WHERE number > 4;
UPDATE audit_ends SET number = 4, hash = (SELECT hash FROM audit WHERE number = 4)
  WHERE name = 'newest';
"""


def audit(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    command = cluster.admin("audit", *words)
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)


def kept(cluster: Cluster, agent: int) -> Path:
    """What the agent keeps beside its socket, once there is something."""
    file = Path(f"{cluster.socket(agent)}.audit")
    eventually(file.exists, f"agent {agent} keeps nothing")
    return file


def is_told_by_both(cluster: Cluster) -> bool:
    """The coordinator has heard what both agents keep."""
    seen = audit(cluster, "--verify")
    assert seen.returncode == 0 or "nobody vouches" in seen.stderr, seen
    return all(f"agent-{agent} (to line" in seen.stdout for agent in (0, 1))


def test_sec_attack_9_what_agents_keep_outlives_another_cluster(own_cluster):
    """An empty state directory for a while, and agents that start anew meanwhile."""
    coordinator, agents = own_cluster.coordinator, own_cluster.agents
    eventually(lambda: is_told_by_both(own_cluster), "no agent says what it keeps")
    for words in (["evict", "victim"], ["readmit", "victim"]):
        subprocess.run(own_cluster.admin(*words), check=True, capture_output=True)
    log = audit(own_cluster).stdout
    last = int(log.splitlines()[-2].split()[0])
    eventually(lambda: f"(to line {last})" in audit(own_cluster, "--verify").stdout, "not told")
    state, other = own_cluster.folder / "state", own_cluster.folder / "other"
    coordinator.kill()
    state.rename(other)
    for daemon in (coordinator, *agents):
        daemon.restart()
    eventually(lambda: is_told_by_both(own_cluster), "no agent says what it keeps")
    coordinator.kill()
    shutil.rmtree(state)
    other.rename(state)
    database = sqlite3.connect(state / "journal.db")
    database.executescript(CUT)
    database.close()
    for daemon in (coordinator, *agents):
        daemon.restart()
    logged(coordinator, "THE AUDIT LOG WAS CHANGED: line 5 is missing: agent ")
    found = audit(own_cluster, "--verify")
    assert found.returncode == 1
    assert "line 5 is missing: agent " in found.stderr, found


def test_sec_attack_9_agents_name_the_first_line_of_the_audit_log_that_was_cut(own_cluster, launch):
    job = launch(own_cluster, scenarios.interrupted)
    job.wait_said("training")
    files = [kept(own_cluster, agent) for agent in (0, 1)]
    eventually(lambda: is_told_by_both(own_cluster), "no agent says what it keeps")
    own_cluster.coordinator.kill()
    database = sqlite3.connect(own_cluster.folder / "state" / "journal.db")
    database.executescript(CUT)
    database.close()
    own_cluster.coordinator.restart()
    logged(own_cluster.coordinator, "THE AUDIT LOG WAS CHANGED: lines 5 to ")
    assert "chain whole" in audit(own_cluster).stdout  # By itself it shows nothing.
    for words in (["--verify"], [f"--witness={files[1]}"]):
        found = audit(own_cluster, *words)
        assert found.returncode == 1
        assert "line 5 is missing, and all to " in found.stderr, found
    job.tell(5)
    ended = job.finish()
    assert [rank.value["steps"] for rank in ended] == [10, 10]
    # It is in the log that goes on, too.
    assert "audit log changed" in audit(own_cluster).stdout
