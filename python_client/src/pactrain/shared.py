"""What a script shares beside its model, so that ranks can take it from each other."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from torch.optim import Optimizer

from . import state_codec
from .errors import InvalidArgument, RefusedError
from .parameters import ParameterTable


@runtime_checkable
class Stateful(Protocol):
    """An optimizer, a scheduler, or anything else with a state of plain values."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


class Shared:
    """The shared objects of one model, and the optimizers that move its parameters.

    Optimizers are seen when they step (it is given to optimizer_hook). Those that are
    not shared by name can be matched between ranks that have run the same script from
    the start, in the order of their first steps, but not with a newcomer's.

    Not thread-safe.
    """

    def __init__(self, table: ParameterTable) -> None:
        self._parameters = {id(parameter) for _, parameter in table}
        self._objects: dict[str, Stateful] = {}
        self._stepped: list[weakref.ref[Optimizer]] = []

    def add(self, objects: Mapping[str, Stateful]) -> None:
        """Raises:
        InvalidArgument: no state_dict() or load_state_dict(), or a state that cannot be
          sent.
        """
        for name, value in objects.items():
            if not isinstance(value, Stateful) or isinstance(value, type):
                raise InvalidArgument(
                    f"{name} is of type {type(value).__name__}; allowed are objects "
                    "with state_dict() and load_state_dict().\nGive both to it, or "
                    "share the values that it depends on."
                )
            state_codec.encode(value.state_dict(), name)
        self._objects |= objects

    @property
    def names(self) -> list[str]:
        return sorted(self._objects)

    def enforce(self, optimizer: Optimizer | None = None) -> None:
        """After a step of any optimizer of this process."""
        if optimizer is None or any(seen() is optimizer for seen in self._stepped):
            return
        if any(
            id(p) in self._parameters
            for group in optimizer.param_groups
            for p in group["params"]
        ):
            self._stepped.append(weakref.ref(optimizer))

    @property
    def unnamed(self) -> list[Optimizer]:
        """Those that have moved the parameters and are not shared, the first first."""
        named = {id(value) for value in self._objects.values()}
        alive = [seen() for seen in self._stepped]
        return [each for each in alive if each is not None and id(each) not in named]

    @property
    def optimizers(self) -> list[Optimizer]:
        named = self._objects.values()
        return [o for o in named if isinstance(o, Optimizer)] + self.unnamed

    def state(self) -> dict[str, Any]:
        return {
            "named": {name: o.state_dict() for name, o in self._objects.items()},
            "classes": {name: _class(o) for name, o in self._objects.items()},
            "unnamed": [optimizer.state_dict() for optimizer in self.unnamed],
        }

    def check(self, state: Mapping[str, Any]) -> None:
        """Raises:
        RefusedError: an object is of another class here than at the rank that gave
          `state`, whose values it could not take; names both.
        """
        for name, value in self._objects.items():
            mine, theirs = _class(value), state["classes"][name]
            if mine != theirs:
                raise RefusedError(
                    f"What is shared as {name} is of class {mine} here, and {theirs} "
                    "at the rank that gives its state.\n"
                    "Share objects of the same classes on all ranks."
                )

    def load(self, state: Mapping[str, Any], optimizers_only: bool = False) -> None:
        """Takes the state of a rank with equal names. It may be loaded again: what the
        objects do with it later does not change it.

        Raises:
          RefusedError: there are other unnamed optimizers here than there.
        """
        unnamed = self.unnamed
        fits = len(unnamed) == len(state["unnamed"])
        if not fits and not optimizers_only:
            raise RefusedError(
                f"This rank has trained with {len(unnamed)} optimizers that are not "
                f"shared, the rank that gives its state with {len(state['unnamed'])}, "
                "so that their states cannot be matched.\nCall "
                "model.share(optimizer=optimizer) on all ranks."
            )
        for name, value in self._objects.items():
            if isinstance(value, Optimizer) or not optimizers_only:
                value.load_state_dict(copy.deepcopy(state["named"][name]))
        if fits:
            for optimizer, values in zip(unnamed, state["unnamed"], strict=True):
                optimizer.load_state_dict(copy.deepcopy(values))


def _class(value: object) -> str:
    return type(value).__name__
