from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from small_nets import small_net
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


@pytest.mark.parametrize("exempt", ["typo*", ("0.weight", "typo*")])
def test_a_pattern_that_matches_no_parameter_is_an_error(net, exempt):
    with pytest.raises(pactrain.InvalidArgument) as raised:
        pactrain.prune(net, 0.5, exempt=exempt)
    assert "exempt has 'typo*', which matches no parameter" in str(raised.value)
    names = "0.weight, 0.bias, 2.weight, 2.bias, 4.weight and 1 more"
    assert f"the model has {names}." in str(raised.value)
    assert "names of named_parameters()" in str(raised.value).splitlines()[-1]
    assert registry.get(net[2].weight) is None


def test_a_pattern_may_match_what_is_never_pruned(net):
    net[0].weight.requires_grad_(False)
    report = pactrain.prune(net, 0.5, exempt=("*.bias", "0.*"))
    assert [name for name, _, _ in report.layers] == ["2.weight", "4.weight"]


def test_a_module_of_another_model_is_an_error(net):
    with pytest.raises(pactrain.InvalidArgument, match="Linear that is no part"):
        pactrain.prune(net, 0.5, exempt=(net[0], small_net()[2]))
    pactrain.prune(net, 0.5, exempt=(net[0], net[1]))  # A ReLU exempts nothing.


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
    pactrain.prune(net, 0.75)
    second = registry.get(net[2].weight)
    assert not (second & ~first).any()
    assert int(second.sum()) == 16
    pactrain.prune(net, 0.25)  # Less than before.
    assert torch.equal(registry.get(net[2].weight), second)


def test_amount_zero_prunes_nothing(net):
    assert pactrain.prune(net, 0).sparsity == 0


@pytest.mark.parametrize(
    "amount", [np.float32(0.75), torch.tensor(0.75), Fraction(3, 4)]
)
def test_an_amount_may_be_any_scalar(net, amount):
    pactrain.prune(net, amount)
    assert zeros(net[2].weight) == 48
    schedule = pactrain.PruningSchedule(net, amount, 10, 2)
    assert schedule.state_dict()["made_with"]["amount"] == 0.75


@pytest.mark.parametrize("seed", [-(2**63), 2**64 - 1])
def test_every_seed_that_is_allowed_works(net, seed):
    pactrain.prune(net, 0.75, method="random", seed=seed)
    assert zeros(net[2].weight) == 48


@pytest.mark.parametrize(
    "amount",
    [1.5, -0.1, 1, "half", True, float("nan"), torch.ones(2), None, 10**400],
)
def test_an_amount_out_of_range_names_the_field(net, amount):
    with pytest.raises(pactrain.InvalidArgument, match=r"amount is .*allowed"):
        pactrain.prune(net, amount)


@pytest.mark.parametrize(
    ("model", "what"),
    [([1], "a list"), (None, "a NoneType"), (nn.ReLU, "the class ReLU")],
)
@pytest.mark.parametrize(
    "call",
    [
        lambda model: pactrain.prune(model, 0.5),
        lambda model: pactrain.PruningSchedule(model, 0.5, 10, 2),
        pactrain.apply_masks,
        pactrain.sparsity,
        pactrain.attach,
    ],
)
def test_what_is_no_model_is_an_error(model, what, call):
    with pytest.raises(pactrain.InvalidArgument, match=f"model is {what}; allowed"):
        call(model)


def test_an_empty_model_is_an_error():
    with pytest.raises(pactrain.InvalidArgument, match=r"model .*no parameter"):
        pactrain.prune(nn.Sequential(), 0.5)


def test_a_model_of_vectors_only_is_an_error():
    with pytest.raises(pactrain.InvalidArgument, match="no parameter with two or more"):
        pactrain.prune(nn.LayerNorm(4), 0.5)


def test_a_model_with_nothing_to_prune_says_what_to_do():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    with pytest.raises(
        pactrain.InvalidArgument, match=r"all of its 2 parameters .* are"
    ):
        pactrain.prune(model, 0.5)
    with pytest.raises(
        pactrain.InvalidArgument, match=r"its one parameter .* is exempt"
    ):
        pactrain.prune(model[0], 0.5)


def test_an_unknown_scope_is_an_error(net):
    with pytest.raises(pactrain.InvalidArgument, match="scope is 'row'"):
        pactrain.prune(net, 0.5, scope="row")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"method": "largest"}, "method is 'largest'"),
        ({"kind": 0}, "kind is 0; allowed are 'zero' and 'freeze'"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"seed": 2**70, "method": "random"}, r"seed is \d+; allowed is .* 2\^64 - 1"),
        ({"method": "grasp"}, "loss is None; allowed for method 'grasp'"),
        ({"method": "grasp", "loss": len, "batch": [1]}, "batch is list"),
        ({"loss": len}, "loss and batch were given, but method is 'magnitude'"),
        ({"batch": (1, 2), "method": "random"}, "but method is 'random'"),
        ({"exempt": 5}, "exempt is 5"),
        ({"exempt": (5,)}, "exempt has 5"),
        (
            {"exempt": lambda n: True},
            r"exempt raised .* called with \(name, parameter\)",
        ),
    ],
)
def test_values_out_of_range_are_named(net, given, text):
    with pytest.raises(pactrain.InvalidArgument, match=text):
        pactrain.prune(net, 0.5, **given)
    assert registry.get(net[2].weight) is None


def test_weights_that_are_not_finite_cannot_be_compared(net):
    with torch.no_grad():
        net[2].weight[0, 0] = float("nan")
    with pytest.raises(pactrain.InvalidArgument, match=r"2\.weight has .*not finite"):
        pactrain.prune(net, 0.5)
    pactrain.prune(net, 0.5, method="random")


def test_a_layer_without_weights_left_is_told(net, caplog):
    pactrain.prune(net, 0.999)
    assert "2.weight has no weight left" in caplog.text


def test_random_prunes_alike_for_equal_seeds_and_more_inside_less(net):
    again = small_net(1)
    for model in (net, again):
        pactrain.prune(model, 0.5, method="random", seed=7)
    first = registry.get(net[2].weight).clone()
    assert torch.equal(first, registry.get(again[2].weight))
    pactrain.prune(net, 0.75, method="random", seed=7)
    assert not (registry.get(net[2].weight) & ~first).any()
    pactrain.prune(again, 0.5, method="random", seed=8)
    assert torch.equal(first, registry.get(again[2].weight))  # Half are gone already.


@pytest.mark.parametrize("method", ["magnitude", "random"])
def test_erk_takes_more_from_large_layers(method):
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 40), nn.Linear(40, 3))
    report = pactrain.prune(model, 0.5, "erk", (), method=method)
    kept = {name: kept / total for name, total, kept in report.layers}
    assert kept["1.weight"] < kept["0.weight"] < kept["2.weight"]  # 320, 48, 120.
    assert sum(k for _, _, k in report.layers) == pytest.approx(488 / 2, abs=2)


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


def test_masks_of_zeros_and_ones_may_have_any_dtype(net):
    mask = torch.rand(8, 8) > 0.5
    pactrain.apply_masks(net, {"2.weight": mask.float()})
    assert torch.equal(registry.get(net[2].weight), mask)


@pytest.mark.parametrize("value", [float("nan"), 0.5, -1.0])
def test_masks_of_other_values_are_refused(net, value):
    mask = torch.ones(8, 8)
    mask[1, 2] = value
    with pytest.raises(
        pactrain.InvalidArgument, match=r"masks\['2.weight'\] has values other than 0"
    ):
        pactrain.apply_masks(net, {"2.weight": mask})
    assert registry.get(net[2].weight) is None


def test_the_report_is_a_table(net):
    text = str(pactrain.prune(net, 0.5))
    assert [line.split() for line in text.splitlines()] == [
        ["layer", "elements", "kept", "sparsity", "kind"],
        ["2.weight", "64", "32", "50.0%", "zero"],
        ["model", "155", "123", "20.6%"],
    ]


def test_the_sparsity_of_a_model_shows_all_its_layers(net):
    pactrain.prune(net, 0.5, exempt=("0", "2"), kind="freeze")
    torch_prune.random_unstructured(net[2], "weight", 0.25)
    report = pactrain.sparsity(net)
    assert report.layers == (
        ("0.weight", 48, 48),
        ("2.weight_orig", 64, 48),
        ("4.weight", 24, 12),
    )
    assert [report.kind(name) for name, _, _ in report.layers] == [
        "-",
        "zero",
        "freeze",
    ]
    assert report.kept == 155 - 16 - 12
    assert pactrain.sparsity(small_net()).sparsity == 0


def test_a_channels_last_weight_is_pruned_by_value():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 2, 1))
    model.to(memory_format=torch.channels_last)
    pactrain.prune(model, 0.5)
    mask = registry.get(model[1].weight)
    assert torch.equal(model[1].weight != 0, mask)
    assert mask.stride() == model[1].weight.stride()


def test_a_model_may_be_pruned_in_inference_mode():
    model = small_net()
    with torch.inference_mode():
        pactrain.prune(model, 0.5)
    assert not registry.get(model[2].weight).is_inference()


def test_sparsity_leaves_out_parameters_without_elements():
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 0))
    report = pactrain.sparsity(model)
    assert [name for name, _, _ in report.layers] == ["0.weight"]
    assert "model" in str(report)


def test_complex_parameters_are_exempt_and_it_is_said():
    model = small_net()
    model.mix = nn.Parameter(torch.ones(4, 4, dtype=torch.complex64))
    assert pactrain.prune(model, 0.5).exempt["mix"] == "complex numbers"
