"""init(): ranks over all sites from the launchers' variables."""

from __future__ import annotations

import pytest

import pactrain
from pactrain.config import launch_of_sites
from pactrain.world import Site, world_from

TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
}
TWO_SITES = {
    **TORCHRUN,
    "PACTRAIN_SITES": "a:3,b:2",
    "PACTRAIN_SITE": "b",
    "PACTRAIN_JOB_ID": "job",
}


def test_a_bare_process_is_alone():
    world = world_from({})
    assert (world.rank, world.world_size, world.local_rank) == (0, 1, 0)
    assert world.site == ""


def test_torchrun_alone_is_the_only_site():
    world = world_from({**TORCHRUN, "PACTRAIN_SITE": "a"})
    assert (world.rank, world.world_size) == (1, 2)
    assert (world.local_rank, world.local_world_size) == (1, 2)
    assert world.sites == (Site("a", 2),)


def test_ranks_of_a_site_follow_those_of_the_sites_before():
    world = world_from(TWO_SITES)
    assert (world.rank, world.world_size) == (4, 5)
    assert (world.local_rank, world.local_world_size) == (1, 2)
    assert world.site == "b"
    assert world.sites_text == "a:3,b:2"


def test_bare_processes_may_be_sites():
    sites = {"PACTRAIN_SITES": " a:1, b:1", "PACTRAIN_JOB_ID": "job"}
    ranks = [world_from({**sites, "PACTRAIN_SITE": name}).rank for name in "ab"]
    assert ranks == [0, 1]


SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
}


def test_slurm_gives_ranks_and_the_tasks_of_this_node():
    world = world_from(SLURM)
    assert (world.rank, world.world_size) == (5, 7)
    assert (world.local_rank, world.local_world_size) == (1, 2)


def test_slurm_may_launch_one_site_of_several():
    sites = {"PACTRAIN_SITES": "a:3,b:7", "PACTRAIN_JOB_ID": "job"}
    world = world_from({**SLURM, **sites, "PACTRAIN_SITE": "b"})
    assert (world.rank, world.world_size, world.local_rank) == (8, 10, 1)
    with pytest.raises(
        pactrain.InvalidArgument,
        match=r"SLURM_STEP_NUM_TASKS is 7; allowed is 3, the trainers of site 'a'",
    ):
        world_from({**SLURM, **sites, "PACTRAIN_SITE": "a"})


BATCH_SCRIPT = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}


@pytest.mark.parametrize(
    "environment",
    [
        BATCH_SCRIPT,  # sbatch without --ntasks.
        {**BATCH_SCRIPT, "SLURM_NTASKS": "2"},
        # The shell of salloc, itself a step.
        {**BATCH_SCRIPT, "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "1"},
    ],
)
def test_what_slurm_runs_without_srun_is_alone(environment):
    world = world_from(environment)
    assert (world.rank, world.world_size) == (0, 1)
    assert (world.local_rank, world.local_world_size) == (0, 1)


@pytest.mark.parametrize("unknown", ["SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID"])
def test_tasks_that_slurm_does_not_spread_are_on_one_node(unknown):
    given = {name: value for name, value in SLURM.items() if name != unknown}
    world = world_from({**given, "SLURM_LOCALID": "5"})
    assert (world.local_rank, world.local_world_size) == (5, 7)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"SLURM_PROCID": None}, r"SLURM_PROCID is not set; allowed are 0 to 6"),
        ({"SLURM_STEP_NUM_TASKS": "x"}, r"TASKS is 'x'; allowed are 1 to 1024"),
        ({"SLURM_PROCID": "7"}, r"SLURM_PROCID is '7'; allowed are 0 to 6"),
        ({"SLURM_LOCALID": "2"}, r"SLURM_LOCALID is '2'; allowed are 0 to 1"),
    ],
)
def test_what_does_not_fit_in_slurm_is_named(changes, text):
    environment = {**SLURM, **changes}
    given = {name: value for name, value in environment.items() if value is not None}
    with pytest.raises(pactrain.InvalidArgument, match=text):
        world_from(given)


def test_torchrun_inside_slurm_counts():
    world = world_from({**TORCHRUN, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"})
    assert (world.rank, world.world_size) == (1, 2)


def test_ranks_by_hand_need_no_local_rank():
    world = world_from({"RANK": "2", "WORLD_SIZE": "4"})
    assert (world.local_rank, world.local_world_size) == (2, 4)


def test_init_reads_the_process_and_may_be_called_again(monkeypatch):
    for name, value in TWO_SITES.items():
        monkeypatch.setenv(name, value)
    assert pactrain.init() == pactrain.init() == world_from(TWO_SITES)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"PACTRAIN_SITE": "c"}, r"PACTRAIN_SITE is 'c'; allowed are .*: a, b"),
        ({"PACTRAIN_SITE": None}, r"PACTRAIN_SITE is not set; allowed are .*: a, b"),
        ({"PACTRAIN_SITE": "B"}, r"PACTRAIN_SITE is 'B'; allowed are 1 to 63"),
        ({"PACTRAIN_JOB_ID": None}, r"PACTRAIN_JOB_ID is not set; .* find each other"),
        (
            {"WORLD_SIZE": "3"},
            r"WORLD_SIZE is 3; allowed is 2, the trainers of site 'b'",
        ),
        (
            dict.fromkeys(TORCHRUN),
            r"\(RANK, WORLD_SIZE and SLURM_PROCID are not set\) is 1; allowed is 2",
        ),
        ({"PACTRAIN_SITES": "a:1,b:2,a:2"}, r"PACTRAIN_SITES has site 'a' twice"),
        ({"PACTRAIN_SITES": "a,b:2"}, r"PACTRAIN_SITES has 'a' in 'a,b:2'; allowed is"),
        ({"PACTRAIN_SITES": "a:x,b:2"}, r"PACTRAIN_SITES has 'a:x'"),
        ({"PACTRAIN_SITES": "a:0,b:2"}, r"gives site 'a' 0 trainers; allowed are 1"),
        ({"PACTRAIN_SITES": "A:3,b:2"}, r"A name in PACTRAIN_SITES is 'A'"),
        ({"PACTRAIN_SITES": "a:1023,b:2"}, r"PACTRAIN_SITES gives 1025 trainers"),
        (
            {"PACTRAIN_SITES": ",".join(f"s{n}:1" for n in range(32)) + ",b:2"},
            r"has 33 sites; allowed are 1 to 32",
        ),
        ({"RANK": None}, r"RANK is not set; allowed are 0 to 1"),
        ({"RANK": "2"}, r"RANK is '2'; allowed are 0 to 1"),
        ({"RANK": "-1"}, r"RANK is '-1'"),
        ({"LOCAL_RANK": "2"}, r"LOCAL_RANK is '2'; allowed are 0 to 1"),
        ({"LOCAL_WORLD_SIZE": "3"}, r"LOCAL_WORLD_SIZE is '3'; allowed are 1 to 2"),
        ({"WORLD_SIZE": "1025"}, r"WORLD_SIZE is '1025'; allowed are 1 to 1024"),
    ],
)
def test_what_does_not_fit_is_named(changes, text):
    environment = {**TWO_SITES, **changes}
    given = {name: value for name, value in environment.items() if value is not None}
    with pytest.raises(pactrain.InvalidArgument, match=text):
        world_from(given)


def test_as_many_ranks_and_sites_as_allowed():
    sites = ",".join(f"s{n}:1" for n in range(30)) + ",a:992,b:2"
    world = world_from({**TWO_SITES, "PACTRAIN_SITES": sites})
    assert (world.rank, world.world_size) == (1023, 1024)


def test_launches_differ_by_job_and_sites_and_show_the_sites():
    sites = "a:1,b:1"
    given = [("j", sites), ("k", sites), ("j", "a:1,b:2"), ("j", sites * 20)]
    names = [launch_of_sites(*pair) for pair in given]
    assert len(set(names)) == 4
    assert names[0].startswith(sites + " ")
    assert max(map(len, names)) <= 63  # protocol/limits.h
