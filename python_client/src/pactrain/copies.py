"""Masks go along with copies of a model: deepcopy, pickle, torch.save, AveragedModel.

Masks are kept by parameter, and the parameters of a copy are others. Copying a module
copies the hooks in it, so one that does nothing else takes the masks along.
"""

from __future__ import annotations

import copy
import weakref
from typing import Any

import torch
from torch import Tensor, nn

from . import averages, storage
from .errors import InvalidArgument
from .masks import registry

_Entry = tuple[nn.Parameter, Tensor, bool]  # A parameter, its mask's bits, if frozen.


def follow(module: nn.Module) -> None:
    """From now on copies of the module get the masks that it has then. Idempotent.

    Raises:
      InvalidArgument: a ScriptModule, which calls none of its hooks.
    """
    if isinstance(module, torch.jit.ScriptModule):
        raise InvalidArgument(
            "model is a torch.jit.ScriptModule; allowed is a torch.nn.Module that is "
            "not scripted.\nPrune and train the model itself, and script it afterwards."
        )
    hooks = module._load_state_dict_post_hooks
    if not any(isinstance(hook, _Carrier) for hook in hooks.values()):
        module.register_load_state_dict_post_hook(_Carrier(module))  # type: ignore[no-untyped-call]
    for part in module.modules():  # Scripts load parts, too.
        own = part._load_state_dict_post_hooks
        if _note_loaded not in own.values() and not isinstance(
            part, torch.jit.ScriptModule
        ):
            part.register_load_state_dict_post_hook(_note_loaded)  # type: ignore[no-untyped-call]


def _note_loaded(part: nn.Module, keys: object) -> None:
    """Weights were loaded that are newer than their masks; each part is told of."""
    averages.catch_up(part.parameters(recurse=False))
    for parameter in part.parameters(recurse=False):
        if registry.get(parameter) is not None:
            registry.of(parameter).loaded = True


class _Carrier:
    """A hook after load_state_dict(), which is copied with its module."""

    def __init__(self, module: nn.Module | None) -> None:
        self._module = None if module is None else weakref.ref(module)

    def __call__(self, module: nn.Module, keys: object) -> None:
        """As a hook it is copied."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Carrier:
        module = self._owner()
        masks = {
            id(parameter): (mask, frozen)
            for parameter, mask, frozen in _masks_of(module)
        }
        for parameter in () if module is None else module.parameters():
            copied = copy.deepcopy(parameter, memo)
            mask, frozen = masks.get(id(parameter), (None, False))
            if mask is not None:
                registry.set(copied, mask, frozen)
            if not frozen:
                averages.follow_source(parameter, copied)
        return _Carrier(memo.get(id(module)))

    def __reduce__(self) -> tuple[Any, ...]:
        module = self._owner()
        entries = [
            (parameter, torch.from_numpy(storage.pack(mask.reshape(-1))), frozen)
            for parameter, mask, frozen in _masks_of(module)
        ]
        return _read, (module, entries)

    def _owner(self) -> nn.Module | None:
        return None if self._module is None else self._module()


def _masks_of(module: nn.Module | None) -> list[_Entry]:
    parameters = [] if module is None else list(module.parameters())
    averages.catch_up(parameters)
    return [
        (parameter, mask, registry.of(parameter).frozen)
        for parameter in parameters
        if (mask := registry.get(parameter)) is not None
    ]


def _read(module: nn.Module | None, entries: list[_Entry]) -> _Carrier:
    """The module is not whole yet, its parameters are."""
    for parameter, bits, frozen in entries:
        mask = storage.unpack(bits.numpy(), parameter.numel())
        registry.set(parameter, mask.reshape(parameter.shape), frozen)
    return _Carrier(module)
