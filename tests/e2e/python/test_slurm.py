"""examples/slurm: the scripts of two sites, with a stand-in for srun.

Slurm itself is not here: its variables are those that srun gives each task.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_sites import clean

ROOT = Path(__file__).resolve().parents[3]
SLURM = ROOT / "examples" / "slurm"
SECONDS = 120.0
LINE = re.compile(r"site (\S+), rank (\d) of 4, epoch 1: .* accuracy (\S+),")
SRUN = """#!{python}
import os, subprocess, sys
count = int(os.environ["SLURM_NTASKS"])
command = sys.argv[1:]
while command[0].startswith("-"):
    command.pop(0)
def task(number):
    of_task = {{"SLURM_PROCID": str(number), "SLURM_LOCALID": str(number), "SLURM_NODEID": "0"}}
    of_step = {{"SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": str(count)}}
    return subprocess.Popen(command, env={{**os.environ, **of_task, **of_step}})
sys.exit(max(abs(task.wait()) for task in [task(number) for number in range(count)]))
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """start(command, variables) -> what runs in the checkout; it is killed at the end."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "srun").write_text(SRUN.format(python=sys.executable))
    (programs / "srun").chmod(0o755)
    # `python` is that of this environment.
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    started: list[subprocess.Popen[str]] = []

    def run(command: list[str], variables: dict[str, str]) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                command,
                cwd=ROOT,
                env={**clean(), "PATH": path, **variables},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        )
        return started[-1]

    yield run
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, 9)
        process.communicate()


def submit(start: Start, letter: str, variables: dict[str, str]) -> subprocess.Popen[str]:
    """As sbatch does: what #SBATCH says is in variables, and the script runs once."""
    script = SLURM / f"site-{letter}.sbatch"
    asked = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", script.read_text(), re.M))
    job = {
        "SLURM_JOB_ID": "17",
        "SLURM_PROCID": "0",  # sbatch sets these of its one task, too.
        "SLURM_LOCALID": "0",
        "SLURM_NTASKS": asked["ntasks"],
        "SLURM_CPUS_PER_TASK": "1",
    }
    return start(["bash", str(script), "--epochs=1"], {**job, **variables})


def lines_of(process: subprocess.Popen[str]) -> list[tuple[str, ...]]:
    text, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, text
    return LINE.findall(text)


def at(cluster, number: int, job: str) -> dict[str, str]:
    return {
        "PACTRAIN_SITE": f"site-{number}",
        "PACTRAIN_SITES": "site-0:2,site-1:2",
        "PACTRAIN_JOB_ID": job,
        "PACTRAIN_AGENT": f"unix:{cluster.socket(number)}",
        "PACTRAIN_ATTACH_TIMEOUT": "60",
    }


def test_the_scripts_of_two_sites_train_together(cluster, start):
    job = cluster.new_job()
    running = [submit(start, letter, at(cluster, n, job)) for n, letter in enumerate("ab")]
    (first,), (second,) = map(lines_of, running)
    assert (first[:2], second[:2]) == (("site-0", "0"), ("site-1", "2"))
    # One model, but each site's own BatchNorm statistics since they were last equal.
    assert abs(float(first[2]) - float(second[2])) < 0.05


def test_bare_processes_as_the_page_says_train_with_a_script(cluster, start):
    job = cluster.new_job()
    page = (SLURM / "README.md").read_text().partition("## Bare processes")[2]
    commands = page.partition("```sh\n")[2].partition("```")[0]
    here = at(cluster, 1, job)
    timeout = {"PACTRAIN_ATTACH_TIMEOUT": here.pop("PACTRAIN_ATTACH_TIMEOUT")}
    for name, value in here.items():
        commands, count = re.subn(rf"\b{name}=\S+", f"{name}={value}", commands)
        assert count == 1, name
    bare = commands.replace("multi_site.py", "multi_site.py --epochs=1")
    running = [
        submit(start, "a", at(cluster, 0, job)),
        start(["bash", "-euc", bare], timeout),
    ]
    (first,), (second,) = map(lines_of, running)
    assert (first[:2], second[:2]) == (("site-0", "0"), ("site-1", "2"))


@pytest.mark.parametrize("letter", "ab")
def test_each_script_is_its_sites_and_fits_the_list(letter):
    text = (SLURM / f"site-{letter}.sbatch").read_text()
    assert f"PACTRAIN_SITE:-{letter}}}" in text
    sites = dict(
        part.split(":") for part in re.search(r"PACTRAIN_SITES:-([^}]+)}", text)[1].split(",")
    )
    assert sites[letter] == re.search(r"^#SBATCH --ntasks=(\d+)$", text, re.M)[1]
