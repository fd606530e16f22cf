"""Parameters whose zeros are none of the layer's weight: a parametrization mixes them.

An orthogonal weight, say, is made of a whole matrix, so what is pruned there is dense
in the layer. A norm of the weight or a mask keeps zeros. What a parametrization does is
tried, with values of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from . import storage


def rewritten(module: nn.Module) -> dict[int, Tensor]:
    """What the forward pass sees in their place, by the parameter's id."""
    found: dict[int, Tensor] = {}
    for parts in module.modules():
        if not isinstance(parts, ParametrizationList):
            continue
        for leaf, parameter in parts._parameters.items():
            if parameter is None or parameter.dim() < 2 or _keeps(parts, leaf):
                continue
            weight = _weight(parts, {})
            found[id(parameter)] = parameter.detach() if weight is None else weight
    return found


def _keeps(parts: ParametrizationList, leaf: str) -> bool:
    """Whether the weight is zero where this parameter is."""
    parameter = parts._parameters[leaf]
    assert parameter is not None
    if parameter.is_meta or not parameter.is_floating_point():
        return True
    generator = torch.Generator().manual_seed(1)
    probe = torch.randn(parameter.shape, generator=generator)
    zeros = torch.rand(parameter.shape, generator=generator) < 1 / 2
    probe = probe.masked_fill(zeros, 0).to(parameter.device, parameter.dtype)
    weight = _weight(parts, {leaf: probe})
    if weight is None or weight.shape != parameter.shape:
        # Gains have another shape: nothing is told of them.
        return weight is not None
    return not bool((weight[zeros.to(weight.device)] != 0).any())


def _weight(parts: ParametrizationList, values: dict[str, Tensor]) -> Tensor | None:
    """Without a trace in the model or in random numbers; None: it cannot be told."""
    trains = {module: module.training for module in parts.modules()}
    device = next(parts.parameters()).device
    try:
        parts.eval()  # Such as power iterations are steps of training.
        with torch.no_grad(), storage.same_random_numbers(device):
            weight: Any = torch.func.functional_call(parts, values, ())
    except Exception:  # Of the parametrization, for values that are not its own.
        return None
    finally:
        for module, training in trains.items():
            module.training = training
    return weight.detach() if isinstance(weight, Tensor) else None
