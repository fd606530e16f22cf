"""Where the ranks of one launch meet, without a process group: to start daemons, or to
name their job."""

from __future__ import annotations

import functools
import os
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store
from torch.distributed.rendezvous import rendezvous

from .config import AttachConfig
from .errors import CoordinatorUnavailableError, InvalidArgument

_ADDRESS = ("MASTER_ADDR", "MASTER_PORT")


def can_meet() -> bool:
    """True if the launcher has said where several ranks meet."""
    return dist.is_initialized() or all(os.environ.get(name) for name in _ADDRESS)


def launch_store(config: AttachConfig) -> Store:
    """The store of torch.distributed's group if there is one; else one like it.

    That is torchrun's own, or rank 0's, at MASTER_ADDR and MASTER_PORT; a single rank
    needs none. It is kept, since other ranks may still read it.

    Raises:
      InvalidArgument: MASTER_ADDR or MASTER_PORT is missing or wrong.
      CoordinatorUnavailableError: not all ranks came there in time.
    """
    if dist.is_initialized():
        return dist.distributed_c10d._get_default_store()
    return _own_store(config.rank, config.world_size, config.attach_timeout_seconds)


@functools.cache
def _own_store(rank: int, world_size: int, timeout_seconds: float) -> Store:
    if world_size == 1:
        return HashStore()
    place = ":".join(os.environ.get(name, "") for name in _ADDRESS)
    try:
        timeout = timedelta(seconds=timeout_seconds)
        store: Store = next(rendezvous("env://", rank, world_size, timeout=timeout))[0]
    except ValueError as error:
        raise InvalidArgument(
            f"MASTER_ADDR:MASTER_PORT is {place!r}; allowed is where rank 0 can be "
            "reached, as torchrun sets it: without PACTRAIN_AGENT the ranks meet there."
            "\nSet both on all ranks, or start an agent and set "
            "PACTRAIN_AGENT."
        ) from error
    except RuntimeError as error:
        raise CoordinatorUnavailableError(
            f"The {world_size} ranks did not meet at MASTER_ADDR:MASTER_PORT, {place}, "
            f"within {timeout_seconds:g} s (PACTRAIN_ATTACH_TIMEOUT): {error}\n"
            "Start them all with one MASTER_ADDR and a free MASTER_PORT, or start an "
            "agent and set PACTRAIN_AGENT."
        ) from error
    return store
