"""DistributedDataParallel without a process group: one launch per site."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from .attaching import Masks, launch_token, open_session, process_token
from .checks import check_inner, unwrap
from .config import AttachConfig, config_from_environment, launch_of_sites
from .embedded import embedded_agent
from .errors import CLOSED, InvalidArgument, PacTrainError, RefusedError
from .gradient_buckets import GradientBuckets
from .launch_store import launch_store
from .parameters import ParameterTable
from .roll_call import call_roll_once
from .session import sessions
from .world import World, init
from .wrapped import WrappedModel

MAX_BUCKETS = 4096  # protocol/limits.h


class DistributedDataParallel(nn.Module):
    """Trains `module` together with the ranks of all sites, through the agents.

    To be used as torch.nn.parallel.DistributedDataParallel, but no torch.distributed
    group is made or needed: rank and world size are those of init(), and rank 0's
    parameters, buffers and masks go to all ranks through the agents at construction.
    All ranks construct it at the same time, with equal arguments.

    Every backward pass that reaches a parameter is a step, unless the forward pass
    before it was under no_sync(). It ends with the mean over all ranks in `grad` of
    every parameter, or with the typed error of the step and no gradients. Gradients are
    views of the buckets: the next step overwrites what was not copied. Buckets are
    those of buckets.py and never change.

    A parameter that a pass does not reach counts as zero, as with
    find_unused_parameters=True. One that no rank reaches gets a gradient of zeros, not
    None: optimizers with weight decay or momentum go on moving it.

    Args:
      module: a model on the CPU, float32 or bfloat16, not wrapped.
      bucket_cap_mb: most MiB of gradients in a bucket.
      masks, gse, sync_masks, buffer_sync_interval, state: as attach().
      broadcast_buffers: False leaves every rank its own buffers after the start.

    Attributes:
      module: the model inside; keys of state_dict() have "module." before its own.
      session: the Session, with stats(), set_masks(), close() and the rest.

    Raises: as attach(), and:
      InvalidArgument: as init(); or bucket_cap_mb is out of range.
      PacTrainError: several sites and PACTRAIN_AGENT is not set.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        bucket_cap_mb: float = 25,
        masks: Masks = None,
        gse: bool = True,
        sync_masks: bool = True,
        buffer_sync_interval: int = 50,
        broadcast_buffers: bool = True,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        _check(module)
        buckets = GradientBuckets(ParameterTable(module), _cap_bytes(bucket_cap_mb))
        if len(buckets.buckets) > MAX_BUCKETS:
            raise InvalidArgument(
                f"bucket_cap_mb is {bucket_cap_mb:g}, which gives "
                f"{len(buckets.buckets)} buckets; allowed are 1 to {MAX_BUCKETS}.\n"
                "Give a larger one."
            )
        interval = buffer_sync_interval if broadcast_buffers else 0
        config = _config(init(), gse, sync_masks, interval)
        self.module = module
        self.require_backward_grad_sync = True
        self._buckets = buckets
        self.session = open_session(
            WrappedModel(
                outer=self,
                module=module,
                ignored=frozenset(),
                starts_equal=False,
                join_enabled=lambda: False,
                process_group_bytes=lambda steps: 0,
            ),
            config,
            masks,
            state,
        )
        self.session.remove_at_close(buckets.start(self.session.engine))

    def forward(self, *inputs: Any, **options: Any) -> Any:
        if torch.is_grad_enabled():
            if self.session.closed and self.training:
                raise PacTrainError(CLOSED)
            self._buckets.expect(self.require_backward_grad_sync)
        return self.module(*inputs, **options)

    def __getstate__(self) -> dict[str, Any]:
        raise RefusedError(
            "A DistributedDataParallel belongs to a running job and cannot be copied "
            "or pickled.\nCopy its `module`; save state_dict() or that of `module`."
        )

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


def _check(module: nn.Module) -> None:
    if unwrap(module) is not None:
        raise RefusedError(
            "The model is wrapped in torch's DistributedDataParallel, whose process "
            "group would exchange gradients, too.\n"
            "Give the model inside, or use pactrain.attach() instead."
        )
    check_inner(module, [session.ddp for session in sessions])


def _cap_bytes(bucket_cap_mb: float) -> int:
    if not (math.isfinite(bucket_cap_mb) and 0 < bucket_cap_mb <= 4096):
        raise InvalidArgument(
            f"bucket_cap_mb is {bucket_cap_mb!r}; allowed are numbers above 0 and up "
            "to 4096.\nGive MiB, like the default, 25."
        )
    return int(bucket_cap_mb * 2**20)


def _config(
    world: World, gse: bool, sync_masks: bool, buffer_sync_interval: int
) -> AttachConfig:
    """Checked before anything waits for other ranks."""
    config = config_from_environment(
        rank=world.rank,
        world_size=world.world_size,
        gse=gse,
        sync_masks=sync_masks,
        buffer_sync_interval=buffer_sync_interval,
    )
    if len(world.sites) > 1:
        if not config.agent:
            raise PacTrainError(
                f"PACTRAIN_AGENT is not set, and PACTRAIN_SITES={world.sites_text} has "
                f"{len(world.sites)} sites; daemons that start by themselves serve one "
                "site only.\nStart an agent per node of each site, all with one "
                "coordinator (docs/operations.md), and set PACTRAIN_AGENT at all ranks."
            )
        return config.with_launch(launch_of_sites(config.job, world.sites_text))
    # With an agent nobody has to meet: the launcher's variables name the launch.
    token = process_token() if world.world_size == 1 else ""
    if not config.agent:
        store = launch_store(config)
        token = launch_token(store, 0, config.rank)
        call_roll_once(store, config, token)
        config = config.with_embedded(embedded_agent(store, config, token))
    return config.with_launch_token(os.environ, token)
