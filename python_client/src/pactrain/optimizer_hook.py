"""Masks the weights of attached models after every step of any optimizer."""

from __future__ import annotations

from typing import Any, Protocol
from weakref import WeakSet

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle


class Enforcer(Protocol):
    def enforce(self, optimizer: Optimizer | None = None) -> None: ...


_enforcers: WeakSet[Enforcer] = WeakSet()
_handle: RemovableHandle | None = None


def watch(enforcer: Enforcer) -> None:
    """Calls enforcer.enforce(optimizer) after each optimizer step while it lives.

    torch's global hook is used, so that it works for optimizers made before or later
    and through GradScaler.
    """
    global _handle
    if _handle is None:
        _handle = register_optimizer_step_post_hook(_after_step)
    _enforcers.add(enforcer)


def unwatch(enforcer: Enforcer) -> None:
    _enforcers.discard(enforcer)


def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for enforcer in list(_enforcers):
        enforcer.enforce(optimizer)
