"""A job's key is changed for a new one while the job trains."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import scenarios
from daemons import BIN, Cluster
from elastic import logged
from patience import PATIENCE_SECONDS


@pytest.fixture
def keyed() -> Iterator[Cluster]:
    """A coordinator and two agents that hold one key, each with a file of its own."""
    with tempfile.TemporaryDirectory(prefix="pactrain-e2e-") as folder:
        key = Path(folder) / "job.key"
        subprocess.run([str(BIN / "pactrain-admin"), "new-key", str(key)], check=True)
        cluster = Cluster(Path(folder), 0, coordinator_flags=[f"--job-key-file={key}"])
        for number in (0, 1):
            own = shutil.copy(key, Path(folder) / f"agent-{number}.key")
            flags = [f"--job-key-file={own}", "--step-deadline=6s"]
            cluster.agents.append(cluster.start_agent(number, number, flags))
        try:
            yield cluster
        finally:
            cluster.stop()


def jobs(cluster: Cluster, key: Path) -> str:
    command = cluster.admin("jobs", f"--job-key-file={key}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    return done.stdout + done.stderr


def bring(cluster: Cluster, key: Path) -> None:
    """To all daemons, as an operator would: beside, then renamed."""
    for name in ("agent-0", "agent-1"):
        shutil.copy(key, cluster.folder / "fresh")
        (cluster.folder / "fresh").rename(cluster.folder / f"{name}.key")


def test_sec_a_jobs_key_is_changed_while_it_trains(keyed, launch):
    old = Path(shutil.copy(keyed.folder / "job.key", keyed.folder / "old.key"))
    key = keyed.folder / "job.key"
    job = launch(keyed, scenarios.interrupted)
    job.wait_said("training")
    command = [str(BIN / "pactrain-admin"), "rotate-key", str(key), "--at=5s", "--overlap=3s"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    new = done.stdout.split("key/")[1].split()[0]
    bring(keyed, key)
    daemons = [keyed.coordinator, *keyed.agents]
    for daemon in daemons:
        logged(daemon, "and key/" + new + " are taken")
    for daemon in daemons:
        logged(daemon, "the own certificate is of key/" + new)
    # At its moment the old one ends, with all connections that were opened by it.
    for daemon in daemons:
        logged(daemon, "certificates of key/" + new + " are taken")
    logged(keyed.coordinator, "is taken no more")
    assert "cannot be reached" in jobs(keyed, old)
    for agent in keyed.agents:
        logged(agent, "lost the coordinator")
    shown = jobs(keyed, key)
    assert "running" in shown, shown
    job.tell(5)
    ended = job.finish()
    assert [rank.value["steps"] for rank in ended] == [10, 10], ended
    # Who comes now comes by the new one.
    later = launch(keyed, scenarios.interrupted)
    later.wait_said("training")
    later.tell(1)
    assert [rank.value["steps"] for rank in later.finish()] == [6, 6]
