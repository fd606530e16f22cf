"""A data-parallel model as a session sees it, whoever fills its buckets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .errors import RefusedError


@dataclass(frozen=True)
class WrappedModel:
    outer: nn.Module  # What the script calls.
    module: nn.Module  # The model inside.
    ignored: frozenset[str]  # Names of parameters and buffers that are left alone.
    # True if a process group has given all ranks the first weights; else the agents do.
    starts_equal: bool
    # DDP's join() that is in use just now, if any. RefusedError: it cannot be.
    joins: Callable[[], object | None]
    finishes_steps: bool  # With StepEngine.finish(); else they end by themselves.
    process_group_bytes: Callable[[int], int]  # In so many steps, by this rank.


def wrapped_by_torch(ddp: DistributedDataParallel) -> WrappedModel:
    first = _module_bytes(ddp.module)
    ignored = frozenset(ddp.parameters_to_ignore)
    searched = sum(
        parameter.requires_grad and name not in ignored
        for name, parameter in ddp.module.named_parameters()
    )
    per_step = 4 * searched if finds_unused(ddp) else 0
    return WrappedModel(
        outer=ddp,
        module=ddp.module,
        ignored=ignored,
        starts_equal=True,
        joins=_Joins(ddp),
        finishes_steps=False,
        process_group_bytes=lambda steps: first + steps * per_step,
    )


class _Joins:
    """Sees join() begin and end. DDP itself counts as joining after that, too."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._ddp = ddp
        self._seen: object = None  # What each use of join() makes anew.
        self._over = False

    def __call__(self) -> object | None:
        config = self._ddp._join_config
        if not config.enable:
            return None
        if not self._ddp._divide_by_initial_world_size:
            raise RefusedError(
                "join(divide_by_initial_world_size=False) changes the divisor of a "
                "step when ranks have ended, which agents do not know.\n"
                "Leave it out: then ranks that have ended count as zeros."
            )
        # DDP notes it when join() makes the model equal at its end.
        ended = self._ddp.__dict__.pop("_authoritative_rank", None) is not None
        same, self._seen = config is self._seen, config
        self._over = same and (self._over or ended)
        return None if self._over else config


def finds_unused(ddp: DistributedDataParallel) -> bool:
    return bool(ddp.find_unused_parameters) and not ddp.static_graph


def _module_bytes(module: nn.Module) -> int:
    tensors = [*module.parameters(), *module.buffers()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
