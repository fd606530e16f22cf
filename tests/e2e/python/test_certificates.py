"""Certificates of a CA that end while their agents train, and who is evicted then."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
import scenarios
from conftest import SHORT, running
from daemons import Cluster, certificates
from elastic import BATCHES, equal, eventually, logged, on, stopped, values
from patience import PATIENCE_SECONDS
from test_clocks import DAYS, SteppedClocks

LIFE_SECONDS = 40  # From the start of its agent; ranks attach meanwhile.
SITES = 4
Short = Callable[[Sequence[int]], None]


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """Steps take so long that one is under way nearly always."""
    flags = [*SHORT, "--egress-limit=*=1mbit"]
    with running(sites=SITES, agent_flags=flags, certified=True) as cluster:
        yield cluster


@pytest.fixture
def shorten(own_cluster, tmp_path) -> Short:
    """These agents show certificates that end in LIFE_SECONDS."""
    clocks = SteppedClocks(tmp_path)

    def shorten(numbers: Sequence[int]) -> None:
        by = clocks.words("tools/certs", LIFE_SECONDS - DAYS)
        certificates(own_cluster.pki, "--days", "1", *names(numbers), by=by)
        for number in numbers:
            own_cluster.agents[number].restart()

    return shorten


def count(cluster: Cluster, words: str) -> int:
    return sum(agent.child.log.read_text().count(words) for agent in cluster.agents)


def names(numbers: Sequence[int]) -> list[str]:
    return [word for number in numbers for word in ("--agent", f"agent-{number}")]


def test_sec_no_connection_outlives_its_certificate_and_no_step_is_lost(own_cluster, shorten, join):
    everybody = range(SITES)
    shorten(everybody)
    ends = time.monotonic() + LIFE_SECONDS
    sites = ",".join(f"site-{number}:1" for number in everybody)
    job = own_cluster.new_job()
    options = {"sites": sites, "until": 400, "stops": (400,)}
    ranks = [join(own_cluster, job, number, number, **options) for number in everybody]
    for rank in ranks:
        rank.wait_said("world size 4")
    certificates(own_cluster.pki, *names(everybody))
    eventually(lambda: time.monotonic() > ends)
    for rank in ranks:
        rank.wait_said(400)
    on(*ranks)
    results = values(*ranks)
    assert count(own_cluster, "by this agent's new certificate") > 0
    assert count(own_cluster, "has ended") == 0  # Each was in time.
    assert equal(results)
    assert results[0]["batches"] == list(range(400))
    assert results[0]["world"].generation == 1


def test_sec_who_has_no_new_certificate_is_out_with_the_reason(own_cluster, shorten, launch):
    shorten([1])
    job = launch(own_cluster, scenarios.interrupted, places=(0, 1))
    job.wait_said("training")
    logged(own_cluster.coordinator, "agent/agent-1, or its CA's or the coordinator's, has ended")
    logged(own_cluster.agents[1], "lost the connection to agent agent-0")
    job.tell(5)
    ended = job.finish()
    assert [rank.value["error"] for rank in ended] == ["StepNotAppliedError"] * 2, ended
    assert all(rank.value["untouched"] for rank in ended)
    said = [rank.value["text"] for rank in ended]
    for whose, text in zip(("agent agent-1", "this agent"), said, strict=True):
        assert f"the certificate of {whose}, or its CA's, has ended" in text
    logged(own_cluster.agents[1], "it says that this side's certificate has expired")


def test_sec_who_is_evicted_costs_the_others_no_step(own_cluster, join):
    sites = "site-0:1,site-1:1,site-2:1"
    job = own_cluster.new_job()
    options = {"sites": sites, "on_shrink": "continue"}
    *stay, evicted = [join(own_cluster, job, number, number, **options) for number in range(3)]
    stopped(*stay, evicted)
    done = subprocess.run(
        own_cluster.admin("evict", "agent-2"),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    on(*stay, evicted)
    results = values(*stay)
    assert equal(results)
    assert results[0]["batches"] == list(range(BATCHES))
    assert results[0]["sizes"] == [3, 2]
    assert results[0]["world"].generation == 2
    logged(own_cluster.coordinator, "agent/agent-2 may do nothing: an operator evicted")
    evicted.kill(0)  # It waits for its agent to be let in again.
