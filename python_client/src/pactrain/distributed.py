"""DistributedDataParallel without a process group: one launch per site."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.utils import _to_kwargs

from .attaching import free_index, launch_token, open_session, process_token
from .checks import check_inner, check_passes, unwrap
from .config import (
    AttachConfig,
    config_from_environment,
    launch_of_sites,
    on_shrink_from,
)
from .declared import declare
from .embedded import embedded_agent
from .errors import CLOSED, InvalidArgument, PacTrainError, RefusedError
from .gradient_buckets import GradientBuckets
from .launch_store import can_meet, launch_store
from .mask_choice import Masks, uses_gse
from .meeting import Answer, Meeting, telling_agents
from .membership import WorldNow
from .onset import onset_from
from .parameters import ParameterTable
from .session import sessions
from .shared import Stateful
from .world import World, init, wants_to_replace
from .wrapped import WrappedModel

MAX_BUCKETS = 4096  # protocol/limits.h

logger = logging.getLogger("pactrain")

# Of torch's arguments: what makes no difference here, and what only says the default.
_WITHOUT_EFFECT = {
    "find_unused_parameters",
    "gradient_as_bucket_view",
    "static_graph",
    "check_reduction",
    "init_sync",
}
_OF_THE_JOB = ("session", "_buckets", "_membership")
_COPY = (
    "This is a copy of a DistributedDataParallel: it is no rank of the job and has no "
    "session.\nCall copy.eval() to evaluate it; wrap its `module` to train it."
)
# Others can be told what is wrong with these.
_TOLD = ("PACTRAIN_ATTACH_TIMEOUT", "PACTRAIN_ON_SHRINK", "PACTRAIN_REPLACE")
_DEFAULTS = {"dim": 0, "process_group": None}


class DistributedDataParallel(nn.Module):
    """Trains `module` together with the ranks of all sites, through the agents.

    To be used as torch.nn.parallel.DistributedDataParallel, but no torch.distributed
    group is made or needed: rank and world size are those of init(), and rank 0's
    parameters, buffers and masks go to all ranks through the agents at construction.
    All ranks construct it at the same time, with equal arguments.

    Every backward pass that reaches a parameter is a step, unless the forward passes
    whose outputs it goes through were under no_sync(). It ends with the mean over all
    ranks in `grad` of every parameter, or with the typed error of the step and no
    gradients. Gradients are views of the buckets: the next step overwrites what was not
    copied. Buckets are those of buckets.py and never change.

    A parameter that a pass does not reach counts as zero, as with
    find_unused_parameters=True. One that no rank reaches gets a gradient of zeros, not
    None: optimizers with weight decay or momentum go on moving it. Rank 0 warns of
    that once.

    Args:
      module: a model on the CPU or on one GPU, float32 or bfloat16, not wrapped.
      bucket_cap_mb: most MiB of gradients in a bucket.
      masks, gse, settle, sync_masks, buffer_sync_interval: as attach().
      state, activate_at, pin, pin_from: as attach().
      broadcast_buffers: False leaves every rank its own buffers after the start.
      torch_arguments: what torch's class takes besides, so that scripts need no change:
        find_unused_parameters, gradient_as_bucket_view, static_graph, check_reduction
        and init_sync make no difference here; device_ids and output_device have to be
        those of the model, dim and process_group their defaults.
      on_shrink: what to do when a rank is lost: "pause" waits until as many are there
        as before, "continue" goes on with those that are left, "abort" ends all with a
        typed error. With the first two ranks may also join and leave. Default:
        PACTRAIN_ON_SHRINK, else "pause".

    Attributes:
      module: the model inside; keys of state_dict() have "module." before its own.
      session: the Session, with stats(), set_masks(), close() and the rest.

    Raises:
      InvalidArgument: as attach() and init(); or bucket_cap_mb is out of range.
      PacTrainError: as attach(); or several sites and PACTRAIN_AGENT is not set.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        bucket_cap_mb: float = 25,
        masks: Masks = None,
        gse: bool | None = None,
        settle: int | None = None,
        sync_masks: bool = True,
        buffer_sync_interval: int = 50,
        broadcast_buffers: bool = True,
        state: Mapping[str, Any] | None = None,
        activate_at: int | None = None,
        pin: str | None = None,
        pin_from: int | None = None,
        on_shrink: Literal["pause", "continue", "abort"] | None = None,
        **torch_arguments: Any,
    ) -> None:
        super().__init__()
        world = init()
        config, wrong = _config(world, on_shrink)
        named = _is_named(world, config)
        if named:
            config = _with_agent(world, config, None)
        meeting = _meeting(world, config, named)
        with (
            telling_agents(config, free_index())
            if meeting is None
            else meeting.prepare(lambda: Answer(config.job, config.agent))
        ):
            if wrong is not None:
                raise wrong
            _check(module)
            check_passes(module, config.world_size)
            inputs_go_to = _check_torch_arguments(torch_arguments, module)
            buckets = _buckets_of(module, bucket_cap_mb)
            config = dataclasses.replace(
                config,
                gse=uses_gse(masks, gse),
                sync_masks=sync_masks,
                buffer_sync_interval=buffer_sync_interval if broadcast_buffers else 0,
                onset=onset_from(activate_at, pin, pin_from),
            )
            wrapped = WrappedModel(
                outer=self,
                module=module,
                ignored=frozenset(),
                starts_equal=False,
                joins=lambda: None,
                finishes_steps=True,
                process_group_bytes=lambda steps: 0,
            )
            declared = declare(wrapped, masks, state, settle)
        if not named:
            config = _with_agent(world, config, meeting)
        self.module = module
        self._inputs_go_to = inputs_go_to
        self.require_backward_grad_sync = True
        self._buckets = buckets
        self.session = open_session(declared, config, meeting)
        self._membership = self.session.membership
        buckets.start(self.session.engine, self._membership)
        self.session.remove_at_close([buckets])

    @property
    def world(self) -> WorldNow:
        """Rank and world size in the generation of now; they change with it."""
        return self._membership.world

    def share(self, **objects: Stateful) -> None:
        """Says what ranks that come later, or were left behind, have to take, too.

        That is whatever the training goes on from, beside the model: the optimizer,
        schedulers, the place in the data. All ranks share the same names, and do so
        before the first step; a newcomer before start().

        Args:
          objects: each with state_dict() and load_state_dict(), of plain values and
            tensors.

        Raises:
          InvalidArgument: an object of another kind; names it.
        """
        self._membership.shared.add(objects)

    def start(self) -> None:
        """To be called before the first batch is chosen.

        A rank that joins a running job takes its state here, with all that is shared;
        otherwise it does so at its first forward pass in training mode. On other ranks
        it does nothing.

        Raises:
          RefusedError: this model, or what it shares, is not the job's.
          ResyncRequiredError: nobody is left who has the job's state.
          PacTrainError: the job cannot be joined. The session is closed after any of
            these.
        """
        with self._leaving_on_errors():
            self._membership.start()

    def forward(self, *inputs: Any, **options: Any) -> Any:
        if not torch.is_grad_enabled() or self._is_evaluated_copy():
            inputs, options = self._moved(inputs, options)
            return self.module(*inputs, **options)
        if self.session.closed and self.training:
            raise PacTrainError(CLOSED)
        if self.training and self._membership.behind:
            with self._leaving_on_errors():
                self._membership.before_forward()
        self._buckets.follow(self.training)
        synchronous = self.require_backward_grad_sync
        inputs, options = self._moved(inputs, options)
        self._buckets.begin()
        output = self.module(*inputs, **options)
        self._buckets.returned(output, synchronous)
        return output

    def _moved(self, inputs: Any, options: Any) -> tuple[Any, Any]:
        """As torch's with device_ids."""
        if self._inputs_go_to is None:
            return inputs, options
        moved = _to_kwargs(inputs, options, self._inputs_go_to, False)
        return moved[0][0], moved[1][0]

    def __getstate__(self) -> dict[str, Any]:
        """A copy is no rank of the job: it has no session, and masks as this has."""
        return {k: v for k, v in self.__dict__.items() if k not in _OF_THE_JOB}

    def join(self, *arguments: Any, **options: Any) -> NoReturn:
        """torch's, for uneven data, needs a process group.

        Raises: RefusedError.
        """
        raise RefusedError(
            "join() needs a process group, which pactrain.DistributedDataParallel has "
            "not.\nGive all ranks equally many batches, or let ranks that have ended "
            "leave: session.close() with on_shrink='continue'."
        )

    def _is_evaluated_copy(self) -> bool:
        if "session" in self.__dict__:
            return False
        if self.training:
            raise PacTrainError(_COPY)
        return True

    @contextlib.contextmanager
    def _leaving_on_errors(self) -> Iterator[None]:
        """The other ranks do not wait for one that could not take their state."""
        try:
            yield
        except BaseException:
            self.session.close()
            raise

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes of forward passes in here only add to this rank's gradients.

        The next one outside sends what was added up.
        """
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before


def _config(
    world: World, on_shrink: str | None
) -> tuple[AttachConfig, InvalidArgument | None]:
    """An error comes with what is needed to tell the others of it.

    Raises:
      InvalidArgument: a variable is wrong without which nobody can be told.
    """

    def made(
        environment: Mapping[str, str], on_shrink: str | None = None
    ) -> AttachConfig:
        return config_from_environment(
            rank=world.rank,
            world_size=world.world_size,
            on_shrink=on_shrink_from(environment, on_shrink),
            replace=wants_to_replace(),
            environment=environment,
        )

    try:
        return made(os.environ, on_shrink), None
    except InvalidArgument as error:
        return made({n: v for n, v in os.environ.items() if n not in _TOLD}), error


def _check(module: nn.Module) -> None:
    if unwrap(module) is not None:
        raise RefusedError(
            "The model is wrapped in torch's DistributedDataParallel, whose process "
            "group would exchange gradients, too.\n"
            "Give the model inside, or use pactrain.attach() instead."
        )
    check_inner(module, [session.ddp for session in sessions])


def _check_torch_arguments(
    arguments: Mapping[str, Any], module: nn.Module
) -> torch.device | None:
    """Where inputs go: to the device of `device_ids`, if there are any."""
    trained = (p.device for p in module.parameters() if p.requires_grad)
    place = next(trained, torch.device("cpu"))
    inputs_go_to: torch.device | None = None
    for name, value in arguments.items():
        if name in _WITHOUT_EFFECT:
            continue
        if name in ("device_ids", "output_device"):
            _check_device(name, value, place)
            if name == "device_ids" and value:
                inputs_go_to = place
            continue
        if name not in _DEFAULTS:
            raise InvalidArgument(
                f"{name} is no argument of pactrain.DistributedDataParallel.\n"
                "Leave it out, or wrap the model with torch's and pactrain.attach()."
            )
        if value != _DEFAULTS[name]:
            raise InvalidArgument(
                f"{name} is {value!r}; allowed is {_DEFAULTS[name]!r}: batches are not "
                "divided, and no process group is used.\nLeave it out."
            )
    return inputs_go_to


def _check_device(name: str, value: Any, place: torch.device) -> None:
    given = value if name == "device_ids" else [value]
    allowed = [place.index, place, str(place)]
    if value is None or (place.type != "cpu" and given in [[one] for one in allowed]):
        return
    shown = "None" if place.type == "cpu" else f"None and that of the model, {place}"
    raise InvalidArgument(
        f"{name} is {value!r}; allowed is {shown}.\nLeave it out, or move the model "
        "to that device first."
    )


def _cap_bytes(bucket_cap_mb: float) -> int:
    if not (math.isfinite(bucket_cap_mb) and 0 < bucket_cap_mb <= 4096):
        raise InvalidArgument(
            f"bucket_cap_mb is {bucket_cap_mb!r}; allowed are numbers above 0 and up "
            "to 4096.\nGive MiB, like the default, 25."
        )
    return int(bucket_cap_mb * 2**20)


def _buckets_of(module: nn.Module, bucket_cap_mb: float) -> GradientBuckets:
    buckets = GradientBuckets(ParameterTable(module), _cap_bytes(bucket_cap_mb))
    if len(buckets.buckets) > MAX_BUCKETS:
        raise InvalidArgument(
            f"bucket_cap_mb is {bucket_cap_mb:g}, which gives "
            f"{len(buckets.buckets)} buckets; allowed are 1 to {MAX_BUCKETS}.\n"
            "Give a larger one."
        )
    return buckets


def _has_sites(world: World, config: AttachConfig) -> bool:
    """Whether the launch is one of several, or named so."""
    named = config.agent and os.environ.get("PACTRAIN_SITES")
    return len(world.sites) > 1 or bool(named)


def _is_named(world: World, config: AttachConfig) -> bool:
    """Whether ranks find each other by what they have before they meet."""
    if _has_sites(world, config):
        return True
    return bool(config.agent) and not _has_to_meet(config)


def _meeting(world: World, config: AttachConfig, named: bool) -> Meeting | None:
    """Where all ranks meet; None: they do through agents alone.

    Sites may have other lists of sites, so their ranks cannot tell alike whether they
    are those of a process group.
    """
    alone = _has_sites(world, config)
    if named and (alone or not _is_the_group(config.rank, config.world_size)):
        return None
    return Meeting(launch_store(config), "own", config.rank, config.world_size)


def _is_the_group(rank: int, world_size: int) -> bool:
    """Whether the ranks of the job are those of a process group."""
    return dist.is_initialized() and (rank, world_size) == (
        dist.get_rank(),
        dist.get_world_size(),
    )


def _with_agent(
    world: World, config: AttachConfig, meeting: Meeting | None
) -> AttachConfig:
    """All ranks of the launch call it."""
    if _has_sites(world, config):
        if not config.agent:
            raise PacTrainError(
                f"PACTRAIN_AGENT is not set, and PACTRAIN_SITES={world.sites_text} has "
                f"{len(world.sites)} sites; daemons that start by themselves serve one "
                "site only.\nStart an agent per node of each site, all with one "
                "coordinator (docs/daemons.md), and set PACTRAIN_AGENT at all ranks."
            )
        launch = launch_of_sites(config.job, world.sites_text)
        return dataclasses.replace(config, launch=launch)
    if meeting is None:
        token = process_token() if world.world_size == 1 else ""
        return config.with_launch_token(os.environ, token)
    store = meeting.store
    token = launch_token(store, 0, config.rank)
    if not config.agent:
        agent = embedded_agent(store, config, token)
        config = dataclasses.replace(config, agent=agent, embedded=True)
    return config.with_launch_token(os.environ, token)


def _has_to_meet(config: AttachConfig) -> bool:
    """With an agent the launcher's variables name the launch; not always the job."""
    if not config.job_is_default or config.world_size == 1:
        return False
    if can_meet():
        return True
    logger.log(
        logging.WARNING if config.rank == 0 else logging.INFO,
        "nothing names this job, so it is called %r, and every other launch without a "
        "name would join it: set PACTRAIN_JOB_ID, or MASTER_ADDR and MASTER_PORT",
        config.job,
    )
    return False
