"""What daemons export about a job, beside what its script is told, and to whom."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import scenarios
from conftest import Start, running
from daemons import Cluster
from elastic import eventually
from patience import PATIENCE_SECONDS

TOKEN = "0123456789abcdef"


def page(daemon: Any, token: str = "") -> str:
    request = urllib.request.Request(f"http://{daemon.listening['metrics']}/metrics")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
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
def with_page() -> Iterator[Cluster]:
    with running(sites=2, coordinator_flags=["--listen-page=127.0.0.1:0"]) as cluster:
        yield cluster


def on_page(cluster: Cluster, job: str) -> dict[str, Any]:
    """What a new viewer of the job's page gets first; {}: the page does not know it."""
    address = f"http://{cluster.coordinator.listening['page']}/events?view=job&job={job}"
    with urllib.request.urlopen(address, timeout=PATIENCE_SECONDS) as stream:
        for line in stream:
            if line.startswith(b"data: "):
                told: dict[str, Any] = json.loads(line[6:])
                return {} if told.get("gone") else told
    raise AssertionError("the page hung up")


def account_of(cluster: Cluster, job: str) -> dict[str, Any]:
    """What pactrain-admin has of what the job saves."""
    argv = [*cluster.admin("job", job), "--json"]
    admin = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    account: dict[str, Any] = json.loads(admin.stdout)["account"]
    return account


# What a script does not see: rank 0's masks as they go to the others, and what it hears of a
# switch, or of the end, half a second later.
BYTES_TOLERANCE, SECONDS_TOLERANCE = 0.1, 3.0


def test_a_finished_job_has_the_same_figures_in_its_script_in_metrics_and_on_the_page(
    with_page: Cluster, launch: Start
) -> None:
    job = with_page.new_job()
    ranks = launch(with_page, scenarios.seeded_differently, job=job).finish()
    stats = [rank.value["stats"] for rank in ranks]  # One of each agent.

    def of_script(name: str) -> float:
        return sum(told[f"pactrain/{name}"] for told in stats)

    def of_metrics(name: str, **labels: str) -> float:
        return value(page(with_page.coordinator), f"pactrain_coordinator_{name}",
                     training_job=job, model="0", **labels)  # fmt: skip

    def is_over() -> bool:
        shown = on_page(with_page, job).get("job", {"phase": "not seen yet"})
        return shown["phase"] == "ended" and shown["sent_bytes"] >= of_script("sent_bytes")

    eventually(is_over)
    told = on_page(with_page, job)
    shown = told["job"]
    for stage, of_page, in_script in (
        ("dense", shown["dense_bytes"], of_script("dense_bytes")),
        ("wire", shown["sent_bytes"], of_script("sent_bytes")),
    ):
        assert of_page == of_metrics("bytes_total", stage=stage)
        assert in_script == pytest.approx(of_page, rel=BYTES_TOLERANCE)
    assert shown["saved_bytes"] == of_metrics("saved_bytes")
    assert of_script("saved_bytes") == pytest.approx(shown["saved_bytes"], rel=BYTES_TOLERANCE)
    assert shown["dense_bytes"] / shown["sent_bytes"] == pytest.approx(
        of_script("dense_bytes") / of_script("sent_bytes"), rel=BYTES_TOLERANCE
    )
    assert shown["saved_seconds"] == of_metrics("saved_seconds")
    account = account_of(with_page, job)
    assert account.get("savedSeconds", 0) == of_metrics("saved_seconds")
    assert account["denseBytes"] == shown["dense_bytes"]
    assert account["sentBytes"] == shown["sent_bytes"]
    assert shown["keep"] == pytest.approx(stats[0]["pactrain/keep"])
    assert shown["counted"] == pytest.approx(of_metrics("counted_since_seconds"), abs=1)
    for mode, seconds in zip(("FULL", "COMPACTED", "TERNARY"), told["mode_seconds"], strict=True):
        assert seconds == pytest.approx(of_metrics("mode_seconds_total", mode=mode))
        in_script = stats[0][f"pactrain/mode_seconds_{mode.lower()}"]
        assert in_script == pytest.approx(seconds, abs=SECONDS_TOLERANCE)
    parameters = {name: (kept, of) for name, kept, of in told["keep_of"]["parameters"]}
    assert parameters["2.weight"][0] < parameters["2.weight"][1]
    kept, of = (sum(counts) for counts in zip(*parameters.values(), strict=True))
    assert kept / of == pytest.approx(shown["keep"])


def test_a_coordinator_that_is_started_again_says_since_when_it_counts(
    with_page: Cluster, launch: Start
) -> None:
    job = with_page.new_job()
    trained = launch(with_page, scenarios.interrupted, job=job)
    trained.wait_said("training")
    eventually(lambda: on_page(with_page, job).get("keep_of", {}).get("told", False))
    before = on_page(with_page, job)
    with_page.coordinator.restart()  # After kill -9.
    eventually(lambda: on_page(with_page, job).get("job", {}).get("counted", 0) > 0)
    # Told again to the new coordinator.
    eventually(lambda: on_page(with_page, job)["keep_of"]["told"])
    told = on_page(with_page, job)
    assert told["timeline"][0]["before"], told["timeline"]
    assert told["timeline"][0]["mode"] == before["job"]["mode"]
    assert "this coordinator started; generation 1 was there" in told["events"][0]["text"]
    trained.tell(15)
    trained.finish()
    after = on_page(with_page, job)
    assert after["job"]["counted"] > before["job"]["counted"]
    account = account_of(with_page, job)
    assert account["sinceUnixSeconds"] == pytest.approx(after["job"]["counted"], abs=1)


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
        done = subprocess.run(
            guarded.admin("audit"), capture_output=True, text=True, timeout=PATIENCE_SECONDS
        )
        return done.stdout + done.stderr

    eventually(lambda: "its bearer token is another one" in audit())
    assert "/metrics from 127.0.0.1" in audit()
    assert TOKEN[:-1] not in audit()
