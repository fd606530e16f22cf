"""The launcher that users have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from patience import PATIENCE, PATIENCE_SECONDS

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[2] / "examples" / "ddp.py"
# torch 2.13 reuses one store over restarts and its Gloo then dials the addresses of dead
# processes (docs/session.md, Resume).
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


class Torchrun:
    """One torchrun on its way. `within`: a command that runs it, like ip netns exec."""

    def __init__(
        self,
        log: Path,
        environment: Mapping[str, str],
        *arguments: str | Path,
        within: Sequence[str] = (),
    ) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [*within, sys.executable, "-m", "torch.distributed.run", *map(str, arguments)],
                env={**os.environ, **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def finish(self, well: bool = True) -> str:
        """What it and its ranks wrote, once it has ended (well)."""
        try:
            status = self.process.wait(PATIENCE_SECONDS)
        finally:
            self.process.kill()
        text = self.log.read_text()
        assert (status == 0) == well, text[-3000:]
        return text


def one_restart(environment, folder):
    """Rank 1 dies once; both ranks go on from an older checkpoint."""
    Torchrun(
        folder / "log",
        {**environment, **OWN_STORE},
        *("--standalone", "--nproc-per-node=2", "--max-restarts=1"),
        *("--monitor-interval=0.1", HERE / "restarting_script.py", folder),
    ).finish()
    results = [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert results[0]["digest"] == results[1]["digest"]
    for result in results:
        assert result["restarted"]
        assert result["start"] == 6
        assert result["keep"] < 1
    return results


def test_a_restart_by_torchrun_takes_an_older_checkpoint_up(cluster, tmp_path):
    environment = {
        "PACTRAIN_AGENT": f"unix:{cluster.socket(0)}",
        "PACTRAIN_ATTACH_TIMEOUT": PATIENCE,
        "PACTRAIN_JOB_ID": "",
    }
    for result in one_restart(environment, tmp_path):
        assert result["first_step"] >= 7  # 6 steps and the agreement before them.


def test_with_replace_a_restart_by_torchrun_begins_the_job_anew(own_cluster, tmp_path):
    """Ranks that may come and go: from their checkpoint, and nobody is waited for."""
    environment = {
        "PACTRAIN_AGENT": f"unix:{own_cluster.socket(0)}",
        "PACTRAIN_JOB_ID": own_cluster.new_job(),
        "PACTRAIN_SITE": "site-0",
        "PACTRAIN_SITES": "site-0:2",
        "PACTRAIN_REPLACE": "1",
    }
    one_restart(environment, tmp_path)
    said = own_cluster.coordinator.child.log.read_text()
    assert "of 2 ranks replaced it on purpose" in said


@pytest.mark.nightly
def test_restarted_ranks_start_daemons_of_their_own(jobs, tmp_path):
    one_restart(jobs.environment(), tmp_path)
    jobs.must_leave_nothing()


def test_the_example_needs_nothing_started_also_twice_at_once_and_on_two_nodes(jobs, tmp_path):
    environment = jobs.environment()
    del environment["GROUP_RANK"]  # torchrun sets it.
    two_nodes = ("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-conf=store_type=file")
    two_nodes += (f"--rdzv-endpoint={tmp_path / 'rendezvous'}", "--local-addr=127.0.0.1")
    launchers = [
        Torchrun(tmp_path / f"log-{number}", environment, *nodes, EXAMPLE, "--epochs=1")
        for number, nodes in enumerate([("--nproc-per-node=2",), two_nodes, two_nodes])
    ]
    texts = [launcher.finish() for launcher in launchers]
    assert "epoch 1:" in texts[0]
    assert "0.0 MB sent to other sites" in texts[0]
    both = texts[1] + texts[2]
    assert both.count("epoch 1:") == 1
    assert "0.0 MB sent to other sites" not in both
    jobs.must_leave_nothing()


def wait_for_masks(cluster, job):
    """Until the job's gradients travel COMPACTED."""
    asked = cluster.admin("--json", "job", job)
    end = time.monotonic() + PATIENCE_SECONDS
    while (
        b"MODE_COMPACTED"
        not in subprocess.run(asked, capture_output=True, timeout=PATIENCE_SECONDS).stdout
    ):
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.parametrize(
    "script", ["ddp.py", pytest.param("pruning.py", marks=pytest.mark.nightly)]
)
def test_an_example_ends_with_the_typed_error_as_it_is(own_cluster, tmp_path, script):
    job = own_cluster.new_job()
    place = {"PACTRAIN_AGENT": f"unix:{own_cluster.socket(0)}", "PACTRAIN_JOB_ID": job}
    launcher = ("--standalone", "--nproc-per-node=2")
    example = (EXAMPLE.with_name(script), "--epochs=100000")
    running = Torchrun(tmp_path / "log", place, *launcher, *example)
    try:
        wait_for_masks(own_cluster, job)
    finally:
        own_cluster.agents[0].kill()  # Without it no rank goes on.
    text = running.finish(well=False)
    assert "pactrain.errors.AgentUnresponsiveError: " in text
    assert "\nAt:\n" not in text  # What DDP adds after our advice.
