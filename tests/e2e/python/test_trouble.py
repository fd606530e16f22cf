"""What befalls the machines of daemons: logs that grow, disks that fill."""

from __future__ import annotations

import contextlib
import errno
import re
import subprocess
from pathlib import Path

from daemons import ROOT, Daemon, no_mounts
from elastic import BATCHES, STOP, equal, logged, on, pair, stopped, values
from test_exported_metrics import page, value


def text_block(section: str) -> str:
    """What docs/upkeep.md shows in that section, as a file's text."""
    page = (ROOT / "docs/upkeep.md").read_text()
    (text,) = re.findall(rf"\n## {section}\n.*?\n```text\n(.*?)\n```\n", page, re.S)
    return str(text) + "\n"


def test_logs_are_rotated_as_the_page_says(own_cluster, join, undisturbed, tmp_path):
    wanted = undisturbed()
    daemons = [own_cluster.coordinator, *own_cluster.agents]
    for daemon in daemons:
        daemon.restart_by("sh", "-c", 'exec "$@" 2>>"$0"', str(tmp_path / f"{daemon.name}.log"))
    settings = tmp_path / "logrotate.conf"
    text = text_block("Logs")
    assert "/var/log/pactrain/*.log {" in text
    settings.write_text(text.replace("/var/log/pactrain", str(tmp_path)))
    ranks = pair(join, own_cluster, own_cluster.new_job())
    stopped(*ranks)
    command = ["logrotate", "--force", "--state", str(tmp_path / "status"), str(settings)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    for daemon in daemons:
        old, new = tmp_path / f"{daemon.name}.log.1", tmp_path / f"{daemon.name}.log"
        assert "connected" in old.read_text()
        assert new.read_bytes() == b""
    on(*ranks)
    results = values(*ranks)
    assert equal(results)
    assert results[0]["digest"] == wanted
    own_cluster.coordinator.terminate()
    own_cluster.coordinator.wait()
    lines = (tmp_path / "coordinator.log").read_text().splitlines()
    assert any("stopping on signal" in line for line in lines), lines
    assert all(re.match(r"\d{4}-\d\d-\d\dT", line) for line in lines), lines


class SmallDisk:
    """A file system of the coordinator's own, of 8 MB, with its state directory."""

    def __init__(self, coordinator: Daemon, state: Path) -> None:
        mount = 'mount -t tmpfs -o size=8m,mode=700 tmpfs "$0" && exec "$@"'
        coordinator.restart_by("unshare", "--mount", "sh", "-c", mount, str(state))
        # As the coordinator sees it.
        self._filler = Path(f"/proc/{coordinator.child.process.pid}/root{state}/filler")

    def fill(self) -> None:
        with self._filler.open("wb", buffering=0) as file:
            for size in (65536, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))
        try:
            self._filler.with_name("more").write_bytes(b"x")
            raise AssertionError("there is room")
        except OSError as error:
            assert error.errno == errno.ENOSPC

    def free(self) -> None:
        self._filler.unlink()


@no_mounts
def test_a_full_disk_holds_up_what_is_new_and_no_training(own_cluster, join, undisturbed):
    wanted = undisturbed()
    disk = SmallDisk(own_cluster.coordinator, own_cluster.folder / "state")
    for agent in own_cluster.agents:
        agent.restart()  # It is another cluster now.
        logged(own_cluster.coordinator, f"agent '{agent.name}' of site")
    job = own_cluster.new_job()
    ranks = pair(join, own_cluster, job, stops=(STOP, 2 * STOP))
    stopped(*ranks)
    disk.fill()
    pin = own_cluster.admin("pin", job, "FULL")
    refused = subprocess.run(pin, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "journal cannot be written" in refused.stderr
    logged(own_cluster.coordinator, "THE JOURNAL CANNOT BE WRITTEN")
    assert value(page(own_cluster.coordinator), "pactrain_coordinator_read_only") == 1
    backup = subprocess.run(own_cluster.admin("backup", "b"), capture_output=True, text=True)
    assert backup.returncode == 1
    on(*ranks)
    for rank in ranks:
        rank.wait_said(2 * STOP)
    disk.free()
    logged(own_cluster.coordinator, "the journal can be written again")
    subprocess.run(pin, check=True, capture_output=True)
    on(*ranks)
    results = values(*ranks)
    assert equal(results)
    assert results[0]["digest"] == wanted
    assert results[0]["world"].generation == 1
    assert results[0]["batches"] == list(range(BATCHES))
    assert equal(values(*pair(join, own_cluster, own_cluster.new_job(), stops=())))
