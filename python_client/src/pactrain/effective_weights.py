"""What of a parameter acts in the forward pass, whoever masks it.

Libraries keep a mask beside a weight that may be anything: torch.nn.utils.prune in the
buffer `weight_mask`, parametrizations (torch.ao.pruning, torchao) in a tensor of their
own, or they make it anew from the weight. A tensor is believed to be a mask only where
that is shown: by torch's own hook, or by what the parametrization makes of the weight.
What is only called a mask may be one of what is dropped. Else the weight itself is
zero where it was pruned.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.prune import BasePruningMethod

from . import storage
from .parameters import ParameterTable

_Place: TypeAlias = tuple[nn.Module, str]  # And its name there.
_Names: TypeAlias = "list[tuple[int, str]]"  # Which parametrization, and whose tensor.

_WITHOUT_ZEROS = "torch.nn.utils.parametrizations"  # Norms and rotations of weights.


class EffectiveWeights:
    """Follows parameters as libraries move them about in the model.

    Not thread-safe.
    """

    def __init__(self, module: nn.Module, table: ParameterTable) -> None:
        self._module = module
        self._parameters = [parameter for _, parameter in table]
        self._places: dict[int, list[_Place]] = {}  # By id; tied ones have several.
        # Masks of a parametrized weight, by the parameter's id and its place.
        self._shown: dict[tuple[int, int], _Names] = {}

    def piece(self, index: int, first: int, elements: int) -> Tensor:
        """Elements [first, first + elements) in bucket order, a plain float32 tensor
        that is zero where the parameter is without effect in all its places."""
        parameter = self._parameters[index]

        def flat(tensor: Tensor) -> Tensor:
            return self._flat(tensor, parameter)[first : first + elements]

        places = [self._acting(p, parameter) for p in self._places_of(parameter)]
        plain = [masks for masks in places if masks[0] is parameter]
        others = [masks for masks in places if masks[0] is not parameter]
        places = plain[:1] + others
        if len(places) == 1 and len(places[0]) == 1:
            only = flat(places[0][0])
            if only.dtype == torch.float32:
                return only
        acting = (
            functools.reduce(torch.logical_and, (flat(mask) != 0 for mask in masks))
            for masks in places
        )
        return functools.reduce(torch.logical_or, acting).float()

    def whole(self, index: int) -> Tensor:
        """True where the parameter has an effect, in its shape."""
        self.forget(index)
        parameter = self._parameters[index]
        flat = self.piece(index, 0, parameter.numel())
        return storage.unflatten(flat != 0, parameter)

    def forget(self, index: int) -> bool:
        """What was shown to be a mask may be none now: the next piece asks anew.

        False: no piece depends on that.
        """
        parameter = self._parameters[index]
        depends = False
        for module, _ in self._places_of(parameter):
            shown = self._shown.pop((id(parameter), id(module)), None)
            depends = depends or bool(shown)
        return depends

    def is_alone(self, index: int) -> bool:
        """Whether nothing beside the parameter may pass gradients on to its zeros."""
        parameter = self._parameters[index]
        return not any(
            isinstance(module, ParametrizationList)
            or any(b.shape == parameter.shape for b in module.buffers(recurse=False))
            for module, _ in self._places_of(parameter)
        )

    @staticmethod
    def _flat(tensor: Tensor, parameter: Tensor) -> Tensor:
        plain = tensor.detach()
        if storage.is_dense(plain) and storage.same_order(plain, parameter):
            return plain.as_strided((plain.numel(),), (1,))
        return storage.flatten(plain, parameter)

    def _acting(self, place: _Place, parameter: Tensor) -> list[Tensor]:
        """Tensors of its shape; it has an effect there where none of them is zero."""
        module, leaf = place
        if isinstance(module, ParametrizationList):
            masks = self._masks(module, parameter)
            return masks or [_parametrized(module, parameter)]
        mask = _mask_of_torch(module, leaf)
        return [parameter if mask is None else mask]

    def _places_of(self, parameter: Tensor) -> list[_Place]:
        found = self._places.get(id(parameter), [])
        if not found or any(m._parameters.get(n) is not parameter for m, n in found):
            self._places = {}
            self._shown = {}
            for module in self._module.modules():
                for leaf, p in module._parameters.items():
                    self._places.setdefault(id(p), []).append((module, leaf))
            found = self._places.get(id(parameter), [(self._module, "")])
        return found

    def _masks(self, parts: ParametrizationList, parameter: Tensor) -> list[Tensor]:
        """Tensors of the parametrizations that were shown to be its masks."""
        key = (id(parameter), id(parts))
        beside = dict(_beside(parts, parameter))
        names = self._shown.get(key)
        if names is None or any(name not in beside for name in names):
            names = self._shown[key] = _shown_masks(parts, parameter, beside)
        return [beside[name] for name in names]


def _mask_of_torch(module: nn.Module, leaf: str) -> Tensor | None:
    """Of torch.nn.utils.prune: its hook multiplies by it before each forward pass."""
    for hook in module._forward_pre_hooks.values():
        if (
            isinstance(hook, BasePruningMethod)
            and leaf == f"{hook._tensor_name}_orig"
            and type(hook).__call__ is BasePruningMethod.__call__
            and type(hook).apply_mask is BasePruningMethod.apply_mask
        ):
            return module._buffers.get(f"{hook._tensor_name}_mask")
    return None


def _beside(
    parts: ParametrizationList, parameter: Tensor
) -> Iterator[tuple[tuple[int, str], Tensor]]:
    """Tensors that may be masks of this parameter."""
    for number, part in enumerate(parts):
        for name, value in (*part._buffers.items(), *vars(part).items()):
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                yield (number, name), value


def _shown_masks(
    parts: ParametrizationList,
    parameter: Tensor,
    beside: dict[tuple[int, str], Tensor],
) -> _Names:
    """Those that together are zero exactly where the weight is made zero; empty: none.

    Where the parameter itself is zero nothing can be seen, and masks that are right
    elsewhere are believed.
    """
    if not beside:
        return []
    acts = _parametrized(parts, parameter) != 0
    if not bool(acts.any()):
        return []  # Shows nothing.
    names = [n for n, mask in beside.items() if not bool((acts & (mask == 0)).any())]
    wanted = parameter.detach() != 0
    for name in names:
        wanted &= beside[name] != 0
    return names if torch.equal(acts, wanted) else []


def _parametrized(parts: ParametrizationList, parameter: Tensor) -> Tensor:
    """What the forward pass would see, without a trace in the model or in random
    numbers; the parameter itself where a parametrization cannot make zeros."""
    if all(type(part).__module__ == _WITHOUT_ZEROS for part in parts):
        return parameter
    trains = {module: module.training for module in parts.modules()}
    try:
        parts.eval()  # Such as power iterations are steps of training.
        with torch.no_grad(), storage.same_random_numbers(parameter.device):
            weight: Any = parts()
    finally:
        for module, training in trains.items():
            module.training = training
    fits = isinstance(weight, Tensor) and weight.shape == parameter.shape
    return weight if fits else parameter
