"""What a script shares beside its model, so that ranks can take it from each other."""

from __future__ import annotations

import contextlib
import io
import weakref
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch.optim import Optimizer

from .errors import InvalidArgument, RefusedError
from .optimizer_hook import parameters_of
from .parameters import ParameterTable

Blob: TypeAlias = "npt.NDArray[np.uint8]"


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
            _decode(_encode(value.state_dict(), name), name)
        self._objects |= objects

    @property
    def text(self) -> str:
        """Names and classes, equal on all ranks."""
        items = sorted(self._objects.items())
        return ", ".join(f"{name} ({type(value).__name__})" for name, value in items)

    def enforce(self, optimizer: Optimizer | None = None) -> None:
        """After a step of any optimizer of this process."""
        if optimizer is None or any(seen() is optimizer for seen in self._stepped):
            return
        if any(id(p) in self._parameters for p in parameters_of(optimizer)):
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

    def encode(self) -> Blob:
        """The states of all, for ranks in this language.

        Raises:
          InvalidArgument: one cannot be sent; names it.
        """
        named = {name: value.state_dict() for name, value in self._objects.items()}
        for name, value in self._objects.items():
            if not isinstance(value, Optimizer):  # Those are large, and plain.
                _decode(_encode(named[name], name), name)
        unnamed = [optimizer.state_dict() for optimizer in self.unnamed]
        return _encode([named, unnamed], "an optimizer")

    def decode(self, blob: Blob, optimizers_only: bool) -> tuple[Any, Any]:
        """What load() takes.

        Raises:
          RefusedError: there are other unnamed optimizers here than there.
          InvalidArgument: these bytes were not made by encode().
        """
        named, unnamed = _decode(blob, "a state")
        if len(unnamed) != len(self.unnamed) and not optimizers_only:
            raise RefusedError(
                f"This rank has trained with {len(self.unnamed)} optimizers that are "
                f"not shared, the rank that gives its state with {len(unnamed)}, "
                "so that their states cannot be matched.\nCall "
                "model.share(optimizer=optimizer) on all ranks."
            )
        return named, unnamed

    def load(self, state: tuple[Any, Any], optimizers_only: bool = False) -> None:
        """Takes what decode() gave, once: objects may go on with parts of it.

        Raises:
          RefusedError: one cannot take its state; names it. The others have their own.
        """
        named, states = state
        wanted: list[tuple[str, Stateful, Any]] = [
            (name, value, named[name])
            for name, value in self._objects.items()
            if isinstance(value, Optimizer) or not optimizers_only
        ]
        unnamed = self.unnamed
        if len(unnamed) == len(states):
            pairs = zip(unnamed, states, strict=True)
            wanted += [("an optimizer", *pair) for pair in pairs]
        taken: list[tuple[Stateful, Any]] = []
        for name, value, theirs in wanted:
            own = value.state_dict()
            # An optimizer changes no tensor that it has; it takes others.
            if not isinstance(value, Optimizer):
                own = deepcopy(own)
            try:
                value.load_state_dict(theirs)
            except Exception as error:  # Of the script's classes, too.
                for changed, before in taken:
                    changed.load_state_dict(before)
                with contextlib.suppress(Exception):
                    value.load_state_dict(own)
                raise RefusedError(
                    f"{name} ({type(value).__name__}) did not take the state that came "
                    f"from another rank: {type(error).__name__}: {error}\nMake it "
                    "alike on all ranks. The rest of this rank is as it was."
                ) from error
            taken.append((value, own))


def _encode(value: Any, name: str) -> Blob:
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
    except Exception as error:  # Whatever pickling finds.
        raise _unfit(name, error) from error
    return np.frombuffer(buffer.getbuffer(), dtype=np.uint8)


def _decode(blob: Blob, name: str) -> Any:
    """Plain values and tensors only: no peer can make this process run code."""
    try:
        data = io.BytesIO(blob.tobytes())  # Its device may not be that of this rank.
        return torch.load(data, map_location="cpu", weights_only=True)
    except Exception as error:  # Whatever unpickling finds.
        raise _unfit(name, error) from error


def _unfit(name: str, error: Exception) -> InvalidArgument:
    reason = str(error).strip().splitlines()
    return InvalidArgument(
        f"{name} has a state that cannot be sent: {reason[-1] if reason else error!r}\n"
        "Have state_dict() return plain values and tensors only, as "
        "torch.load(weights_only=True) reads them."
    )
