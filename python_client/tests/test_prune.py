from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import prune as torch_prune

import pactrain
from pactrain.masks import registry


def zeros(parameter):
    return int((parameter == 0).sum())


def test_the_smallest_weights_of_each_layer_are_zeroed(net):
    before = net[2].weight.detach().clone()
    report = pactrain.prune(net, 0.75)
    mask = registry.get(net[2].weight)
    assert zeros(net[2].weight) == 48
    assert before[~mask].abs().max() <= before[mask].abs().min()
    assert torch.equal(net[2].weight[mask], before[mask])
    assert report.kept == report.elements - 48


def test_first_and_last_layer_norms_and_biases_are_exempt_by_default():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.Conv2d(8, 8, 3),
        nn.Conv2d(8, 2, 1),
        nn.LayerNorm([2, 4, 4]),
    )
    report = pactrain.prune(model, 0.5)
    assert [name for name, _, _ in report.layers] == ["2.weight"]


def test_an_empty_exempt_prunes_every_matrix(net):
    report = pactrain.prune(net, 0.5, exempt=())
    names = [name for name, _, _ in report.layers]
    assert names == ["0.weight", "2.weight", "4.weight"]
    assert zeros(net[0].bias) == 0


@pytest.mark.parametrize(
    "exempt",
    [
        ("0.weight", "4.*"),
        ("0", "4"),
        lambda name, parameter: parameter.shape[0] != parameter.shape[1],
    ],
)
def test_exempt_takes_names_patterns_and_functions(net, exempt):
    report = pactrain.prune(net, 0.5, exempt=exempt)
    assert [name for name, _, _ in report.layers] == ["2.weight"]


def test_exempt_takes_modules(net):
    report = pactrain.prune(net, 0.5, exempt=(net[0], net[2]))
    assert [name for name, _, _ in report.layers] == ["4.weight"]


def test_global_scope_shares_the_amount_over_layers(net):
    with torch.no_grad():
        net[0].weight.mul_(100)
    report = pactrain.prune(net, 0.5, scope="global", exempt=())
    kept = {name: kept / total for name, total, kept in report.layers}
    assert sum(kept for _, _, kept in report.layers) == (48 + 64 + 24) // 2
    assert kept["0.weight"] > 0.9 > kept["2.weight"]


def test_pruning_again_keeps_what_was_pruned(net):
    pactrain.prune(net, 0.5)
    first = registry.get(net[2].weight).clone()
    with torch.no_grad():
        net[2].weight.add_(100)  # As if momentum had revived them.
    pactrain.prune(net, 0.75)
    second = registry.get(net[2].weight)
    assert not (second & ~first).any()
    assert int(second.sum()) == 16


def test_amount_zero_prunes_nothing(net):
    assert pactrain.prune(net, 0).sparsity == 0


@pytest.mark.parametrize("amount", [1.5, -0.1, 1, "half", True, float("nan")])
def test_an_amount_out_of_range_names_the_field(net, amount):
    with pytest.raises(pactrain.InvalidArgument, match=r"amount is .*allowed"):
        pactrain.prune(net, amount)


def test_an_empty_model_is_an_error():
    with pytest.raises(pactrain.InvalidArgument, match=r"model .*no parameter"):
        pactrain.prune(nn.Sequential(), 0.5)


def test_a_model_of_vectors_only_is_an_error():
    with pytest.raises(pactrain.InvalidArgument, match="no parameter with two or more"):
        pactrain.prune(nn.LayerNorm(4), 0.5)


def test_a_model_with_nothing_to_prune_says_what_to_do():
    with pytest.raises(pactrain.InvalidArgument, match=r"nothing to prune"):
        pactrain.prune(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), 0.5)


def test_an_unknown_scope_is_an_error(net):
    with pytest.raises(pactrain.InvalidArgument, match="scope is 'row'"):
        pactrain.prune(net, 0.5, scope="row")


def test_a_parameter_pruned_by_torch_is_refused(net):
    torch_prune.l1_unstructured(net[2], "weight", 0.5)
    with pytest.raises(pactrain.InvalidArgument, match=r"torch\.nn\.utils\.prune"):
        pactrain.prune(net, 0.5)


def test_state_dict_keys_stay(net):
    keys = list(net.state_dict())
    pactrain.prune(net, 0.5)
    assert list(net.state_dict()) == keys


def test_apply_masks_zeroes_loaded_weights(net):
    pactrain.prune(net, 0.5)
    with torch.no_grad():
        net[2].weight.fill_(1)
    pactrain.apply_masks(net)
    assert zeros(net[2].weight) == 32


def test_apply_masks_declares_given_ones(net):
    mask = torch.rand(8, 8) > 0.5
    pactrain.apply_masks(net, {"2.weight": mask})
    assert torch.equal(registry.get(net[2].weight), mask)
    assert zeros(net[2].weight) == int((~mask).sum())


def test_the_report_is_a_table(net):
    text = str(pactrain.prune(net, 0.5))
    assert "2.weight" in text
    assert "50.0%" in text


def test_a_channels_last_weight_is_pruned_by_value():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 2, 1))
    model.to(memory_format=torch.channels_last)
    pactrain.prune(model, 0.5)
    mask = registry.get(model[1].weight)
    assert torch.equal(model[1].weight != 0, mask)
    assert mask.stride() == model[1].weight.stride()
