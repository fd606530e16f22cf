from __future__ import annotations

import copy
import gc

import pytest
import torch
from fake_native import digest_of
from small_nets import small_net
from torch import nn
from torch.nn.utils import prune as torch_prune

import pactrain
from pactrain.mask_source import MaskSource
from pactrain.masks import (
    Declared,
    make_mask_set,
    named_masks,
    registry,
)
from pactrain.parameters import ParameterTable
from pactrain.zeros import masks_from_weights


def mask_set(model):
    table = ParameterTable(model)
    return make_mask_set(table, MaskSource(model, table).read(), digest_of)


def test_the_registry_holds_no_parameter_alive():
    model = small_net()
    pactrain.prune(model, 0.5)
    before = len(registry._entries)
    del model
    gc.collect()
    assert len(registry._entries) < before


def test_equal_masks_have_equal_digests_and_others_do_not():
    first, second = small_net(), small_net()
    pactrain.prune(first, 0.5)
    pactrain.prune(second, 0.5)
    assert mask_set(first).digest == mask_set(second).digest
    pactrain.prune(second, 0.6)
    assert mask_set(first).digest != mask_set(second).digest


def test_a_mask_that_keeps_all_counts_as_none(net):
    plain = mask_set(net)
    registry.set(net[2].weight, torch.ones(8, 8))
    assert mask_set(net).digest == plain.digest
    assert not mask_set(net)


def test_the_kind_is_part_of_the_digest(net):
    mask = torch.eye(8)
    registry.set(net[2].weight, mask)
    zero = mask_set(net)
    registry.set(net[2].weight, mask, frozen=True)
    frozen = mask_set(net)
    assert frozen.digest != zero.digest
    assert (zero.frozen, frozen.frozen) == (frozenset(), {"2.weight"})
    assert frozen.is_inside(zero)
    assert zero.is_inside(frozen)


def test_keep_is_of_all_elements(net):
    pactrain.prune(net, 0.5)
    masks = mask_set(net)
    assert masks.elements == sum(p.numel() for p in net.parameters())
    assert masks.kept == masks.elements - 32


def test_a_compiled_model_has_the_names_of_the_plain_one(net):
    compiled = torch.compile(net, backend="eager")
    assert ParameterTable(compiled).names == ParameterTable(net).names


def test_masks_of_torch_prune_are_found_and_not_enforced(net):
    torch_prune.random_unstructured(net[2], "weight", 0.5)
    masks = mask_set(net)
    assert list(masks.masks) == ["2.weight_orig"]
    assert masks.unenforced == {"2.weight_orig"}
    assert torch.equal(masks.masks["2.weight_orig"], net[2].weight_mask.bool())


def test_inside_is_a_subset(net):
    pactrain.prune(net, 0.5)
    larger = mask_set(net)
    pactrain.prune(net, 0.75)
    smaller = mask_set(net)
    assert smaller.is_inside(larger)
    assert smaller.is_inside(smaller)
    assert not larger.is_inside(smaller)


def test_a_mask_set_stays_as_it_is(net):
    """Though it has the registry's tensors: those are never written to."""
    pactrain.prune(net, 0.5)
    masks = mask_set(net)
    assert masks.masks["2.weight"] is registry.get(net[2].weight)
    before = masks.masks["2.weight"].clone()
    given = {"2.weight": torch.zeros(8, 8, dtype=torch.bool)}
    pactrain.apply_masks(net, given)
    given["2.weight"].fill_(True)
    assert not registry.get(net[2].weight).any()
    pactrain.prune(net, 0.9)
    assert torch.equal(masks.masks["2.weight"], before)


def test_changes_are_seen_once(net):
    source = MaskSource(net, ParameterTable(net))
    assert not source.changed()
    pactrain.prune(net, 0.5)
    assert source.changed()
    assert not source.changed()
    registry.set(net[2].weight, torch.ones(8, 8))
    assert source.changed()
    torch_prune.random_unstructured(net[4], "weight", 0.5)
    assert source.changed()
    net[4].weight_mask[0, 0] = 0
    assert source.changed()


def test_every_new_mask_is_seen(net):
    """Also if it lies where a dead one lay, with the same id."""
    pactrain.prune(net, 0.5)
    source = MaskSource(net, ParameterTable(net))
    for _ in range(20):
        assert not source.pending
        for _ in range(2):
            registry.set(net[2].weight, torch.rand(8, 8) > 0.5)
        assert source.pending
        assert source.changed()


def test_own_writes_are_no_change(net):
    torch_prune.random_unstructured(net[4], "weight", 0.5)
    source = MaskSource(net, ParameterTable(net))
    written = {"4.weight_orig": torch.zeros(3, 8), "2.weight": torch.zeros(8, 8)}
    source.write(Declared(written))
    assert not source.changed()
    assert not net[4].weight_mask.any()
    assert not registry.get(net[2].weight).any()
    source.write(Declared({}))
    assert net[4].weight_mask.all()
    assert registry.get(net[2].weight) is None


def test_two_masks_for_one_parameter_are_an_error(net):
    torch_prune.random_unstructured(net[2], "weight", 0.5)
    registry.set(net[2].weight_orig, torch.zeros(8, 8))
    with pytest.raises(pactrain.InvalidArgument, match=r"2\.weight_orig has a mask"):
        mask_set(net)


def test_weights_masks_are_those_of_matrices_with_some_zeros(net, caplog):
    with torch.no_grad():
        net[2].bias.zero_()
        net[2].weight[0] = 0
        net[4].weight.zero_()  # As LoRA's B before training: nothing was pruned.
    masks = masks_from_weights(ParameterTable(net))
    assert set(masks) == {"2.weight"}
    assert not masks["2.weight"][0].any()
    assert masks["2.weight"][1:].all()
    assert "4.weight: all weights are zero" in caplog.text


def test_given_masks_may_be_named_as_ddp_and_torch_prune_name_them(net):
    torch_prune.random_unstructured(net[4], "weight", 0.5)
    table = ParameterTable(net)
    given = {"module.2.weight": torch.ones(8, 8), "4.weight": torch.ones(3, 8)}
    assert set(named_masks(table, given)) == {"2.weight", "4.weight_orig"}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"7.weight": torch.ones(1)}, "names no parameter"),
        ({2: torch.ones(8, 8)}, r"masks\[2\] names no parameter"),
        ({"2.weight": torch.ones(3)}, r"has shape \(3,\); allowed"),
        ({"2.weight": 1}, "is of type int; allowed"),
    ],
)
def test_bad_given_masks_are_errors_that_name_them(net, given, text):
    with pytest.raises(pactrain.InvalidArgument, match=text):
        named_masks(ParameterTable(net), given)


def test_a_copy_of_a_model_has_its_masks(net):
    pactrain.prune(net, 0.5)
    assert mask_set(copy.deepcopy(net)).digest == mask_set(net).digest


def test_model_digest_sees_memory_order():
    plain = nn.Conv2d(2, 2, 3)
    last = copy.deepcopy(plain).to(memory_format=torch.channels_last)
    tables = [ParameterTable(plain), ParameterTable(last)]
    assert tables[0].digest(digest_of) != tables[1].digest(digest_of)


def test_value_digest_sees_one_bit(net):
    table = ParameterTable(net)
    before = table.value_digest(digest_of)
    assert table.value_digest(digest_of) == before
    with torch.no_grad():
        net[0].bias[0] += 1e-6
    assert table.value_digest(digest_of) != before
