"""Zeros of loaded weights inside the masks: what was pruned more stays pruned."""

from __future__ import annotations

import copy

import pytest
import torch
from fake_native import activate
from small_nets import pruned, small_net
from test_loaded_masks import LAYER, is_lossless, kept, run
from torch import nn

import pactrain
from pactrain.masks import registry


def pruned_more(first=0.5, second=0.75):
    """The state_dict() of a run that pruned again later, and one of its first masks."""
    model = pruned(first)
    mask = kept(model)
    pactrain.prune(model, second)
    return copy.deepcopy(model.state_dict()), mask


MORE = "weights were loaded that had been pruned more: their zeros are the masks now"


@pytest.mark.parametrize("when", ["before attach", "after attach", "in force"])
@pytest.mark.parametrize("second", [0.53, 0.75])
def test_zeros_of_a_checkpoint_beyond_the_masks_stay(attach, caplog, when, second):
    state, _ = pruned_more(second=second)
    model = pruned()
    if when == "before attach":
        model.load_state_dict(state)
    attached = attach(model)
    if when == "in force":
        activate(attached)
        run(attached, torch.optim.SGD(model.parameters(), lr=0.1), 3)
    if when != "before attach":
        model.load_state_dict(state)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run(attached, optimizer, 3)
    assert torch.equal(kept(model), state[LAYER] != 0)
    assert caplog.text.count(MORE) == 1
    assert f"({LAYER})" in caplog.text
    activate(attached, version=2)
    run(attached, optimizer, 3)
    assert torch.equal(model[2].weight != 0, state[LAYER] != 0)


@pytest.mark.parametrize("repair", [pactrain.prune, lambda model, _: apply(model)])
def test_it_is_so_without_a_session(repair):
    state, _ = pruned_more()
    model = pruned()
    model.load_state_dict(state)
    repair(model, 0.5)
    assert is_lossless(model, state)


def apply(model):
    pactrain.apply_masks(model)


@pytest.mark.parametrize("attached_first", [True, False])
def test_a_few_zeros_inside_the_masks_train(attach, caplog, attached_first):
    """As a row of padding, or a layer that has not trained yet."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(300, 6), small_net())
    pactrain.prune(model, 0.5, exempt=())
    state = copy.deepcopy(model.state_dict())
    row = registry.get(model[0].weight)[7]
    state["0.weight"][7] = 0
    state["1.4.weight"].zero_()
    masks = [registry.get(p) for p in model.parameters()]
    attached = attach(model) if attached_first else None
    model.load_state_dict(state)
    attached = attached or attach(model)
    attached.ddp(torch.tensor([7, 8])).square().mean().backward()
    assert MORE not in caplog.text
    assert all(
        mask is now
        for mask, now in zip(masks, map(registry.get, model.parameters()), strict=True)
    )
    assert row.any()


def test_zeros_that_the_script_has_made_itself_train(attach, caplog):
    """Masks of which it knows more than their weights: grown ones begin at zero."""
    model = pruned()
    with torch.no_grad():
        model[2].weight[:4] = 0
    attached = attach(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mask = kept(model)
    run(attached, optimizer, 2)
    model[2].weight.data[4:6] = 0
    run(attached, optimizer, 2)
    assert kept(model) is mask
    assert MORE not in caplog.text


@pytest.mark.parametrize("within", [True, False])
def test_masks_of_a_state_may_keep_zeros(attach, within):
    state, mask = pruned_more()
    other = pruned()
    first = attach(other)
    saved = first.session.state_dict()
    saved["masks_active"] = True
    first.session.close()
    model = pruned()
    if within:
        attached = attach(model)
        attached.step()
        attached.session.load_state_dict(saved)
    else:
        attached = attach(model, state=saved)
    model.load_state_dict(state)
    attached.step()
    assert torch.equal(kept(model), mask)


def test_copied_by_hand_zeros_beyond_the_masks_are_told(attach, caplog):
    """They are not taken: a script that rounds its weights for a pass has some, too."""
    state, mask = pruned_more()
    model = pruned()
    attached = attach(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    run(attached, optimizer, 2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(1.01 * state[name])
    run(attached, optimizer, 2)
    assert torch.equal(kept(model), mask)
    text = "2.weight: weights that were put there by hand have many zeros inside"
    assert caplog.text.count(text) == 1
    pactrain.prune(model, masks_from=model.state_dict())  # As it says.
    run(attached, optimizer, 2)
    assert torch.equal(kept(model), state[LAYER] != 0)


def test_weights_that_are_rounded_for_a_pass_keep_their_masks(attach, caplog):
    """As BinaryConnect and its like do."""
    model = pruned()
    attached = attach(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    mask = kept(model)
    for _ in range(6):
        latent = model[2].weight.detach().clone()
        optimizer.zero_grad()
        model[2].weight.data.copy_((2 * latent).round() / 2)
        attached.step()
        model[2].weight.data.copy_(latent)
        optimizer.step()
    assert kept(model) is mask
    assert caplog.text.count("have many zeros inside the mask") == 1


@pytest.mark.parametrize(
    "asked",
    [
        {"amount": 0.3},
        {"amount": 0},
        {"amount": 0.3, "scope": "global"},
        {"amount": 0.3, "scope": "erk"},
        {"amount": 0.3, "method": "random"},
        {"amount": 0.3, "exempt": ()},
        {"amount": 0.3, "exempt": (), "scope": "global"},
    ],
    ids=str,
)
def test_to_prune_by_less_after_a_load_keeps_all_zeros(asked, capfd):
    state, _ = pruned_more()
    model = small_net()
    model.load_state_dict(state)
    report = pactrain.prune(model, **asked)
    assert torch.equal(model[2].weight, state[LAYER])
    assert torch.equal(kept(model), state[LAYER] != 0)
    assert LAYER not in report.exempt
    if "exempt" not in asked:
        assert "What was pruned before stays pruned" in capfd.readouterr().err


def test_the_advice_where_zeros_are_beside_weights_of_equal_score_works():
    model = small_net()
    with torch.no_grad():
        model[2].weight.copy_(torch.arange(64).reshape(8, 8) % 2)
    state = copy.deepcopy(model.state_dict())
    advice = r"already pruned: prune\(model, masks_from=model.state_dict\(\)\)"
    with pytest.raises(pactrain.InvalidArgument, match=advice):
        pactrain.prune(model, 0.3)
    pactrain.prune(model, masks_from=model.state_dict())
    assert is_lossless(model, state)
