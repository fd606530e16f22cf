"""A data-parallel model as a session sees it, whoever fills its buckets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class WrappedModel:
    outer: nn.Module  # What the script calls.
    module: nn.Module  # The model inside.
    ignored: frozenset[str]  # Names of parameters and buffers that are left alone.
    # True if a process group has given all ranks the first weights; else the agents do.
    starts_equal: bool
    join_enabled: Callable[[], bool]  # Whether DDP's join() is in use just now.
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
        join_enabled=lambda: bool(ddp._join_config.enable),
        finishes_steps=False,
        process_group_bytes=lambda steps: first + steps * per_step,
    )


def finds_unused(ddp: DistributedDataParallel) -> bool:
    return bool(ddp.find_unused_parameters) and not ddp.static_graph


def _module_bytes(module: nn.Module) -> int:
    tensors = [*module.parameters(), *module.buffers()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
