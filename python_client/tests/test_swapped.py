"""A layer that a script puts in a pruned one's place has no mask: that is said."""

from __future__ import annotations

import copy

import pytest
import torch
from small_nets import pruned, small_net
from torch import nn

import pactrain

SAID = "2.weight: pruned, but another layer is in its place"


@pytest.fixture(params=["alone", "attached"])
def attached(request):
    """attached(model): alone in its process, or with agents."""
    if request.param == "alone":
        return pactrain.attach
    return request.getfixturevalue("attach")


def with_another_layer():
    model = pruned()
    model[2] = nn.Linear(8, 8)
    return model


def test_a_layer_in_the_place_of_a_pruned_one_is_said(attached, caplog):
    attached(with_another_layer())
    assert SAID in caplog.text


def test_it_is_said_of_a_part_that_was_pruned_by_itself(attached, caplog):
    attached(nn.Sequential(with_another_layer(), nn.Linear(3, 3)))
    assert f"0.{SAID}" in caplog.text


def assigned(model):
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(state, assign=True)
    return model


def overwritten(model):
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        return model.bfloat16()
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)


def pruned_again(model):
    model[2] = small_net()[2]
    pactrain.prune(model, 0.5)
    return model


@pytest.mark.parametrize(
    "change", [assigned, overwritten, pruned_again, copy.deepcopy, lambda model: model]
)
def test_nothing_is_said_where_the_mask_went_along(attached, caplog, change):
    attached(change(pruned()))
    assert "in its place" not in caplog.text
