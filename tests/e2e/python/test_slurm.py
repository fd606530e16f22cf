"""examples/slurm in two Slurms that know nothing of each other, each with its own jobs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemons import ROOT, Cluster
from patience import PATIENCE, PATIENCE_SECONDS
from slurm import Job, Slurm, wait_until, why_no_slurm
from test_sites import MULTI_SITE, SCRIPT, clean

from bench.cluster import free_port

EXAMPLES = ROOT / "examples" / "slurm"
EXAMPLE = "examples/multi_site.py"
# `python` is that of this environment.
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
LINE = re.compile(r"site (\S+), rank (\d) of (\d), epoch (\d+): .* accuracy (\S+),")
EPOCHS = 6

needs_slurm = pytest.mark.skipif(why_no_slurm() is not None, reason=str(why_no_slurm()))


@pytest.fixture(scope="module")
def slurms() -> Iterator[list[Slurm]]:
    """One node in the first, two in the second."""
    # Not pytest's folder: its path may be too long for a socket.
    with (
        tempfile.TemporaryDirectory(prefix="pactrain-e2e-") as folder,
        Slurm(Path(folder) / "a", "a", ["n0"]) as first,
        Slurm(Path(folder) / "b", "b", ["n1", "n2"]) as second,
    ):
        yield [first, second]


@pytest.fixture(scope="module")
def agents() -> Iterator[Cluster]:
    """agent-N is that of node nN."""
    with tempfile.TemporaryDirectory(prefix="pactrain-e2e-") as folder:
        cluster = Cluster(Path(folder), sites=2)
        try:
            cluster.agents.append(cluster.start_agent(2, site=1))
            yield cluster
        finally:
            cluster.stop()


def at(cluster: Cluster, number: int, job: str) -> dict[str, str]:
    """The variables of one site's job."""
    return {
        "PATH": PATH,
        "PACTRAIN_SITE": f"site-{number}",
        "PACTRAIN_SITES": "site-0:2,site-1:2",
        "PACTRAIN_JOB_ID": job,
        "PACTRAIN_AGENT": f"unix:{cluster.socket(number)}",
        "PACTRAIN_ATTACH_TIMEOUT": PATIENCE,
    }


def of_site(letter: str, *arguments: str) -> list[str]:
    """A site's script; this machine has fewer cores than it asks for."""
    return ["--cpus-per-task=1", str(EXAMPLES / f"site-{letter}.sbatch"), *arguments]


def another_command(letter: str, folder: Path, *command: str | Path) -> list[str]:
    """A site's script with this instead of the example."""
    *options, script = of_site(letter)
    words = " ".join(map(str, command))
    text, count = re.subn(f"python {EXAMPLE}", words, Path(script).read_text())
    assert count == 1
    copy = folder / Path(script).name
    copy.write_text(text)
    return [*options, str(copy)]


def epochs_of(text: str, site: str, rank: str, ranks: str = "4") -> list[int]:
    """Those that the printing rank of `site` tells of; it has trained to the end, and learnt."""
    lines = LINE.findall(text)
    assert {line[:3] for line in lines} == {(site, rank, ranks)}, text
    assert float(lines[-1][4]) > 0.8
    epochs = [int(line[3]) for line in lines]
    assert epochs == list(range(epochs[0], EPOCHS + 1))
    return epochs


@needs_slurm
def test_a_job_that_is_requeued_goes_on_where_the_other_site_is(agents, slurms):
    job = agents.new_job()
    names = ",".join([*at(agents, 1, job), "PYTHONPATH"])
    stays, requeued = (
        slurm.submit([*options, *of_site(letter, f"--epochs={EPOCHS}")], at(agents, n, job))
        # An --export of sbatch's holds for the script, which exports more.
        for n, (slurm, letter, options) in enumerate(
            zip(slurms, "ab", [[], [f"--export={names}"]], strict=True)
        )
    )
    requeued.wait_for("epoch 2:")
    # Else it may be at its end before Slurm, after some seconds, starts the other anew.
    slurms[0].command("scancel", "--signal=STOP", stays.number)
    slurms[1].command("scontrol", "requeue", requeued.number)
    wait_until(
        lambda: "epoch" not in requeued.text() and "pactrain: prune:" in requeued.text(),
        requeued.text,
    )
    slurms[0].command("scancel", "--signal=CONT", stays.number)
    stays.wait_for_state("RUNNING")  # For a moment it is still STOPPED.
    assert epochs_of(stays.finish(), "site-0", "0") == [*range(1, EPOCHS + 1)]
    assert epochs_of(requeued.finish(), "site-1", "2")[0] >= 3
    assert requeued.shown("Restarts") == "1"


@needs_slurm
@pytest.mark.nightly
def test_bare_processes_wait_for_a_job_that_is_cancelled_and_submitted_again(agents, slurms):
    job = agents.new_job()
    page = (EXAMPLES / "README.md").read_text().partition("## Bare processes")[2]
    commands = page.partition("```sh\n")[2].partition("```")[0]
    commands = commands.replace("multi_site.py", f"multi_site.py --epochs={EPOCHS}")
    here = at(agents, 0, job)
    for name in ("PACTRAIN_SITE", "PACTRAIN_SITES", "PACTRAIN_JOB_ID", "PACTRAIN_AGENT"):
        commands, count = re.subn(rf"\b{name}=\S+", f"{name}={here[name]}", commands)
        assert count == 1, name
    bare = subprocess.Popen(
        ["bash", "-euc", commands],
        cwd=ROOT,
        env={**clean(), **here},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        submit = of_site("b", f"--epochs={EPOCHS}"), at(agents, 1, job)
        lost = slurms[1].submit(*submit)
        lost.wait_for("epoch 2:")
        slurms[1].command("scancel", lost.number)
        lost.finish("CANCELLED")
        assert epochs_of(slurms[1].submit(*submit).finish(), "site-1", "2")[0] >= 3
        text, _ = bare.communicate(timeout=PATIENCE_SECONDS)
        assert bare.returncode == 0, text
        assert epochs_of(text, "site-0", "0")[0] == 1
    finally:
        if bare.poll() is None:
            os.killpg(bare.pid, signal.SIGKILL)
        bare.wait()


@needs_slurm
def test_ranks_on_several_nodes_are_numbered_over_all_sites(agents, slurms, tmp_path):
    job = agents.new_job()
    # Each node of this machine has an agent of its own.
    prolog = tmp_path / "prolog"
    prolog.write_text(
        "#!/bin/sh\n"
        f'echo export PACTRAIN_AGENT=unix:{agents.folder}/agent-"${{SLURMD_NODENAME#n}}".sock\n'
    )
    prolog.chmod(0o755)
    jobs = [
        slurm.submit(
            [f"--nodes={nodes}", *another_command(letter, tmp_path, "python", SCRIPT, tmp_path)],
            {**at(agents, n, job), "SLURM_TASK_PROLOG": str(prolog)},
        )
        for n, (slurm, letter, nodes) in enumerate(zip(slurms, "ab", (1, 2), strict=True))
    ]
    for running in jobs:
        running.finish()
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    assert [result["site"] for result in results] == ["site-0"] * 2 + ["site-1"] * 2
    assert [result["local"] for result in results] == [[0, 2], [1, 2], [0, 1], [0, 1]]
    assert len({result["digest"] for result in results}) == 1


def task_of(job: Job) -> int:
    """The process of a rank."""
    listed = job.slurm.command("scontrol", "listpids", job.number).splitlines()[1:]
    pids = [int(line.split()[0]) for line in listed if line.split()[4] == "0"]
    assert pids, listed
    return pids[0]


@needs_slurm
@pytest.mark.nightly
def test_with_abort_all_jobs_end_when_a_rank_is_killed(agents, slurms):
    job = agents.new_job()
    jobs = [
        slurm.submit(
            of_site(letter, "--epochs=1000"),
            {**at(agents, n, job), "PACTRAIN_ON_SHRINK": "abort"},
        )
        for n, (slurm, letter) in enumerate(zip(slurms, "ab", strict=True))
    ]
    jobs[1].wait_for("epoch 2:")
    os.kill(task_of(jobs[1]), signal.SIGKILL)
    assert "task 0: Killed" in jobs[1].finish("FAILED")
    assert "pactrain.errors.StepNotAppliedError" in jobs[0].finish("FAILED")


@needs_slurm
def test_a_job_without_agents_brings_its_own_to_each_node(jobs, slurms):
    variables = {**jobs.environment(), "PATH": PATH}
    del variables["GROUP_RANK"]  # torchrun sets it.
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port("127.0.0.1"))}
    wrap = f"--wrap=srun python {MULTI_SITE} --epochs={EPOCHS}"
    job = slurms[1].submit(["--nodes=2", "--ntasks=2", wrap], variables)
    job.wait_for("epoch 1:")
    assert len(jobs.processes("pactrain-agent")) == 2
    text = job.finish()
    assert re.findall(rf"rank (\d) of 2, epoch {EPOCHS}:", text) in (["0", "1"], ["1", "0"])
    jobs.must_leave_nothing()


@needs_slurm
@pytest.mark.nightly
def test_what_runs_without_srun_is_no_rank_of_the_job(slurms):
    show = "python -c 'import pactrain; w = pactrain.init(); print(w.rank, w.world_size)'"
    wrap = f"--wrap={show}; srun --ntasks=2 {show} | sort; srun --interactive {show}"
    job = slurms[0].submit(["--ntasks=2", wrap], {"PATH": PATH})
    assert job.finish().splitlines() == ["0 1", "0 2", "1 2", "0 1"]


@pytest.mark.parametrize("letter", "ab")
def test_each_script_is_its_sites_and_fits_the_list(letter):
    text = (EXAMPLES / f"site-{letter}.sbatch").read_text()
    assert f"PACTRAIN_SITE:-{letter}}}" in text
    sites = dict(
        part.split(":") for part in re.search(r"PACTRAIN_SITES:-([^}]+)}", text)[1].split(",")
    )
    assert sites[letter] == re.search(r"^#SBATCH --ntasks=(\d+)$", text, re.M)[1]
