"""Ranks that come and go, each a launch of its own, for tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import membership_scenarios
import pytest
from daemons import Cluster, Daemon
from launcher import Launch, Scenario
from patience import PATIENCE, PATIENCE_SECONDS

BATCHES = 30
STOP = 10

Join = Callable[..., Launch]


@pytest.fixture
def join() -> Iterator[Join]:
    """join(cluster, job, site, rank, sites=..., **arguments) -> Launch of one rank; `package`: by
    another release's wheel, which lies there. `agent`: another one than the site's first."""
    launches: list[Launch] = []

    def start(
        cluster: Cluster,
        job: str,
        site: int,
        seed: int,
        sites: str = "site-0:1,site-1:1",
        on_shrink: str = "pause",
        scenario: Scenario = membership_scenarios.trained,
        package: Path | None = None,
        agent: int | None = None,
        replace: bool = False,
        **arguments: Any,
    ) -> Launch:
        environment = {
            "PACTRAIN_AGENT": f"unix:{cluster.socket(site if agent is None else agent)}",
            "PACTRAIN_JOB_ID": job,
            "PACTRAIN_ATTACH_TIMEOUT": PATIENCE,
            "PACTRAIN_SITE": f"site-{site}",
            "PACTRAIN_SITES": sites,
            "PACTRAIN_ON_SHRINK": on_shrink,
            "PACTRAIN_REPLACE": str(int(replace)),
        }
        words = {"seed": seed, "until": BATCHES, "stops": (STOP,), **arguments}
        launches.append(Launch(scenario, [environment], None, words, package))
        return launches[-1]

    yield start
    for launched in launches:
        launched.__exit__()


def values(*launches: Launch) -> list[dict[str, Any]]:
    ranks = [launch.finish()[0] for launch in launches]
    assert not any(rank.error for rank in ranks), ranks
    return [rank.value for rank in ranks]


def equal(results: list[dict[str, Any]]) -> bool:
    return all(
        result[key] == results[0][key]
        for result in results
        for key in ("digest", "optimizer", "lr")
    )


def stopped(*launches: Launch) -> None:
    for launch in launches:
        launch.wait_said(STOP)


def on(*launches: Launch) -> None:
    for launch in launches:
        launch.tell("on")


def eventually(happened: Callable[[], bool], what: str = "it did not come to that") -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def logged(daemon: Daemon, words: str) -> None:
    log = daemon.child.log
    eventually(lambda: words in log.read_text(), f"{daemon.name} does not say '{words}'")


def pair(join: Join, cluster: Cluster, job: str, **options: Any) -> list[Launch]:
    return [join(cluster, job, site, site, **options) for site in (0, 1)]


@pytest.fixture
def undisturbed(own_cluster: Cluster, join: Join) -> Callable[..., str]:
    """The digest of two ranks that nothing happens to."""

    def run(**options: Any) -> str:
        results = values(*pair(join, own_cluster, own_cluster.new_job(), stops=(), **options))
        assert equal(results)
        digest: str = results[0]["digest"]
        return digest

    return run
