"""The coordinator goes to another host, and agents find it by its name."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import running
from daemons import Cluster, no_mounts
from elastic import STOP, equal, logged, on, pair, stopped, values

NAME = "coordinator.pactrain-test.example"
HERE, THERE = "127.0.0.1", "127.0.0.2"


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """With certificates, as whoever looks for a name needs them."""
    with running(sites=2, keyed=True) as cluster:
        yield cluster


class Hosts:
    """Where the name leads, for agents."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "hosts"

    def lead_to(self, address: str) -> None:
        # Its inode is what agents have mounted.
        self._file.write_text(f"{address} {NAME}\n::ffff:{address} {NAME}\n")

    def give(self, cluster: Cluster) -> None:
        mount = 'mount --bind "$0" /etc/hosts && exec "$@"'
        port = cluster.address.rsplit(":", 1)[1]
        for agent in cluster.agents:
            agent.argv = [
                f"--coordinator={NAME}:{port}" if word.startswith("--coordinator=") else word
                for word in agent.argv
            ]
            agent.restart_by("unshare", "--mount", "sh", "-c", mount, str(self._file))


def moves(cluster: Cluster, by_backup: bool) -> None:
    """As docs/upkeep.md says: the state goes to another folder, the coordinator to THERE."""
    state = cluster.folder / "state-there"
    if by_backup:
        command = cluster.admin("backup", "move", "--json")
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        shutil.copy(json.loads(said)["path"], cluster.folder / "elsewhere")
    cluster.coordinator.terminate()
    cluster.coordinator.wait()
    here = f"--state-dir={cluster.folder / 'state'}"
    argv = [
        f"--state-dir={state}" if word == here else word.replace(HERE, THERE)
        for word in cluster.coordinator.argv
    ]
    if by_backup:
        restore = [*argv, f"--restore={cluster.folder / 'elsewhere'}"]
        subprocess.run(restore, check=True, capture_output=True)
    else:
        shutil.copytree(cluster.folder / "state", state)
    shutil.rmtree(cluster.folder / "state")
    cluster.coordinator.argv = argv
    cluster.coordinator.restart()
    cluster.address = cluster.address.replace(HERE, THERE)


@no_mounts
@pytest.mark.parametrize("by_backup", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_agents_follow_its_name_under_a_job(own_cluster, join, undisturbed, by_backup):
    wanted = undisturbed()
    hosts = Hosts(own_cluster.folder)
    hosts.lead_to(HERE)
    hosts.give(own_cluster)
    job = own_cluster.new_job()
    ranks = pair(join, own_cluster, job, stops=(STOP, 2 * STOP))
    stopped(*ranks)
    moves(own_cluster, by_backup)
    on(*ranks)
    for rank in ranks:  # Nobody has said yet where it is.
        rank.wait_said(2 * STOP)
    hosts.lead_to(THERE)
    for agent in own_cluster.agents:
        logged(own_cluster.coordinator, f"agent '{agent.name}' of site")
    on(*ranks)
    results = values(*ranks)
    assert equal(results)
    assert results[0]["digest"] == wanted
    assert results[0]["world"].generation == 1
    assert equal(values(*pair(join, own_cluster, own_cluster.new_job(), stops=())))
