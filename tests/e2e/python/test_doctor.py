"""`pactrain doctor` against real daemons: what it finds, says and exits with."""

from __future__ import annotations

import json
import os
import subprocess

from daemons import BIN, Cluster
from patience import PATIENCE_SECONDS


def doctor(cluster: Cluster, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """On the node of the first agent, which names its coordinator."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PACTRAIN_")}
    environment |= {"PACTRAIN_AGENT": f"unix:{cluster.socket(0)}"} | variables
    argv = [str(BIN / "pactrain-admin"), "doctor", *words]
    return subprocess.run(
        argv, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )


def test_where_all_is_well_there_is_no_problem(cluster):
    done = doctor(cluster)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == "0 problems, 0 warnings"
    for part in (
        "agent        ok       agent-0 of site site-0, version ",
        f"coordinator  ok       {cluster.address} (plain text), version ",
        "clock        ok       the coordinator's is 0.0",
        "agents       ok       2 connected, of 2 sites: site-0, site-1",
        "peers        ok       1 of 1 can be dialled from here",
        "kernels      ok       for GPUs: ",
    ):
        assert part in done.stdout


def test_a_misspelt_variable_is_a_problem(cluster):
    done = doctor(cluster, "--json", PACTRAIN_SITS="a:2")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert not report["ok"]
    (problem,) = (check for check in report["checks"] if check["level"] == "problem")
    assert "PACTRAIN_SITS is no variable" in problem["what"]
    assert problem["to_do"] == "did you mean PACTRAIN_SITES?"


def test_a_site_without_an_agent_is_a_problem(cluster):
    done = doctor(cluster, PACTRAIN_SITES="site-0:1,site-7:1")
    assert done.returncode == 1
    assert "no agent of site site-7" in done.stdout


def test_dead_daemons_are_named(own_cluster):
    own_cluster.coordinator.kill()
    done = doctor(own_cluster, PACTRAIN_COORDINATOR=own_cluster.address)
    assert done.returncode == 1
    assert f"coordinator {own_cluster.address} cannot be reached" in done.stdout
    own_cluster.agents[0].kill()
    done = doctor(own_cluster)
    assert done.returncode == 1
    assert "agent-0.sock is there, but nobody answers" in done.stdout
    assert "start pactrain-agent on this node" in done.stdout
