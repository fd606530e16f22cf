"""Wall clocks of daemons that step while they train."""

from __future__ import annotations

import re
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import running
from daemons import Cluster, Daemon
from elastic import STOP, equal, eventually, logged, on, pair, stopped, values
from patience import PATIENCE_SECONDS
from test_doctor import doctor

DAYS = 24 * 3600


class SteppedClocks:
    """The wall clocks of daemons; each is its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._library = folder / "stepped_clock.so"
        source = Path(__file__).with_name("stepped_clock.c")
        command = ["gcc", "-O1", "-shared", "-fPIC", "-o", str(self._library), str(source)]
        subprocess.run(command, check=True)

    def words(self, name: str, seconds: int = 0) -> list[str]:
        """Before a command line, whose clock is so far ahead of this machine's."""
        file = self._folder / Path(name).name
        file.write_bytes(struct.pack("=q", seconds))
        return ["env", f"LD_PRELOAD={self._library}", f"STEPPED_CLOCK={file}"]

    def give(self, daemon: Daemon) -> None:
        daemon.restart_by(*self.words(daemon.name))

    def step(self, daemon: Daemon, seconds: int) -> None:
        """From now on it is so far ahead of this machine's."""
        with (self._folder / daemon.name).open("r+b") as file:
            file.write(struct.pack("=q", seconds))


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """With certificates of a job key, since those are valid by the clock."""
    with running(sites=2, keyed=True) as cluster:
        yield cluster


@pytest.fixture
def clocks(own_cluster, tmp_path) -> SteppedClocks:
    clocks = SteppedClocks(tmp_path)
    for daemon in (own_cluster.coordinator, *own_cluster.agents):
        clocks.give(daemon)
    for daemon in own_cluster.agents:
        logged(own_cluster.coordinator, f"agent '{daemon.name}' of site")
    return clocks


@pytest.mark.parametrize("days", [30, -30])
@pytest.mark.parametrize("whose", ["coordinator", "agent"])
def test_training_does_not_notice_a_clock_that_steps(
    own_cluster, clocks, join, undisturbed, whose, days
):
    """Further than certificates hold."""
    wanted = undisturbed()
    agent = own_cluster.agents[1]
    daemon = own_cluster.coordinator if whose == "coordinator" else agent
    ranks = pair(join, own_cluster, own_cluster.new_job(), stops=(STOP, 2 * STOP))
    stopped(*ranks)
    clocks.step(daemon, days * DAYS)
    if whose == "coordinator":
        # Who comes anew is refused, since certificates are not valid by its clock.
        agents = subprocess.run(own_cluster.admin("agents"), capture_output=True, text=True)
        assert agents.returncode == 1
        assert "cannot be reached" in agents.stderr
    if whose == "coordinator" and days > 0:
        # No connection to it outlives its certificate.
        logged(agent, "cannot be reached")
    on(*ranks)
    for rank in ranks:
        rank.wait_said(2 * STOP)
    clocks.step(daemon, 0)
    on(*ranks)
    results = values(*ranks)
    assert equal(results)
    assert results[0]["digest"] == wanted
    assert results[0]["world"].generation == 1
    # All are connected again, and new jobs start.
    assert equal(values(*pair(join, own_cluster, own_cluster.new_job(), stops=())))
    # Its certificate may be one of the other day until it looks at the clock again.
    audit = own_cluster.admin("audit")
    eventually(lambda: subprocess.run(audit, capture_output=True).returncode == 0)


@pytest.mark.parametrize("hours", [1, -1])
def test_the_doctor_names_a_clock_that_is_off(own_cluster, clocks, hours):
    key = own_cluster.protection.removeprefix("--job-key-file=")
    clocks.step(own_cluster.coordinator, hours * 3600)
    where = "ahead of" if hours > 0 else "behind"
    # The coordinator itself looks at it every few seconds only (absl::Now()).
    end = time.monotonic() + PATIENCE_SECONDS
    while (done := doctor(own_cluster, PACTRAIN_ADMIN_JOB_KEY_FILE=key)).returncode == 0:
        assert time.monotonic() < end, done.stdout
    assert re.search(
        rf"clock +problem +the coordinator's is 3[56]\d\d\.\d\d s {where}", done.stdout
    )
    assert "set both by NTP" in done.stdout
