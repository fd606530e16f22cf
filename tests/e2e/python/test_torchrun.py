"""The launcher that users have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "restarting_script.py"


def test_a_restart_by_torchrun_takes_an_older_checkpoint_up(cluster, tmp_path):
    environment = {
        **os.environ,
        "PACTRAIN_AGENT": f"unix:{cluster.socket(0)}",
        "PACTRAIN_ATTACH_TIMEOUT": "30",
        # torch 2.13 reuses one store over restarts and its Gloo then dials the
        # addresses of dead processes (docs/user-guide.md, Resume).
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    environment.pop("PACTRAIN_JOB_ID", None)
    run = subprocess.run(
        [
            sys.executable,
            *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            *("--max-restarts=1", "--monitor-interval=0.1", str(SCRIPT), str(tmp_path)),
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert results[0]["digest"] == results[1]["digest"]
    for result in results:
        assert result["restarted"]
        assert result["start"] == 6
        assert result["first_step"] >= 7  # 6 steps and the agreement before them.
        assert result["keep"] < 1
