"""Parameters that would be trained at each rank alone, without a word.

DDP and our own wrapper hear only of gradients of the parameters that were there, and
needed gradients, when they were made. What a script puts in their place later, or lets
train later, an optimizer would move by this rank's gradients alone, and without masks.
So too parameters that get another type, whose places in autograd are others then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from weakref import WeakSet

from torch import Tensor, nn
from torch.optim import Optimizer

from . import optimizer_hook
from .errors import RefusedError
from .parameters import ParameterTable

ANEW = (
    "Do that before the model is wrapped; or close the session, then wrap and attach "
    "the model anew."
)
_ASSIGN = (
    "Load without assign=True, or before the model is wrapped and attached; make the "
    "optimizer after that."
)


class Outsiders(optimizer_hook.StepWatcher):
    """Refuses them for one attached model: before an optimizer moves them, or when
    load_state_dict() has put them there.

    Thread-compatible.
    """

    def __init__(
        self,
        module: nn.Module,
        table: ParameterTable,
        ignored: Collection[str] = (),
    ) -> None:
        self._module = module
        self._table = table
        self._types = {id(p): p.dtype for _, p in table}
        self._there = {id(p): p for p in module.parameters()}  # Of the model itself.
        self._ignored = ignored

    def watch(self) -> None:
        """Until close()."""
        optimizer_hook.watch(self)
        self.watch_loads()

    def watch_loads(self) -> None:
        """These alone: there is one rank, and only masks could miss a parameter."""
        _watching.add(self)

    def close(self) -> None:
        optimizer_hook.unwatch(self)
        _watching.discard(self)

    def check_step(self, optimizer: Optimizer) -> None:
        """Raises RefusedError, before anything is moved."""
        moved = _moved(optimizer)
        if name := self._unknown(moved, self._types):
            raise RefusedError(
                f"{name} was not there, or needed no gradient, when the model was "
                f"wrapped: each rank would train it alone.\n{ANEW}"
            )
        for parameter in moved:
            before = self._types.get(id(parameter), parameter.dtype)
            if parameter.dtype != before:
                name = self._table.names[self._table.index_of(parameter)]
                raise RefusedError(
                    f"{name} is {parameter.dtype}, but was {before} when the model was "
                    f"attached: each rank would train it alone.\n{ANEW}"
                )

    def check_load(self, part: nn.Module) -> None:
        """After a load into this part of a model. Raises RefusedError."""
        there = [p for p in part._parameters.values() if p is not None]
        if name := self._unknown([p for p in there if p.requires_grad], self._there):
            raise RefusedError(
                f"load_state_dict(assign=True) has put another parameter in the place "
                f"of {name} of an attached model: neither masks nor other ranks would "
                f"reach it.\n{_ASSIGN}"
            )

    def unknown_in(self, optimizer: Optimizer) -> str | None:
        """The name of one that it moves, and that was not to be trained."""
        return self._unknown(_moved(optimizer), self._types)

    def _unknown(
        self, parameters: Iterable[Tensor], known: Collection[int]
    ) -> str | None:
        """The name of one that is of this model, but by its id none of these."""
        unknown = {id(p) for p in parameters if id(p) not in known}
        for name, parameter in self._module.named_parameters() if unknown else ():
            if id(parameter) in unknown and name not in self._ignored:
                return name
        return None


def _moved(optimizer: Optimizer) -> list[nn.Parameter]:
    return [p for p in optimizer_hook.parameters_of(optimizer) if p.grad is not None]


_watching: WeakSet[Outsiders] = WeakSet()


def check_load(part: nn.Module) -> None:
    """Raises RefusedError."""
    for outsiders in list(_watching):
        outsiders.check_load(part)
