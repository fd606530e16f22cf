"""A cluster for the whole run, and one of their own for tests that kill daemons."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

# What the caller trains with is not what tests do: examples read PACTRAIN_DATA, say.
for name in list(os.environ):
    if name.startswith("PACTRAIN_") and not name.startswith("PACTRAIN_TEST_"):
        del os.environ[name]
# The server that ranks are forked from starts with these.
os.environ["OMP_NUM_THREADS"] = "1"
HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)
sys.path.insert(0, str(Path(__file__).parents[3]))
os.environ["PYTHONPATH"] = os.pathsep.join(
    [HERE, str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
)

import twin  # noqa: E402
from daemons import Cluster  # noqa: E402
from elastic import join, undisturbed  # noqa: E402, F401
from embedded_job import EmbeddedJobs  # noqa: E402
from launcher import Launch, Scenario  # noqa: E402

Start = Callable[..., Launch]
SHORT = ["--step-deadline=6s", "--straggler-timeout=6s"]
CHAIN = "--links=site-0:site-1,site-1:site-2"


@contextlib.contextmanager
def running(sites: int, **options: Any) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="pactrain-e2e-") as folder:
        cluster = Cluster(Path(folder), sites, **options)
        try:
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with running(sites=2) as cluster:
        yield cluster


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """Two sites with short limits: 6 s without progress, or a rank, end a step."""
    with running(sites=2, agent_flags=SHORT) as cluster:
        yield cluster


@pytest.fixture
def chain() -> Iterator[Cluster]:
    """Three sites in a chain; bf16 between them."""
    with running(sites=3, coordinator_flags=[CHAIN, "--codec=bf16"]) as cluster:
        yield cluster


@pytest.fixture
def adaptive() -> Iterator[Cluster]:
    """Three sites, where any waiting and any noise lets the policy choose TERNARY."""
    flags = [CHAIN, "--min-exchange-share=0"]
    with running(sites=3, coordinator_flags=flags, risk="fast") as cluster:
        yield cluster


@pytest.fixture
def jobs() -> Iterator[EmbeddedJobs]:
    # Not pytest's folder: its path may be too long for a socket.
    with tempfile.TemporaryDirectory(prefix="pactrain-e2e-") as folder:
        jobs = EmbeddedJobs(Path(folder))
        yield jobs
        jobs.kill("")
        jobs.wait_for_end()  # Before the folder goes from under them.


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The images in the file that C++ trainers read."""
    path = tmp_path_factory.mktemp("data") / "digits.images"
    twin.write_digits(path)
    return path


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Start]:
    """launch(cluster, scenario, world, job=..., **arguments) -> Launch

    `places`: agents, by rank; else ranks go to them in order, in equal shares.
    """
    launches: list[Launch] = []

    def start(
        cluster: Cluster,
        scenario: Scenario,
        world: int = 2,
        job: str | None = None,
        environment: dict[str, str] | None = None,
        places: Sequence[int] = (),
        **arguments: Any,
    ) -> Launch:
        environments = [
            {**place, **(environment or {})}
            for place in cluster.environments(world, job or cluster.new_job())
        ]
        for given, node in zip(environments, places, strict=False):
            given["PACTRAIN_AGENT"] = f"unix:{cluster.socket(node)}"
        store = tmp_path / f"store-{len(launches)}"
        launches.append(Launch(scenario, environments, store, arguments))
        return launches[-1]

    yield start
    for launched in launches:
        launched.__exit__()
