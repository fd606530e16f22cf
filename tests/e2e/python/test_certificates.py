"""Certificates of a CA that end while their agents train."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import scenarios
from conftest import SHORT, running
from daemons import Cluster
from elastic import equal, logged, on, pair, stopped, values
from test_clocks import DAYS, SteppedClocks

LIFE_SECONDS = 30  # From the start of its agent; ranks attach meanwhile.
ENDED = "the certificate of agent agent-1, or its CA's, has ended"
Short = Callable[[], None]


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    with running(sites=2, agent_flags=SHORT, certified=True) as cluster:
        yield cluster


@pytest.fixture
def shorten(own_cluster, tmp_path) -> Short:
    """agent-1 shows a certificate that ends in LIFE_SECONDS."""
    clocks = SteppedClocks(tmp_path)

    def shorten() -> None:
        by = clocks.words("tools/certs", LIFE_SECONDS - DAYS)
        own_cluster.certify("--days", "1", "--agent", "agent-1", by=by)
        own_cluster.agents[1].restart()

    return shorten


def test_sec_no_connection_outlives_its_certificate_and_no_step_is_lost(
    own_cluster, shorten, join, undisturbed
):
    wanted = undisturbed()
    shorten()
    ranks = pair(join, own_cluster, own_cluster.new_job())
    stopped(*ranks)
    own_cluster.certify("--agent", "agent-1")
    logged(own_cluster.agents[0], ENDED)
    logged(own_cluster.coordinator, "has expired")
    on(*ranks)
    results = values(*ranks)
    assert equal(results)
    assert results[0]["digest"] == wanted
    assert results[0]["world"].generation == 1


def test_sec_who_has_no_new_certificate_is_out_with_the_reason(own_cluster, shorten, launch):
    shorten()
    job = launch(own_cluster, scenarios.interrupted)
    job.wait_said("training")
    logged(own_cluster.agents[0], ENDED)
    job.tell(5)
    ended = job.finish()
    assert [rank.value["error"] for rank in ended] == ["StepNotAppliedError"] * 2, ended
    assert all(rank.value["untouched"] for rank in ended)
    assert ENDED in ended[0].value["text"]
    logged(own_cluster.agents[1], "it says that this side's certificate has expired")
