"""Embedded daemons of ranks on two hosts, which are network namespaces here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from daemons import BIN
from patience import PATIENCE_SECONDS

from bench import testbed
from bench.processes import Children
from bench.testbed import Link, NamespaceTestbed

SCRIPT = Path(__file__).parent / "hosts_script.py"

pytestmark = pytest.mark.skipif(
    testbed.why_no_namespaces() is not None, reason=str(testbed.why_no_namespaces())
)


class TwoHosts:
    """A torchrun of two ranks on each of two hosts."""

    def __init__(self, bed, children, jobs, folder):
        self.bed = bed
        self.folder = folder
        self.logs = folder / "logs"
        environment = jobs.environment() | {"PACTRAIN_LOG_DIR": str(self.logs)}
        environment["GLOO_SOCKET_IFNAME"] = bed.hosts[0].interface
        for number, host in enumerate(bed.hosts):
            argv = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2"]
            argv += [f"--node-rank={number}", "--nproc-per-node=2", "--master-port=29500"]
            argv += [f"--master-addr={bed.hosts[0].address}", str(SCRIPT), str(folder)]
            children.start(f"torchrun-{number}", bed.command(host, argv), environment)
        self.children = children

    def results(self):
        """Of all ranks, as soon as they have trained; they still run then."""
        end = time.monotonic() + PATIENCE_SECONDS
        files = [self.folder / f"{rank}.json" for rank in range(4)]
        while not all(file.exists() for file in files):
            self.children.check()
            assert time.monotonic() < end, sorted(self.folder.iterdir())
            time.sleep(0.1)
        return [json.loads(file.read_text()) for file in files]

    def coordinator(self):
        (log,) = self.logs.glob("*-node-1-agent.log")
        found = re.search(r"connected with coordinator (\S+) ", log.read_text())
        assert found, log.read_text()
        return found[1]

    def jobs_as_seen_from(self, host, *flags):
        """What pactrain-admin on that host finds out."""
        argv = [str(BIN / "pactrain-admin"), "jobs", f"--coordinator={self.coordinator()}"]
        argv = self.bed.command(host, [*argv, *flags])
        done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        return done.stdout + done.stderr

    def end(self):
        (self.folder / "end").touch()
        self.children.wait(PATIENCE_SECONDS)


@pytest.fixture
def two_hosts(jobs, tmp_path):
    with (
        NamespaceTestbed({"a": 1, "b": 1}, [Link("a", "b", 100)]) as bed,
        Children(tmp_path) as children,
    ):
        yield TwoHosts(bed, children, jobs, tmp_path)


def test_ranks_on_two_hosts_train_by_a_key_of_their_own(two_hosts, jobs, tmp_path):
    results = two_hosts.results()
    assert [r["agent"] for r in results] == ["node-0", "node-0", "node-1", "node-1"]
    assert len({r["digest"] for r in results}) == 1
    assert {r["mode"] for r in results} == {"COMPACTED fp32"}
    assert two_hosts.coordinator().startswith(two_hosts.bed.hosts[0].address + ":")

    daemons = jobs.processes("/pactrain-agent ") + jobs.processes("/pactrain-coordinator ")
    files = list(jobs.folder.glob("pactrain-*/job.key"))
    keys = {path.read_text().strip() for path in files}
    assert (len(daemons), len(files), len(keys)) == (3, 2, 1)
    (key,) = keys
    assert len(key) == 64
    assert not jobs.processes(key)  # With it on their command line.
    assert all(key not in Path(f"/proc/{pid}/environ").read_text() for pid in daemons)
    assert all(key not in path.read_text() for path in two_hosts.logs.iterdir())

    # sec: neither without a key nor with another one; with it, from the other host.
    other = tmp_path / "other.key"
    subprocess.run(
        [str(BIN / "pactrain-admin"), "new-key", str(other)], check=True, timeout=PATIENCE_SECONDS
    )
    host = two_hosts.bed.hosts[1]
    assert "is not loopback" in two_hosts.jobs_as_seen_from(host)
    assert "cannot be reached" in two_hosts.jobs_as_seen_from(host, f"--job-key-file={other}")
    other.write_text(key)
    assert "2 agents, 4 ranks" in two_hosts.jobs_as_seen_from(host, f"--job-key-file={other}")

    two_hosts.end()
    jobs.must_leave_nothing()
