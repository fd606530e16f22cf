"""C++ trainers that come and go, among themselves and with Python trainers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import membership_scenarios
import pytest
from daemons import BIN, Cluster
from launcher import Launch
from patience import PATIENCE, PATIENCE_SECONDS
from test_cpp_trainers import FINAL
from test_membership import wait_until_it_ends

from bench.processes import Child

FLAGS = {"batch": 16, "amount": 0.7}
STOP = 20  # Batches after which Python's ranks wait for a word.

Place = dict[str, str]


def place(
    cluster: Cluster, job: str, site: int, on_shrink: str, sites: str = "site-0:1,site-1:1"
) -> Place:
    """The variables of the only rank of a site."""
    return {
        "PACTRAIN_AGENT": f"unix:{cluster.socket(site)}",
        "PACTRAIN_JOB_ID": job,
        "PACTRAIN_ATTACH_TIMEOUT": PATIENCE,
        "PACTRAIN_SITE": f"site-{site}",
        "PACTRAIN_SITES": sites,
        "PACTRAIN_ON_SHRINK": on_shrink,
        "RANK": "0",
        "WORLD_SIZE": "1",
    }


@pytest.fixture
def cpp(digits: Path, tmp_path: Path) -> Iterator[Callable[..., Child]]:
    """cpp(place, epochs) -> a C++ rank"""
    started: list[Child] = []

    def start(where: Place, epochs: int, **more: str) -> Child:
        flags = {"data": digits, "epochs": epochs, **FLAGS, **more}
        argv = [str(BIN / "cpp_trainer"), *(f"--{name}={value}" for name, value in flags.items())]
        log = tmp_path / f"cpp-{len(started)}.log"
        started.append(Child(log.stem, argv, where, log))
        return started[-1]

    yield start
    for child in started:
        child.process.kill()
        child.process.wait()


@pytest.fixture
def python(digits: Path) -> Iterator[Callable[..., Launch]]:
    """python(place, epochs, ...) -> a Python rank"""
    started: list[Launch] = []

    def start(where: Place, epochs: int, **arguments: Any) -> Launch:
        words = {"path": str(digits), "epochs": epochs, **FLAGS, **arguments}
        started.append(Launch(membership_scenarios.digits_with_cpp, [where], None, words))
        return started[-1]

    yield start
    for launched in started:
        launched.__exit__()


def ended(child: Child) -> dict[str, str]:
    final = FINAL.search(child.wait_for("parameters ", PATIENCE_SECONDS))
    assert final is not None
    assert child.process.wait(PATIENCE_SECONDS) == 0
    return final.groupdict()


def value(launch: Launch) -> dict[str, Any]:
    (rank,) = launch.finish(PATIENCE_SECONDS)
    assert not rank.error, rank
    result: dict[str, Any] = rank.value
    return result


def test_cpp_trainers_continue_without_one_that_is_killed(cluster, cpp):
    sites = "site-0:2,site-1:1"
    places = [place(cluster, "", site, "continue", sites) for site in (0, 0, 1)]
    places[0] |= {"WORLD_SIZE": "2"}
    places[1] |= {"RANK": "1", "WORLD_SIZE": "2"}
    job = cluster.new_job()
    running = [cpp({**where, "PACTRAIN_JOB_ID": job}, epochs=8) for where in places]
    running[0].wait_for("epoch 1:", PATIENCE_SECONDS)
    running[1].process.kill()
    finals = [ended(running[0]), ended(running[2])]
    assert finals[0] == finals[1]
    assert float(finals[0]["accuracy"]) > 0.9
    assert finals[0]["outside"] == "0"
    for child in (running[0], running[2]):
        assert "2 of 3 ranks go on after" in child.log.read_text()


def test_tracked_masks_outlive_a_cpp_trainer_that_is_killed_and_comes_back(cluster, cpp):
    job = cluster.new_job()
    places = [place(cluster, job, site, "pause") for site in (0, 1)]
    first, second = (cpp(where, epochs=6, track="true") for where in places)
    first.wait_for("epoch 1:", PATIENCE_SECONDS)
    second.process.kill()
    again = cpp(places[1], epochs=6, track="true")
    last = first.wait_for("epoch 6:", PATIENCE_SECONDS)
    finals = [ended(first), ended(again)]
    assert finals[0] == finals[1]
    assert finals[0]["outside"] == "0"
    assert 0.5 < float(finals[0]["keep"]) < 0.8  # Those of the second half.
    assert "took the state of rank 0" in again.log.read_text()
    assert " x COMPACTED fp32" in last
    assert "DENSE" not in last


def pair(cluster: Cluster, job: str) -> list[Place]:
    """The two ranks of site 1 beside one of site 0."""
    where = place(cluster, job, 1, "pause", "site-0:1,site-1:2")
    return [{**where, "RANK": str(rank), "WORLD_SIZE": "2"} for rank in (0, 1)]


@pytest.mark.parametrize("kind", ["zero", "freeze"])
def test_a_killed_cpp_trainer_takes_the_model_of_python_and_the_optimizer_of_cpp(
    cluster, cpp, python, kind
):
    job = cluster.new_job()
    sites = "site-0:1,site-1:2"
    first = python(place(cluster, job, 0, "pause", sites), epochs=3, kind=kind, stops=(STOP,))
    second, third = (cpp(where, epochs=3) for where in pair(cluster, job))
    first.wait_said(STOP)
    third.process.kill()
    again = cpp(pair(cluster, job)[1], epochs=3)
    first.tell("on")
    result, final = value(first), ended(again)
    assert final == ended(second)
    assert final["digest"] == result["digest"]
    assert final["accuracy"] == f"{result['accuracy']:.4f}"
    assert result["sizes"] == [3]
    assert f"took the state of rank 0 after {STOP} steps" in again.log.read_text()


def test_a_killed_python_trainer_takes_the_model_of_cpp_and_the_optimizer_of_python(
    cluster, cpp, python
):
    job = cluster.new_job()
    first = cpp(place(cluster, job, 0, "pause", "site-0:1,site-1:2"), epochs=3)
    second, third = (python(where, epochs=3, stops=(STOP,)) for where in pair(cluster, job))
    for rank in (second, third):
        rank.wait_said(STOP)
    third.kill(0)
    again = python(pair(cluster, job)[1], epochs=3)
    second.tell("on")
    results, final = [value(second), value(again)], ended(first)
    assert {final["digest"]} == {result["digest"] for result in results}
    assert results[1]["began"] == STOP
    assert results[1]["momentum"] == results[0]["momentum"] > 0


def test_a_rank_whose_optimizer_nobody_can_give_ends_and_pause_does_not_wait_for_it(
    cluster, cpp, python
):
    job = cluster.new_job()
    first = python(place(cluster, job, 0, "pause"), epochs=2, stops=(STOP,))
    second = cpp(place(cluster, job, 1, "pause"), epochs=2)
    first.wait_said(STOP)
    second.process.kill()
    again = cpp(place(cluster, job, 1, "pause"), epochs=2)
    first.tell("on")
    assert value(first)["sizes"] == [1, 2]
    assert again.process.wait(PATIENCE_SECONDS) == 1
    assert "No C++ rank of generation 2 has the job's state" in again.log.read_text()


def test_a_cpp_trainer_joins_a_job_of_both_languages(cluster, cpp, python):
    job = cluster.new_job()
    first = python(place(cluster, job, 0, "pause"), epochs=3, stops=(STOP,))
    second = cpp(place(cluster, job, 1, "pause"), epochs=3)
    first.wait_said(STOP)
    third = cpp(place(cluster, job, 1, "pause", sites=""), epochs=3)
    wait_until_it_ends(cluster, job)
    first.tell("on")
    result, finals = value(first), [ended(second), ended(third)]
    assert {final["digest"] for final in finals} == {result["digest"]}
    assert result["sizes"] == [2, 3]
