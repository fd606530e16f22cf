"""One launch per site: nothing is shared between the sites but the agents."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import site_scenarios
from daemons import Cluster
from patience import PATIENCE, PATIENCE_SECONDS
from test_torchrun import HERE, Torchrun

MULTI_SITE = HERE.parents[2] / "examples" / "multi_site.py"
SCRIPT = HERE / "site_scenarios.py"
TORCHRUN = ("--standalone", "--nproc-per-node=2")
LAUNCHER = {
    *("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    *("SLURM_STEP_NUM_TASKS", "MASTER_ADDR", "MASTER_PORT"),
}
SITES = "site-0:2,site-1:2"
WARM = """
import os, pathlib, runpy, signal, sys, time
import sklearn.datasets, torch, pactrain
def fail(*_):
    raise ValueError("told to")
signal.signal(signal.SIGUSR1, fail)
signal.signal(signal.SIGUSR2, lambda *_: sys.exit(3))
print("ready", flush=True)
while sys.argv[1] and not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.02)
sys.argv = sys.argv[2:]
sys.path.insert(0, os.environ["EXAMPLES"])
runpy.run_path(sys.argv[0], run_name="__main__")
"""

Start = Callable[..., Torchrun]


def at_site(cluster: Cluster, number: int, job: str, sites: str = SITES) -> dict[str, str]:
    """The variables of one site's launch, beside its launcher's."""
    return {
        "PACTRAIN_AGENT": f"unix:{cluster.socket(number)}",
        "PACTRAIN_JOB_ID": job,
        "PACTRAIN_ATTACH_TIMEOUT": PATIENCE,
        "PACTRAIN_SITE": f"site-{number}",
        "PACTRAIN_SITES": sites,
        "OMP_NUM_THREADS": "1",
    }


def clean() -> dict[str, str]:
    """This process's environment, as if no launcher had started it."""
    return {name: value for name, value in os.environ.items() if name not in LAUNCHER}


@pytest.fixture
def torchrun(tmp_path: Path) -> Iterator[Start]:
    """torchrun(environment, arguments...) -> a launch; what still runs is killed."""
    started: list[Torchrun] = []

    def start(environment: dict[str, str], *arguments: str | Path) -> Torchrun:
        log = tmp_path / f"log-{len(started)}"
        started.append(Torchrun(log, environment, *TORCHRUN, *arguments))
        return started[-1]

    yield start
    for launch in started:
        launch.process.terminate()  # It ends its ranks, too.
        launch.process.wait(PATIENCE_SECONDS)


def test_two_launches_end_with_the_bits_of_one_world(cluster, launch, torchrun, tmp_path):
    job = cluster.new_job()
    launches = [torchrun(at_site(cluster, n, job), SCRIPT, tmp_path) for n in (0, 1)]
    for running in launches:
        running.finish()
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    assert [result["site"] for result in results] == ["site-0"] * 2 + ["site-1"] * 2
    assert {result["world_size"] for result in results} == {4}
    assert {result["mode"] for result in results} == {"COMPACTED fp32"}

    together = launch(cluster, site_scenarios.one_world, world=4).finish()
    assert not any(rank.error for rank in together), together
    wanted = {rank.value["digest"] for rank in together}
    assert len(wanted) == 1
    assert {result["digest"] for result in results} == wanted


def test_the_example_learns_at_two_sites(cluster, torchrun):
    job = cluster.new_job()
    launches = [torchrun(at_site(cluster, n, job), MULTI_SITE, "--epochs=5") for n in (0, 1)]
    texts = [running.finish() for running in launches]
    lines = [
        re.search(r"site (\S+), rank (\d) of 4, epoch 5: .* accuracy (\S+), COMPACTED", text)
        for text in texts
    ]
    assert [line.group(1, 2) for line in lines] == [("site-0", "0"), ("site-1", "2")]
    assert all(float(line[3]) > 0.8 for line in lines)


class Example:
    """multi_site.py as one bare process of a site. `until`: it has imported everything, and
    waits for this file."""

    def __init__(
        self, log: Path, environment: dict[str, str], epochs: int, until: Path | str = ""
    ) -> None:
        self.log = log
        self._epochs = epochs
        words = [MULTI_SITE, f"--epochs={epochs}"]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", WARM, str(until), *map(str, words)],
                env={**clean(), **environment, "EXAMPLES": str(MULTI_SITE.parent)},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def wait_for(self, words: str) -> None:
        end = time.monotonic() + PATIENCE_SECONDS  # A hang, however loaded the machine is.
        while words not in self.log.read_text():
            assert time.monotonic() < end, self.log.read_text()[-3000:]
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            time.sleep(0.02)

    def finish(self) -> list[tuple[int, int, float]]:
        """Ranks, epoch and accuracy of each of its lines; it has trained to the end."""
        status, text = self.process.wait(PATIENCE_SECONDS), self.log.read_text()
        assert status == 0, text[-3000:]
        found = re.findall(r"of (\d), epoch (\d+): .* accuracy (\S+),", text)
        lines = [(int(ranks), int(epoch), float(right)) for ranks, epoch, right in found]
        assert [epoch for _, epoch, _ in lines] == list(range(lines[0][1], self._epochs + 1))
        assert lines[-1][2] > 0.8
        return lines


@pytest.fixture
def example(tmp_path: Path) -> Iterator[Callable[..., Example]]:
    """example(environment, epochs, until="") -> an Example; what still runs is killed."""
    started: list[Example] = []

    def start(*arguments: Any) -> Example:
        started.append(Example(tmp_path / f"example-{len(started)}", *arguments))
        return started[-1]

    yield start
    for running in started:
        running.process.kill()
        running.process.wait(PATIENCE_SECONDS)


@pytest.mark.parametrize(
    "how",
    [
        signal.SIGKILL,
        *(pytest.param(how, marks=pytest.mark.nightly) for how in (signal.SIGUSR1, signal.SIGUSR2)),
    ],
)
def test_in_the_example_a_site_is_lost_and_comes_back(cluster, example, how):
    job = cluster.new_job()
    places = [at_site(cluster, n, job, "site-0:1,site-1:1") for n in (0, 1)]
    stays, lost = (example(place, 6) for place in places)
    lost.wait_for("epoch 2:")
    lost.process.send_signal(how)  # SIGUSR1: by a ValueError; SIGUSR2: sys.exit(3).
    lost.process.wait(PATIENCE_SECONDS)
    back = example(places[1], 6)
    assert {ranks for ranks, _, _ in stays.finish()} == {2}
    assert back.finish()[0][1] >= 3


def test_in_the_example_a_site_joins(chain, example, tmp_path):
    job = chain.new_job()
    joins = example(at_site(chain, 2, job, ""), 12, tmp_path / "join")
    joins.wait_for("ready")
    stay = [example(at_site(chain, n, job, "site-0:1,site-1:1"), 12) for n in (0, 1)]
    for running in stay:
        running.wait_for("epoch 2:")
    (tmp_path / "join").touch()
    ends = [running.finish() for running in (*stay, joins)]
    assert [ends[0][0][0], ends[0][-1][0]] == [2, 3]
    assert len({lines[-1][:2] for lines in ends}) == 1
    assert ends[2][0][1] >= 3


@pytest.mark.nightly
def test_launchers_at_all_sites_restart_a_job_that_lost_a_trainer(cluster, torchrun, tmp_path):
    job = cluster.new_job()
    restarts = ("--max-restarts=1", "--monitor-interval=0.1")
    launches = [
        torchrun(
            {**at_site(cluster, n, job), "PACTRAIN_ON_SHRINK": "abort"},
            *(*restarts, SCRIPT, tmp_path, "3"),
        )
        for n in (0, 1)
    ]
    for running in launches:
        running.finish()
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    assert {result["restarts"] for result in results} == {"1"}
    assert len({result["digest"] for result in results}) == 1


def test_bare_processes_may_be_sites(cluster, tmp_path):
    job = cluster.new_job()
    running = [
        subprocess.Popen(
            [sys.executable, SCRIPT, tmp_path],
            env={**clean(), **at_site(cluster, number, job, "site-0:1,site-1:1")},
        )
        for number in (0, 1)
    ]
    try:
        assert [process.wait(PATIENCE_SECONDS) for process in running] == [0, 0]
    finally:
        for process in running:
            process.kill()
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert len({result["digest"] for result in results}) == 1


def test_lists_of_sites_that_differ_are_shown(cluster, launch):
    environment = {"PACTRAIN_ATTACH_TIMEOUT": "10"}
    ranks = launch(cluster, site_scenarios.lists_differ, environment=environment).finish()
    assert [rank.error for rank in ranks] == ["CoordinatorUnavailableError"] * 2, ranks
    # Who gives up last may be alone by then.
    assert any(
        "launch 'site-0:1,site-1:1 " in rank.text
        and "launch 'site-1:1,site-0:1 " in rank.text
        and "set PACTRAIN_SITES to the same value" in rank.text
        for rank in ranks
    ), ranks


@pytest.mark.nightly
def test_launches_without_a_name_do_not_meet_at_their_agent(cluster, tmp_path):
    environment = {**at_site(cluster, 0, "", ""), "PACTRAIN_ATTACH_TIMEOUT": PATIENCE}
    own_store = ("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--nproc-per-node=2")
    folders = [tmp_path / name for name in ("one", "other")]
    launches = []
    for folder in folders:
        folder.mkdir()
        launches.append(Torchrun(folder / "log", environment, *own_store, SCRIPT, folder))
    for running in launches:
        running.finish()
    places = [folder / f"{rank}.json" for folder in folders for rank in (0, 1)]
    results = [json.loads(place.read_text()) for place in places]
    assert len({result["digest"] for result in results}) == 1  # Each had its own start.


def test_a_single_process_and_a_single_torchrun_bring_their_daemons(jobs, torchrun, tmp_path):
    environment = {**jobs.environment(), "PACTRAIN_SITE": "", "PACTRAIN_SITES": ""}
    del environment["GROUP_RANK"]  # torchrun sets it.
    alone = subprocess.run(
        [sys.executable, SCRIPT, tmp_path],
        env={**clean(), **environment},
        timeout=PATIENCE_SECONDS,
        capture_output=True,
        text=True,
    )
    assert alone.returncode == 0, alone.stderr
    assert json.loads((tmp_path / "0.json").read_text())["world_size"] == 1
    torchrun(environment, SCRIPT, tmp_path).finish()
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert {result["world_size"] for result in results} == {2}
    assert len({result["digest"] for result in results}) == 1
    jobs.must_leave_nothing()
