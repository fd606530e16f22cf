"""Calls what checks attached models before every step of any optimizer, and what masks
their weights after it or, where weights are changed by hand, before forward passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

_Hook = TypeVar("_Hook", bound=Callable[..., Any])


def _untraced(hook: _Hook) -> _Hook:
    """Where a script compiles its optimizer's step, dynamo would compile the hook anew
    for each step, until its limit. As torch does for its optimizers' own calls; where
    no optimizer was made dynamo is not imported."""
    disable: Callable[[_Hook], _Hook] | None = getattr(torch, "_disable_dynamo", None)
    return hook if disable is None else disable(hook)


def parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    """All that it moves."""
    return [p for group in optimizer.param_groups for p in group["params"]]


class StepWatcher:
    """Is told of each step of any optimizer, from watch() on and while it lives."""

    def check_step(self, optimizer: Optimizer) -> None:
        """Before the step; may raise."""

    def pass_in_step(self, optimizer: Optimizer) -> None:
        """Before each pass that an optimizer asks for in mid-step by the closure that
        step() was given."""

    def enforce(self, optimizer: Optimizer | None = None) -> None:
        """After the step."""


class ForwardEnforcer(Protocol):
    @property
    def module(self) -> nn.Module: ...
    def before_forward(self) -> None: ...


# In the order in which they came: what is more special says so first.
_watchers: WeakKeyDictionary[StepWatcher, None] = WeakKeyDictionary()
_forwards: WeakSet[ForwardEnforcer] = WeakSet()
_is_hooked = False


def watch(watcher: StepWatcher) -> None:
    """torch's global hooks are used, so that it works for optimizers made before or
    later and through GradScaler."""
    global _is_hooked
    if not _is_hooked:
        _is_hooked = True
        register_optimizer_step_pre_hook(_before_step)
        register_optimizer_step_post_hook(_after_step)
    _watchers[watcher] = None


def unwatch(watcher: StepWatcher) -> None:
    _watchers.pop(watcher, None)


def watch_forwards(enforcer: ForwardEnforcer) -> RemovableHandle:
    """Calls enforcer.before_forward() before each forward pass of its module, until
    the handle is removed."""
    _forwards.add(enforcer)
    return enforcer.module.register_forward_pre_hook(_before_forward)


@_untraced
def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for watcher in list(_watchers):
        watcher.enforce(optimizer)


@_untraced
def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
    for watcher in list(_watchers):
        watcher.check_step(optimizer)
    if callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": _told(optimizer, kwargs["closure"])}
    if len(args) > 1 and callable(args[1]):  # The first one is the optimizer.
        return (args[0], _told(optimizer, args[1]), *args[2:]), kwargs
    return None


def _told(optimizer: Optimizer, closure: Callable[[], Any]) -> Callable[[], Any]:
    # Those of torch move nothing before the first pass.
    has_moved = not type(optimizer).__module__.startswith("torch.optim.")

    def tell_and_run() -> Any:
        nonlocal has_moved
        for watcher in list(_watchers) if has_moved else ():
            watcher.pass_in_step(optimizer)
        has_moved = True
        return closure()

    return tell_and_run


def _before_forward(module: nn.Module, args: Any) -> None:
    # A plain function, not a method: copies of the model copy their hooks.
    for enforcer in list(_forwards):
        if enforcer.module is module:
            enforcer.before_forward()
