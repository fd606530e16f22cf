"""Calls what checks attached models before every step of any optimizer, and what masks
their weights after it or, where weights are changed by hand, before forward passes."""

from __future__ import annotations

from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle


def parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    """All that it moves."""
    return [p for group in optimizer.param_groups for p in group["params"]]


class Enforcer(Protocol):
    def enforce(self, optimizer: Optimizer | None = None) -> None: ...


class Checker(Protocol):
    def check_step(self, optimizer: Optimizer) -> None: ...


class ForwardEnforcer(Protocol):
    @property
    def module(self) -> nn.Module: ...
    def before_forward(self) -> None: ...


_enforcers: WeakSet[Enforcer] = WeakSet()
# In the order in which they came: what is more special says so first.
_checkers: WeakKeyDictionary[Checker, None] = WeakKeyDictionary()
_forwards: WeakSet[ForwardEnforcer] = WeakSet()
_handle: RemovableHandle | None = None
_handle_before: RemovableHandle | None = None


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


def watch_before(checker: Checker) -> None:
    """Calls checker.check_step(optimizer) before each optimizer step while it lives."""
    global _handle_before
    if _handle_before is None:
        _handle_before = register_optimizer_step_pre_hook(_before_step)
    _checkers[checker] = None


def unwatch_before(checker: Checker) -> None:
    _checkers.pop(checker, None)


def watch_forwards(enforcer: ForwardEnforcer) -> RemovableHandle:
    """Calls enforcer.before_forward() before each forward pass of its module, until
    the handle is removed."""
    _forwards.add(enforcer)
    return enforcer.module.register_forward_pre_hook(_before_forward)


def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for enforcer in list(_enforcers):
        enforcer.enforce(optimizer)


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for checker in list(_checkers):
        checker.check_step(optimizer)


def _before_forward(module: nn.Module, args: Any) -> None:
    # A plain function, not a method: copies of the model copy their hooks.
    for enforcer in list(_forwards):
        if enforcer.module is module:
            enforcer.before_forward()
