"""Gradients that this rank alone has, before an optimizer moves weights by them.

A backward pass through the model inside, instead of the wrapper, only adds to this
rank's gradients, and so does one under no_sync(). Ranks that step by them drift apart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from . import optimizer_hook
from .errors import RefusedError
from .forward_flags import inside_backward
from .outsiders import ANEW
from .parameters import MOVE_BACK, ParameterTable

MANY_PASSES = 200  # In a row: gradients are seldom added up over so many.
_ADVICE = (
    "Call the wrapped model, as in ddp(x), not the model inside; with no_sync(), leave "
    "it for the last pass before each optimizer step, also of a short last round; step "
    "after backward() has returned, not in a hook; a term with a backward pass of its "
    "own, as a penalty on weights, goes before the wrapped model is called, or into "
    "one loss; where a pass does not reach all "
    "parameters, give torch's DistributedDataParallel find_unused_parameters=True; "
    "where the model was moved to another device and back, make that anew."
)
logger = logging.getLogger("pactrain")


class Exchanged(NamedTuple):
    """How far the exchange is: another value after each step that all have made."""

    generation: int
    steps: int


class LoneGradients(optimizer_hook.StepWatcher):
    """Of one attached model. A gradient is everybody's once a step was exchanged after
    it came; what a script puts in `grad` itself is its own business.

    Thread-compatible; gradients come on the thread that runs backward().
    """

    def __init__(
        self,
        table: ParameterTable,
        exchanged: Callable[[], Exchanged],
        world_size: Callable[[], int],
    ) -> None:
        self._table = table
        self._exchanged = exchanged
        self._world_size = world_size
        self._came: dict[int, Exchanged] = {}  # By id of the parameter.
        self._last: Exchanged | None = None  # Of the gradient that came last.
        self._first = 0  # Whose gradient came first since the last exchange,
        self._passes = 0  # and how often.
        self._said = False
        self.steps = 0  # Of optimizers, in a world of one.
        self._handles: list[RemovableHandle] = []

    def watch(self) -> None:
        """Until close()."""
        for _, parameter in self._table:
            self._handles.append(
                parameter.register_post_accumulate_grad_hook(self._come)  # type: ignore[no-untyped-call]
            )
        optimizer_hook.watch(self)

    def close(self) -> None:
        optimizer_hook.unwatch(self)
        for handle in self._handles:
            handle.remove()

    def _come(self, parameter: Tensor) -> None:
        now = self._exchanged()
        key = id(parameter)
        if now != self._last:
            self._last, self._first, self._passes = now, key, 0
        self._came[key] = now
        if key == self._first:
            self._passes += 1
            if self._passes == MANY_PASSES:
                self._say(
                    f"{MANY_PASSES} backward passes in a row brought gradients to this "
                    "model, and none was exchanged"
                )

    def check_step(self, optimizer: Optimizer) -> None:
        """Before it moves anything. In a world of one, nobody drifts: it is said once.

        Raises:
          RefusedError: it would move weights by gradients that this rank alone has.
        """
        name = self._moved_alone(optimizer)
        if name is None:
            return
        what = (
            f"The gradient of {name} was not exchanged: no step of this model has "
            "followed the backward pass that brought it"
        )
        advice = _ADVICE
        if gone := self._table.gone():
            what = (
                f"{gone} is no parameter of the model any more: a module was replaced, "
                "or a parametrization came or went, after the model was wrapped. So no "
                f"gradient of it comes, and that of {name} was not exchanged"
            )
            advice = ANEW
        elif moved := self._table.moved():
            what = (
                f"{moved}: the model was moved after it was wrapped. So the gradient "
                f"of {name} was not exchanged"
            )
            advice = MOVE_BACK
        if self._world_size() > 1:
            raise RefusedError(
                f"{what}, so that each rank would train alone.\n{advice}"
            )
        self.steps += 1
        self._say(what, advice)

    def enforce(self, optimizer: Optimizer | None = None) -> None:
        """After it: a closure has run backward passes."""
        if optimizer is not None and not self._said:
            self.check_step(optimizer)

    def _moved_alone(self, optimizer: Optimizer) -> str | None:
        """The name of a parameter."""
        now = self._exchanged()
        if self._last != now and not inside_backward():
            return None
        for parameter in optimizer_hook.parameters_of(optimizer):
            if parameter.grad is not None and self._is_alone(parameter, now):
                return self._table.names[self._table.index_of(parameter)]
        return None

    def _is_alone(self, parameter: nn.Parameter, now: Exchanged) -> bool:
        came = self._came.get(id(parameter))
        return came is not None and (came == now or inside_backward())

    def _say(self, what: str, advice: str = _ADVICE) -> None:
        if not self._said:
            self._said = True
            logger.warning("%s.\n%s", what, advice)

    def shortfalls(self, steps: int, failed: int) -> list[str]:
        """What is to be said at the end, after so many steps that were exchanged, and
        that failed: those went through the wrapper, too."""
        if self.steps:
            return [
                f"{self.steps:,} optimizer steps moved weights by gradients that were "
                f"not exchanged. {_ADVICE}"
            ]
        if self._came and not steps and not failed:
            return [
                "gradients came to this model, and none was exchanged: no backward "
                f"pass went through the wrapper. {_ADVICE}"
            ]
        return []
