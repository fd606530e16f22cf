"""Weights that are loaded when there are masks: no trained weight is lost."""

from __future__ import annotations

import copy

import pytest
import torch
from fake_native import activate
from small_nets import pruned, small_net
from torch import nn
from torch.nn.utils import prune as torch_prune

import pactrain
from pactrain.masks import registry

LAYER = "2.weight"


def trained(amount=0.5, seed=9):
    """The state_dict() of a model that was pruned and trained elsewhere."""
    model = small_net(seed)
    pactrain.prune(model, amount)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return copy.deepcopy(model.state_dict())


def dense(seed=9):
    return small_net(seed).state_dict()


def kept(model):
    return registry.get(model[2].weight)


def is_lossless(model, state):
    """The weights are those of the checkpoint, and its zeros are the mask."""
    return torch.equal(model[2].weight, state[LAYER]) and torch.equal(
        kept(model), state[LAYER] != 0
    )


def run(attached, optimizer, steps=1):
    for _ in range(steps):
        attached.step(optimizer=optimizer)


def in_force(model):
    """An attached model whose masks are in force."""

    def made(attach):
        attached = attach(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        run(attached, optimizer, 3)
        activate(attached)
        run(attached, optimizer)
        return attached, optimizer

    return made


def test_masks_are_taken_from_a_state_dict():
    state = trained()
    model = small_net()
    report = pactrain.prune(model, masks_from=state)
    assert torch.equal(kept(model), state[LAYER] != 0)
    assert torch.equal(model[2].weight == 0, state[LAYER] == 0)
    assert report.layers == ((LAYER, 64, 32),)
    model.load_state_dict(state)
    assert is_lossless(model, state)


def test_masks_from_keeps_what_the_checkpoint_kept_whatever_was_asked(capfd):
    state = trained(0.5)
    model = pruned(0.75)
    model.load_state_dict(state)
    pactrain.prune(model, 0.75, masks_from=state, scope="erk")
    assert is_lossless(model, state)
    assert (
        "75.0% asked, but masks are taken from masks_from: 32" in capfd.readouterr().err
    )


def test_masks_from_takes_all_layers_that_were_pruned_and_no_vector(caplog):
    model = small_net(9)
    pactrain.prune(model, 0.5, exempt=())
    with torch.no_grad():
        model[2].weight.zero_()  # As a gate that has not trained yet.
        model[0].bias.zero_()
    again = small_net()
    report = pactrain.prune(again, masks_from=model.state_dict(), kind="freeze")
    assert [name for name, _, _ in report.layers] == ["0.weight", "4.weight"]
    assert report.frozen == {"0.weight", "4.weight"}
    assert "2.weight: all weights are zero" in caplog.text


def test_masks_from_takes_states_of_wrapped_models_and_of_torch_prune():
    state = trained()
    wrapped = {f"module._orig_mod.{name}": value for name, value in state.items()}
    model = small_net()
    pactrain.prune(model, masks_from=wrapped)
    assert torch.equal(kept(model), state[LAYER] != 0)
    other = small_net(9)
    torch_prune.l1_unstructured(other[2], "weight", 0.75)
    pactrain.prune(model, masks_from=other.state_dict())
    assert torch.equal(kept(model), other[2].weight_mask.bool())


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (dense(), "masks_from has no zeros in 0.weight, 2.weight, 4.weight"),
        ({"model": dense(), "epoch": 3}, r"Give checkpoint\['model'\]"),
        ({"a": torch.ones(2)}, "none of which is a parameter of this model"),
        ({LAYER: torch.zeros(3, 3)}, r"masks_from\['2.weight'\] has shape \(3, 3\)"),
        ({}, "masks_from is empty; allowed is a state_dict"),
        (5, "masks_from is a int; allowed is a state_dict"),
    ],
)
def test_states_without_masks_are_errors(net, state, text):
    pactrain.prune(net, 0.5)
    mask = kept(net).clone()
    with pytest.raises(pactrain.InvalidArgument, match=text):
        pactrain.prune(net, masks_from=state)
    assert torch.equal(kept(net), mask)


@pytest.mark.parametrize("amount", [0.25, 0.5])
@pytest.mark.parametrize(
    "repair",
    [
        pactrain.prune,
        lambda model, amount: pactrain.apply_masks(model),
    ],
)
def test_after_loading_a_pruned_checkpoint_its_zeros_are_the_masks(amount, repair):
    state = trained()
    model = pruned()
    model.load_state_dict(state)
    repair(model, amount)
    assert is_lossless(model, state)


def test_pruning_again_after_loading_dense_weights_begins_anew():
    model = pruned(0.75)
    model.load_state_dict(dense())
    pactrain.prune(model, 0.75)
    weights = dense()[LAYER].abs()
    assert int(kept(model).sum()) == 16
    assert weights[kept(model)].min() >= weights[~kept(model)].max()


def test_a_pruned_checkpoint_that_was_loaded_after_prune_is_attached_as_it_is(
    attach, caplog
):
    state = trained()
    model = pruned()
    model.load_state_dict(state)
    attached = attach(model)
    assert is_lossless(model, state)
    assert "their zeros are the masks now" in caplog.text
    run(attached, torch.optim.SGD(model.parameters(), lr=0.0), 3)
    assert attached.native.votes[-1]["mask"] == attached.session._keeper.current.digest


@pytest.mark.parametrize("wrapper", ["attach", "wrap"])
def test_an_unchanged_resume_of_an_attached_model_loses_nothing(request, wrapper):
    """pytorch/examples imagenet --resume: loads after wrapping."""
    state = trained()
    model = pruned()
    attached = request.getfixturevalue(wrapper)(model)
    attached.ddp.load_state_dict({f"module.{n}": v for n, v in state.items()})
    attached.step()
    assert is_lossless(model, state)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    run(attached, optimizer, 3)
    activate(attached)
    run(attached, optimizer, 2)
    assert is_lossless(model, state)


@pytest.mark.parametrize(
    "load",
    [
        lambda attached, state: attached.session.load(state),
        lambda attached, state: attached.ddp.module.load_state_dict(state),
        lambda attached, state: [  # By a part of the model.
            module.load_state_dict(
                {"weight": state[f"{i}.weight"], "bias": state[f"{i}.bias"]}
            )
            for i, module in enumerate(attached.ddp.module)
            if isinstance(module, nn.Linear)
        ],
    ],
)
def test_masks_in_force_take_nothing_of_weights_that_were_loaded(attach, load):
    state = trained()
    model = pruned()
    attached, optimizer = in_force(model)(attach)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    load(attached, state)
    optimizer.step()  # Before the next pass has looked at them.
    assert torch.equal(model[2].weight, state[LAYER])
    run(attached, optimizer, 3)
    assert is_lossless(model, state)
    assert not attached.native.votes[-1]["inside"]  # Until then steps are dense.
    activate(attached, version=2)
    run(attached, optimizer, 2)
    assert is_lossless(model, state)
    assert attached.session.masks_settled


def test_loading_into_a_session_needs_a_pruned_checkpoint(attach):
    model = pruned()
    attached = attach(model)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(
        pactrain.InvalidArgument, match=r"weights has no zeros .*\nLoad"
    ):
        attached.session.load(dense())
    assert torch.equal(model[2].weight, before[LAYER])


def test_the_advice_of_the_error_after_loading_dense_weights_works(attach):
    model = pruned()
    attached, optimizer = in_force(model)(attach)
    model.load_state_dict(dense())
    for _ in range(2):
        with (
            pytest.raises(pactrain.PacTrainError, match=r"Call prune\(\) again, now"),
            attached.session.guard(),
        ):
            attached.step()
    pactrain.prune(model, 0.5)
    largest = dense()[LAYER].abs().reshape(-1).topk(32).indices
    assert kept(model).reshape(-1)[largest].all()
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    run(attached, optimizer, 3)
    assert torch.equal(model[2].weight, dense()[LAYER])  # Nothing is lost until agreed.
    activate(attached, version=2)
    run(attached, optimizer, 2)
    assert torch.equal(model[2].weight != 0, kept(model))


def test_a_refused_attach_can_be_repaired_as_it_says(attach):
    model = pruned()
    ddp = nn.parallel.DistributedDataParallel(model)
    with torch.no_grad():  # By a loader of its own.
        model[2].weight.copy_(dense()[LAYER])
    with pytest.raises(pactrain.PacTrainError, match="32 non-zero weights outside"):
        pactrain.attach(ddp)
    pactrain.prune(model, 0.5)
    largest = dense()[LAYER].abs().reshape(-1).topk(32).indices
    assert kept(model).reshape(-1)[largest].all()
    assert isinstance(pactrain.attach(ddp), pactrain.Session)


def test_weights_may_be_loaded_after_attaching_with_a_state(attach):
    first, _ = in_force(pruned())(attach)
    state = first.session.state_dict()
    weights = copy.deepcopy(first.ddp.module.state_dict())
    assert state["masks_active"]
    model = small_net(5)
    second = attach(model, state=state)
    second.ddp.load_state_dict({f"module.{n}": v for n, v in weights.items()})
    second.step()
    assert is_lossless(model, weights)
    third = attach(small_net(6), state=state)  # Without loading them.
    with (
        pytest.raises(pactrain.PacTrainError, match="do not belong to the session's"),
        third.session.guard(),
    ):
        third.step()


def test_given_masks_that_are_not_those_of_the_weights_are_told_apart(attach, net):
    with pytest.raises(
        pactrain.PacTrainError, match=r"masks that attach\(\) was given"
    ):
        attach(net, masks={LAYER: torch.eye(8)})


def test_weights_that_came_back_are_not_taken_for_a_checkpoint():
    model = pruned()
    mask = kept(model).clone()
    with torch.no_grad():
        model[2].weight.view(-1)[(~mask).view(-1).nonzero()[:5, 0]] = 0.1
    pactrain.apply_masks(model)
    assert torch.equal(kept(model), mask)
    assert torch.equal(model[2].weight != 0, mask)


@pytest.mark.parametrize("state", [trained(), dense()], ids=["pruned", "dense"])
def test_masks_go_along_where_parameters_are_replaced(attach, state):
    model = pruned()
    model.load_state_dict(state, assign=True)
    if state[LAYER].all():
        with pytest.raises(pactrain.PacTrainError, match="loaded after prune"):
            attach(model)
        assert pactrain.sparsity(model).outside == 32
    else:
        attach(model)
        assert is_lossless(model, state)


def test_a_copy_and_another_layer_in_the_place_have_no_masks():
    model = pruned()
    other = copy.deepcopy(model)
    other.load_state_dict(dense(), assign=True)
    model[2] = nn.Linear(8, 8)
    for net in (other, model):
        assert pactrain.sparsity(net).outside == 0
        assert kept(net) is None


def test_zeros_that_no_mask_keeps_are_told_at_attach_and_after_a_load(
    attach, net, caplog
):
    text = "2.weight: many weights are zero, but no mask keeps them so"
    attached = attach(net)
    attached.step()
    assert text not in caplog.text
    net.load_state_dict(trained())
    attached.step()
    attached.step()
    assert caplog.text.count(text) == 1
    pactrain.prune(net, masks_from=net.state_dict())  # As it says.
    assert is_lossless(net, trained())
    attached.session.close()
    other = small_net()
    other.load_state_dict(trained())
    attach(other)
    assert caplog.text.count(text) == 2


def saved_at(amount):
    """A model, and the state of its session at that time."""
    model = pruned(amount) if amount else small_net()
    session = pactrain.attach(nn.parallel.DistributedDataParallel(model))
    state = session.state_dict()
    session.close()
    return model, state


@pytest.mark.parametrize("amount", [0, 0.5])
def test_what_was_pruned_before_a_state_was_given_stays_pruned(attach, caplog, amount):
    model, state = saved_at(amount)
    pactrain.prune(model, 0.8)
    mask = kept(model).clone()
    attached = attach(model, state=state)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    run(attached, optimizer, 3)
    activate(attached)
    run(attached, optimizer, 5)
    assert torch.equal(kept(model), mask)
    assert not model[2].weight[~mask].any()
    assert "pruned since the session's state was saved" in caplog.text


def test_masks_that_have_not_acted_before_a_state_comes_are_told_of(attach, caplog):
    model, state = saved_at(0.5)
    attached = attach(model)
    pactrain.prune(model, 0.8)
    attached.session.load_state_dict(state)
    assert "2.weight: the masks of the session's state are taken" in caplog.text


def test_what_was_pruned_before_a_session_took_a_state_stays_pruned(attach):
    model, state = saved_at(0.5)
    pactrain.prune(model, 0.8)
    attached = attach(model)
    mask = kept(model).clone()
    attached.step()
    attached.session.load_state_dict(state)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    run(attached, optimizer, 3)
    activate(attached)
    run(attached, optimizer, 5)
    assert torch.equal(kept(model), mask)


def test_weights_that_come_after_their_state_undo_what_was_pruned_since(attach):
    model, state = saved_at(0.5)
    weights, mask = copy.deepcopy(model.state_dict()), kept(model).clone()
    pactrain.prune(model, 0.8)
    attached = attach(model, state=state)
    model.load_state_dict(weights)
    attached.step()
    assert torch.equal(kept(model), mask)
    assert is_lossless(model, weights)


def test_frozen_weights_that_were_pruned_since_their_state_are_told_of(attach, caplog):
    model = small_net()
    pactrain.prune(model, 0.5, kind="freeze")
    state = attach(model).session.state_dict()
    again = copy.deepcopy(model)
    pactrain.prune(again, 0.8, kind="freeze")
    attach(again, state=state)
    assert "2.weight: the masks of the session's state are taken" in caplog.text
