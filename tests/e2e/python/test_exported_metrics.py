"""What daemons export about a job, beside what its script is told, and to whom."""

from __future__ import annotations

import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import scenarios
from conftest import Start, running
from daemons import Cluster

TOKEN = "0123456789abcdef"
WAIT_SECONDS = 30.0


def page(daemon: Any, token: str = "") -> str:
    request = urllib.request.Request(f"http://{daemon.listening['metrics']}/metrics")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def value(text: str, metric: str, **labels: str) -> float:
    """Of the one series with these labels."""
    found = [
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if re.split("[ {]", line)[0] == metric
        and all(f'{name}="{want}"' in line for name, want in labels.items())
    ]
    assert len(found) == 1, (metric, labels, found)
    return found[0]


def eventually(check: Callable[[], bool]) -> None:
    """Reports come within seconds, also the last one."""
    end = time.monotonic() + WAIT_SECONDS
    while not check():
        assert time.monotonic() < end
        time.sleep(0.1)


def next_step_is(agent: Any, of_job: dict[str, str], step: float) -> bool:
    return value(page(agent), "pactrain_agent_next_step", **of_job) == step


def test_a_script_and_the_daemons_tell_the_same(cluster: Cluster, launch: Start) -> None:
    job = cluster.new_job()
    ranks = launch(cluster, scenarios.seeded_differently, job=job).finish()
    stats = [rank.value["stats"] for rank in ranks]
    of_job = {"training_job": job, "model": "0"}

    def of_coordinator(name: str, **labels: str) -> float:
        text = page(cluster.coordinator)
        return value(text, f"pactrain_coordinator_{name}", **of_job, **labels)

    committed = stats[0]["pactrain/step"] + 1  # The first one is 0.
    eventually(lambda: of_coordinator("steps_committed_total") >= committed)
    assert of_coordinator("steps_committed_total") == committed
    assert of_coordinator("masks_keep_ratio") == pytest.approx(stats[0]["pactrain/keep"])
    assert of_coordinator("mode_seconds_total", mode="COMPACTED") > 0
    sent = 0.0
    for agent, told in zip(cluster.agents, stats, strict=True):
        eventually(partial(next_step_is, agent, of_job, told["pactrain/step"] + 1))
        own = value(page(agent), "pactrain_agent_group_bytes_total", **of_job, direction="sent")
        # Beside gradients, what rank 0 gave the others at the start.
        assert own >= told["pactrain/sent_bytes"] > 0
        sent += own
    eventually(lambda: of_coordinator("bytes_total", stage="wire") == sent)
    assert of_coordinator("saved_bytes") == of_coordinator("bytes_total", stage="dense") - sent


@pytest.fixture
def guarded(tmp_path: Path) -> Any:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(TOKEN)
    flag = [f"--metrics-token-file={token}"]
    with running(sites=1, agent_flags=flag, coordinator_flags=flag) as cluster:
        yield cluster


def test_sec_a_wrong_token_gets_401_and_a_line_in_the_audit_log(guarded: Cluster) -> None:
    for daemon in (guarded.coordinator, *guarded.agents):
        assert "build_info" in page(daemon, TOKEN)
        for wrong in ("", TOKEN[:-1]):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                page(daemon, wrong)

    def audit() -> str:
        done = subprocess.run(guarded.admin("audit"), capture_output=True, text=True, timeout=30)
        return done.stdout + done.stderr

    eventually(lambda: "its bearer token is another one" in audit())
    assert "/metrics from 127.0.0.1" in audit()
    assert TOKEN[:-1] not in audit()
