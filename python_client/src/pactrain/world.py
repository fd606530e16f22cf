"""init(): this process's place among the trainers of all sites.

Each site has a launch of its own (torchrun, Slurm, or one bare process), whose launcher
knows the ranks of that site only. PACTRAIN_SITES names the sites of the job in order
with their trainers, so that every rank knows its place among all without asking anyone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from .config import check_name
from .errors import InvalidArgument

# Of a job; as in protocol/limits.h.
MAX_RANKS = 1024
MAX_SITES = 32
_ALONE = "The number of processes (RANK, WORLD_SIZE and SLURM_PROCID are not set)"
_replace: bool | None = None
_SITES_FORM = "'name:trainers' of each site in order, like 'a:2,b:4'"


@dataclass(frozen=True)
class Site:
    name: str  # Empty: the launch is the only site, and PACTRAIN_SITE is not set.
    trainers: int


@dataclass(frozen=True)
class World:
    """Where this process is in the job; for samplers and seeds.

    `rank` and `world_size` are over all sites. The local ones are those of the
    launcher, on this node. Ranks of a site are consecutive, sites in the order given.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    site: str
    sites: tuple[Site, ...]

    @property
    def sites_text(self) -> str:
        """As PACTRAIN_SITES has them."""
        return ",".join(f"{site.name}:{site.trainers}" for site in self.sites)


@dataclass(frozen=True)
class _Launch:
    """What this site's launcher says. `size_from` names its variable."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    size_from: str


def init(*, replace: bool | None = None) -> World:
    """This process's rank and the world size over all sites of the job.

    Reads variables only: it waits for nobody, makes no torch.distributed group, and may
    be called at any time and again. The launcher's variables are RANK, WORLD_SIZE,
    LOCAL_RANK and LOCAL_WORLD_SIZE (torchrun), else SLURM_PROCID, SLURM_STEP_NUM_TASKS
    and SLURM_LOCALID (srun); without any this process is the only trainer of its site.

    Args:
      replace: True: the job begins anew with this launch once all of it is there,
        although ranks that hold the job's state may live; those end with ReplacedError.
        For launches whose nodes were taken away and that go on from a checkpoint. Equal
        at all ranks. Acts with the first attach of each model. None: what was said
        before, else PACTRAIN_REPLACE.

    Raises:
      InvalidArgument: a variable is missing or does not fit the others.
    """
    global _replace
    if replace is not None:
        _replace = replace
    return world_from(os.environ)


def wants_to_replace() -> bool | None:
    """What init() was told; None: nothing."""
    return _replace


def world_from(environment: Mapping[str, str]) -> World:
    """init() with these variables."""
    launch = _launch_from(environment)
    name = environment.get("PACTRAIN_SITE", "")
    if name:
        check_name("PACTRAIN_SITE", name)
    text = environment.get("PACTRAIN_SITES", "")
    sites = _sites_from(text) if text else (Site(name, launch.size),)
    before = _ranks_before(name, sites, launch, text)
    if len(sites) > 1 and not environment.get("PACTRAIN_JOB_ID"):
        raise InvalidArgument(
            "PACTRAIN_JOB_ID is not set; with several sites in PACTRAIN_SITES it has "
            "to be: the launches of the sites find each other by it, and what each "
            "launcher calls its job is not the same.\nSet it to one name at all sites."
        )
    total = sum(site.trainers for site in sites)
    if total > MAX_RANKS:
        raise InvalidArgument(
            f"{'PACTRAIN_SITES' if text else launch.size_from} gives {total} trainers; "
            f"allowed are 1 to {MAX_RANKS}.\nTrain with fewer processes."
        )
    return World(
        rank=before + launch.rank,
        world_size=total,
        local_rank=launch.local_rank,
        local_world_size=launch.local_size,
        site=name,
        sites=sites,
    )


def _ranks_before(
    name: str, sites: tuple[Site, ...], launch: _Launch, text: str
) -> int:
    """The trainers of the sites before this one, whose launch has to fit."""
    names = [site.name for site in sites]
    if name not in names:
        came = f"is {name!r}" if name else "is not set"
        raise InvalidArgument(
            f"PACTRAIN_SITE {came}; allowed are the sites in PACTRAIN_SITES={text}: "
            f"{', '.join(names)}.\nSet it to the site that this launch runs in."
        )
    index = names.index(name)
    if launch.size != sites[index].trainers:
        raise InvalidArgument(
            f"{launch.size_from} is {launch.size}; allowed is "
            f"{sites[index].trainers}, the trainers of site {name!r} in "
            f"PACTRAIN_SITES={text}.\nStart as many processes there, with torchrun or "
            "Slurm or with RANK and WORLD_SIZE set, or change PACTRAIN_SITES at all "
            "sites."
        )
    return sum(site.trainers for site in sites[:index])


def _sites_from(text: str) -> tuple[Site, ...]:
    sites = []
    for part in text.split(","):
        name, colon, count = part.strip().partition(":")
        if not colon or not re.fullmatch("[0-9]{1,9}", count):
            raise InvalidArgument(
                f"PACTRAIN_SITES has {part!r} in {text!r}; allowed is {_SITES_FORM}.\n"
                "Set it alike at all sites."
            )
        check_name("A name in PACTRAIN_SITES", name)
        if not 1 <= int(count) <= MAX_RANKS:
            raise InvalidArgument(
                f"PACTRAIN_SITES gives site {name!r} {count} trainers; allowed are 1 "
                f"to {MAX_RANKS}.\nLeave out a site without trainers."
            )
        sites.append(Site(name, int(count)))
    names = [site.name for site in sites]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidArgument(
            f"PACTRAIN_SITES has site {twice!r} twice in {text!r}; allowed is "
            f"{_SITES_FORM}, each name once.\nName the sites differently."
        )
    if len(sites) > MAX_SITES:
        raise InvalidArgument(
            f"PACTRAIN_SITES has {len(sites)} sites; allowed are 1 to {MAX_SITES}.\n"
            "Join sites that share a fast network."
        )
    return tuple(sites)


def _launch_from(environment: Mapping[str, str]) -> _Launch:
    if "RANK" in environment or "WORLD_SIZE" in environment:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    elif "SLURM_STEP_NUM_TASKS" in environment:
        # Not SLURM_NTASKS: a batch script and an salloc shell have SLURM_PROCID=0 and
        # that too, of tasks that only an srun of theirs would start.
        names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
    else:
        return _Launch(0, 1, 0, 1, _ALONE)
    rank_name, size_name, local_name = names
    size = _number(environment, size_name, 1, MAX_RANKS)
    rank = _number(environment, rank_name, 0, size - 1)
    local_size = _local_size(environment, size)
    # Ranks that were started by hand may have no local rank: then they are on one node.
    local = rank
    if local_name in environment:
        local = _number(environment, local_name, 0, local_size - 1)
    return _Launch(rank, size, local, local_size, size_name)


def _local_size(environment: Mapping[str, str], size: int) -> int:
    if "RANK" in environment:
        if "LOCAL_WORLD_SIZE" not in environment:
            return size
        return _number(environment, "LOCAL_WORLD_SIZE", 1, size)
    # Like "2(x3),1": tasks of each node in order.
    counts: list[int] = []
    for part in environment.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        if match := re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", part):
            counts += [int(match[1])] * min(int(match[2] or 1), MAX_RANKS)
    node = environment.get("SLURM_NODEID", "")
    return counts[int(node)] if node.isdigit() and int(node) < len(counts) else size


def _number(environment: Mapping[str, str], name: str, low: int, high: int) -> int:
    text = environment.get(name)
    if text is not None and re.fullmatch("[0-9]{1,9}", text):
        value = int(text)
        if low <= value <= high:
            return value
    came = "is not set" if text is None else f"is {text!r}"
    raise InvalidArgument(
        f"{name} {came}; allowed are {low} to {high}.\n"
        "Start the ranks of this site with torchrun or Slurm, or set RANK, WORLD_SIZE "
        "and LOCAL_RANK."
    )
