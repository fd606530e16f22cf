"""Where the agent is and which job this is: from arguments and the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from .errors import InvalidArgument, PacTrainError
from .onset import DEFAULT_ONSET, Onset
from .types import OnShrink
from .variables import warn_of_unknown

DEFAULT_JOB = "default"
DEFAULT_AGENT_SOCKET = "/run/pactrain/agent.sock"  # As of pactrain-agent.
_NAME = re.compile(r"[a-z0-9]([-a-z0-9._]{0,61}[a-z0-9])?")
_MAX_INTERVAL = 1_000_000


@dataclass(frozen=True)
class AttachConfig:
    """Everything attach() needs beside the model; checked at construction.

    Raises:
      InvalidArgument: a field is out of range; the text names it.
    """

    agent: str  # "unix:/run/pactrain/agent.sock"; empty: attach() starts one.
    job: str  # DEFAULT_JOB, with job_is_default, until the launch's token is known.
    site: str  # Empty: the agent's.
    launch: str  # Equal on all ranks of one launch.
    rank: int
    world_size: int
    job_is_default: bool = False
    embedded: bool = False  # attach() started the agent.
    gse: bool = True
    sync_masks: bool = True
    buffer_sync_interval: int = 50  # Committed steps; 0: never.
    parameter_check_interval: int = 100  # Committed steps.
    attach_timeout_seconds: float = 300.0
    on_shrink: OnShrink = OnShrink.ABORT
    onset: Onset = DEFAULT_ONSET
    # Begin the job anew in place of ranks that may hold its state.
    replace: bool = False

    def with_launch_token(
        self, environment: Mapping[str, str], token: str
    ) -> AttachConfig:
        """The same for the launch that `token` belongs to.

        A job without a name gets one of its own, which a launch that has nothing to do
        with it does not come upon; an empty token makes none.
        """
        config = replace(self, launch=launch_from(environment, token))
        if not (self.job_is_default and token):
            return config
        return replace(config, job=f"unnamed-{token[:16]}")

    def __post_init__(self) -> None:
        _check_agent(self.agent)
        check_name("PACTRAIN_JOB_ID", self.job)
        if self.site:
            check_name("PACTRAIN_SITE", self.site)
        if not 1 <= self.world_size <= 1024:
            raise InvalidArgument(
                f"world_size is {self.world_size}; allowed are 1 to 1024.\n"
                "Start the job with so many processes."
            )
        if not 0 <= self.rank < self.world_size:
            raise InvalidArgument(
                f"rank is {self.rank}; allowed are 0 to {self.world_size - 1}.\n"
                "Start the ranks with torchrun or Slurm."
            )
        check_flag("sync_masks", self.sync_masks)
        _check_range("buffer_sync_interval", self.buffer_sync_interval, 0)
        _check_range("parameter_check_interval", self.parameter_check_interval, 1)
        if not 1 <= self.attach_timeout_seconds <= 86_400:
            raise InvalidArgument(
                f"PACTRAIN_ATTACH_TIMEOUT is {self.attach_timeout_seconds:g}; allowed "
                "are 1 to 86400.\nSet it to a number of seconds in that range."
            )


def _check_agent(agent: str) -> None:
    if agent and not agent.startswith("unix:/"):
        raise InvalidArgument(
            f"PACTRAIN_AGENT is {agent!r}; allowed is 'unix:' and an absolute path, "
            "like 'unix:/run/pactrain/agent.sock'.\n"
            "Set it to the --socket of the pactrain-agent on this node."
        )


def check_name(field: str, name: str) -> None:
    """Raises InvalidArgument if no job or site can be called so."""
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{field} is {name!r}; allowed are 1 to 63 of a-z, 0-9, '-', '.' and '_', "
            f"a letter or digit first and last.\nSet {field} to such a name."
        )


def check_flag(field: str, value: object) -> None:
    """Raises InvalidArgument if it is neither True nor False."""
    if not isinstance(value, bool):
        raise InvalidArgument(
            f"{field} is {value!r}; allowed are True and False.\nGive one of them."
        )


def _check_range(field: str, value: object, lowest: int) -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or not lowest <= value <= _MAX_INTERVAL
    ):
        raise InvalidArgument(
            f"{field} is {value!r}; allowed are {lowest} to {_MAX_INTERVAL}.\n"
            "Give a number of steps in that range."
        )


def agent_from(environment: Mapping[str, str]) -> str:
    """The agent's address; empty if attach() is to start one.

    Raises:
      PacTrainError: PACTRAIN_AGENT is not set, and PACTRAIN_EMBEDDED forbids that.
      InvalidArgument: PACTRAIN_EMBEDDED is neither 0 nor 1.
    """
    embedded = environment.get("PACTRAIN_EMBEDDED") or "1"
    if embedded not in ("0", "1"):
        raise InvalidArgument(
            f"PACTRAIN_EMBEDDED is {embedded!r}; allowed are 0 and 1.\n"
            "Set it to 0 to forbid attach() to start an agent, or unset it."
        )
    agent = environment.get("PACTRAIN_AGENT", "")
    if not agent and embedded == "0":
        raise PacTrainError(
            "PACTRAIN_AGENT is not set, and PACTRAIN_EMBEDDED=0 forbids to start an "
            "agent for this job.\n"
            "Start one on this node (pactrain-agent "
            f"--socket=unix:{DEFAULT_AGENT_SOCKET} ...) and set "
            f"PACTRAIN_AGENT=unix:{DEFAULT_AGENT_SOCKET}."
        )
    if agent.startswith("unix:///"):
        return "unix:" + agent[len("unix://") :]
    return agent


def job_from(environment: Mapping[str, str]) -> str | None:
    """The job's name, or None if nothing names it.

    PACTRAIN_JOB_ID as it is, else SLURM_JOB_ID, else TORCHELASTIC_RUN_ID (where
    "none", torchrun's default, counts as unset) with characters a name cannot have
    made '-'.
    """
    named = environment.get("PACTRAIN_JOB_ID")
    if named:
        return named
    run = environment.get("TORCHELASTIC_RUN_ID", "none")
    derived = environment.get("SLURM_JOB_ID") or (run if run != "none" else "")
    cleaned = re.sub(r"[^-a-z0-9._]", "-", derived.lower())[:63].strip("-._")
    return cleaned or None


def launch_from(environment: Mapping[str, str], token: str) -> str:
    """A name of this launch: equal on all ranks, another after a restart.

    `token` is random and equal on all ranks; see attaching.launch_token().
    """
    parts = [
        environment.get(name, "")
        for name in (
            "TORCHELASTIC_RUN_ID",
            "TORCHELASTIC_RESTART_COUNT",
            "MASTER_ADDR",
            "MASTER_PORT",
            "SLURM_JOB_ID",
            "SLURM_STEP_ID",
            "SLURM_RESTART_COUNT",
        )
    ]
    return _name_digest("\0".join([*parts, token]))


def _name_digest(text: str) -> str:
    """FNV-1a of 64 bits; for names, not against malice.

    C++ trainers compute the same, so that ranks of both form one launch.
    """
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def launch_of_sites(job: str, sites: str) -> str:
    """The name of a launch that has one launcher per site: equal at all sites.

    Nothing that only one launcher knows may be in it, so it is the same after a
    restart: ranks of the earlier launch that still wait must end first. It begins with
    the list of sites (what fits), for the message about launches that wait in vain.
    """
    digest = _name_digest(f"pactrain sites\0{job}\0{sites}")
    return f"{sites[:46]} {digest}"


def attach_timeout_from(environment: Mapping[str, str]) -> float:
    """Seconds; PACTRAIN_ATTACH_TIMEOUT, default 300.

    Raises:
      InvalidArgument: not a number.
    """
    text = environment.get("PACTRAIN_ATTACH_TIMEOUT") or "300"
    try:
        return float(text)
    except ValueError:
        raise InvalidArgument(
            f"PACTRAIN_ATTACH_TIMEOUT is {text!r}; allowed are 1 to 86400.\n"
            "Set it to a number of seconds."
        ) from None


def on_shrink_from(environment: Mapping[str, str], given: str | None) -> OnShrink:
    """`given`, else PACTRAIN_ON_SHRINK, else PAUSE.

    Raises:
      InvalidArgument: neither "pause", "continue" nor "abort".
    """
    field = "PACTRAIN_ON_SHRINK" if given is None else "on_shrink"
    text = given if given is not None else environment.get(field) or "pause"
    try:
        return OnShrink[str(text).upper()]
    except KeyError:
        raise InvalidArgument(
            f"{field} is {text!r}; allowed are 'pause', 'continue' and 'abort'.\n"
            "Give all ranks the same one of them."
        ) from None


def replace_from(environment: Mapping[str, str], given: bool | None) -> bool:
    """`given`, else PACTRAIN_REPLACE, else False.

    Raises:
      InvalidArgument: PACTRAIN_REPLACE is neither 0 nor 1.
    """
    if given is not None:
        return given
    text = environment.get("PACTRAIN_REPLACE") or "0"
    if text not in ("0", "1"):
        raise InvalidArgument(
            f"PACTRAIN_REPLACE is {text!r}; allowed are 0 and 1.\n"
            "Set it to 1 to begin the job anew in place of ranks that may live, or "
            "unset it."
        )
    return text == "1"


def config_from_environment(
    *,
    rank: int,
    world_size: int,
    gse: bool = True,
    sync_masks: bool = True,
    buffer_sync_interval: int = 50,
    on_shrink: OnShrink = OnShrink.ABORT,
    onset: Onset = DEFAULT_ONSET,
    replace: bool | None = None,
    environment: Mapping[str, str] = os.environ,
) -> AttachConfig:
    """The configuration of one attach; the table of variables is in the user guide.

    Raises:
      PacTrainError: PACTRAIN_AGENT is not set, and PACTRAIN_EMBEDDED forbids that.
      InvalidArgument: a variable or argument is out of range.
    """
    warn_of_unknown(environment)
    job = job_from(environment)
    return AttachConfig(
        agent=agent_from(environment),
        job=job or DEFAULT_JOB,
        job_is_default=job is None,
        site=environment.get("PACTRAIN_SITE", ""),
        launch=launch_from(environment, ""),
        rank=rank,
        world_size=world_size,
        gse=gse,
        sync_masks=sync_masks,
        buffer_sync_interval=buffer_sync_interval,
        attach_timeout_seconds=attach_timeout_from(environment),
        on_shrink=on_shrink,
        onset=onset,
        replace=replace_from(environment, replace),
    )
