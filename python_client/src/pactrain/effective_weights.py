"""What of a parameter acts in the forward pass, whoever masks it.

Libraries keep a mask beside a weight that may be anything: torch.nn.utils.prune in the
buffer `weight_mask`, parametrizations (torch.ao.pruning, torchao) in a tensor of their
own, or they make it anew from the weight. Where there is none, the weight itself is
zero where it was pruned.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from . import storage
from .parameters import ParameterTable

_WITHOUT_ZEROS = "torch.nn.utils.parametrizations"  # Norms and rotations of weights.


class EffectiveWeights:
    """Follows parameters as libraries move them about in the model.

    Not thread-safe.
    """

    def __init__(self, module: nn.Module, table: ParameterTable) -> None:
        self._module = module
        self._parameters = [parameter for _, parameter in table]
        self._places: dict[int, tuple[nn.Module, str]] = {}  # By id.
        # By the parameter's id, and which one beside it: a tensor, and whether its
        # values were 0 and 1 when it was first seen.
        self._binary: dict[tuple[int, int], tuple[Tensor, bool]] = {}

    def piece(self, index: int, first: int, elements: int) -> Tensor:
        """Elements [first, first + elements) in bucket order, a plain float32 tensor
        that is zero where the parameter is without effect."""
        parameter = self._parameters[index]
        masks = [
            self._flat(tensor, parameter)[first : first + elements]
            for tensor in self._acting(parameter)
        ]
        if len(masks) == 1 and masks[0].dtype == torch.float32:
            return masks[0]
        return functools.reduce(torch.logical_and, (m != 0 for m in masks)).float()

    def whole(self, index: int) -> Tensor:
        """True where the parameter has an effect, in its shape."""
        parameter = self._parameters[index]
        flat = self.piece(index, 0, parameter.numel())
        return storage.unflatten(flat != 0, parameter)

    @staticmethod
    def _flat(tensor: Tensor, parameter: Tensor) -> Tensor:
        plain = tensor.detach()
        if storage.is_dense(plain) and storage.same_order(plain, parameter):
            return plain.as_strided((plain.numel(),), (1,))
        return storage.flatten(plain, parameter)

    def _acting(self, parameter: Tensor) -> list[Tensor]:
        """Tensors of its shape; it has an effect where none of them is zero."""
        module, leaf = self._place(parameter)
        masks = [
            tensor
            for number, (name, tensor) in enumerate(_beside(module, leaf))
            if tensor.shape == parameter.shape
            and (name.endswith("_mask") or self._is_binary(parameter, number, tensor))
        ]
        if not masks and isinstance(module, ParametrizationList):
            return [_parametrized(module, parameter)]
        return masks or [parameter]

    def _place(self, parameter: Tensor) -> tuple[nn.Module, str]:
        found = self._places.get(id(parameter))
        if found is None or found[0]._parameters.get(found[1]) is not parameter:
            self._places = {
                id(p): (module, leaf)
                for module in self._module.modules()
                for leaf, p in module._parameters.items()
            }
            found = self._places.get(id(parameter), (self._module, ""))
        return found

    def _is_binary(self, parameter: Tensor, number: int, tensor: Tensor) -> bool:
        key = (id(parameter), number)
        known = self._binary.get(key)
        if known is None or known[0] is not tensor:
            binary = bool(((tensor == 0) | (tensor == 1)).all())
            known = self._binary[key] = (tensor, binary)
        return known[1]


def _beside(module: nn.Module, leaf: str) -> Iterator[tuple[str, Tensor]]:
    """Tensors that may be masks of this parameter."""
    if isinstance(module, ParametrizationList):
        for part in module:
            for name, value in (*part._buffers.items(), *vars(part).items()):
                if isinstance(value, Tensor):
                    yield name, value
        return
    for name in (f"{leaf.removesuffix('_orig')}_mask", "mask"):
        value = module._buffers.get(name)
        if value is not None:
            yield name, value


def _parametrized(parts: ParametrizationList, parameter: Tensor) -> Tensor:
    """What the forward pass would see, without a trace in the model or in random
    numbers; the parameter itself where a parametrization cannot make zeros."""
    if all(type(part).__module__ == _WITHOUT_ZEROS for part in parts):
        return parameter
    trains = {module: module.training for module in parts.modules()}
    try:
        parts.eval()  # Such as power iterations are steps of training.
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            weight: Any = parts()
    finally:
        for module, training in trains.items():
            module.training = training
    fits = isinstance(weight, Tensor) and weight.shape == parameter.shape
    return weight if fits else parameter
