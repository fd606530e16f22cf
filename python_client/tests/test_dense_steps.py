"""What is said of steps that stay dense, and that following it loses nothing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from small_nets import small_net
from torch import nn
from torch.nn.utils import parametrize, prune

from pactrain.dense_steps import DenseSteps
from pactrain.parameters import ParameterTable


class Passes(nn.Module):
    """A parametrization that makes zeros, and lets gradients through."""

    def forward(self, weight):
        zeros = weight * (weight.abs() > weight.abs().median())
        return weight + (zeros - weight).detach()


def said_of(net):
    """After many steps with gradients outside the masks of its middle layer."""
    table = ParameterTable(net)
    steps = DenseSteps(net, table)
    names = [n for n in table.names if n.startswith("2.") and "bias" not in n]
    index, name = table.names.index(names[0]), names[0]
    parameter = table.find(name)[1]
    masks = SimpleNamespace(masks={name: torch.zeros(parameter.shape, dtype=bool)})
    layouts = [SimpleNamespace(parameters=(index,))]
    for _ in range(10):
        steps.add(masks, layouts, [torch.ones(parameter.numel())], 0)
    (text,) = steps.shortfalls()
    assert f"not zero in {name}. " in text
    return text


def test_gse_is_advised_with_what_it_costs():
    text = said_of(small_net())
    assert "attach with gse=True" in text
    assert "grows weights by their gradients, as RigL" in text
    assert "a weight at zero stays there" in text


@pytest.mark.parametrize("beside", ["prune", "parametrization", "buffer"])
def test_gse_is_not_advised_where_gradients_may_act(beside):
    net = small_net()
    layer = net[2]
    if beside == "prune":
        prune.l1_unstructured(layer, "weight", 0.5)
    elif beside == "parametrization":
        parametrize.register_parametrization(layer, "weight", Passes())
    else:
        layer.register_buffer("drop", torch.ones(layer.weight.shape))
    text = said_of(net)
    assert "gse" not in text
    assert "This is right" in text
