"""A session with masks: votes, activation, changes, and what a state keeps."""

from __future__ import annotations

import copy
import dataclasses
import io

import pytest
import torch
from fake_native import FULL, activate
from small_nets import outside, pruned, small_net
from torch import nn
from torch.nn.utils import prune as torch_prune

import pactrain
from pactrain import attaching
from pactrain.types import NO_DIGEST, Codec, Mode


def test_masks_are_declared_and_voted_for_before_the_first_step(attach):
    attached = attach(pruned())
    (vote,) = attached.native.votes
    assert (vote["unchanged"], vote["settle"], vote["inside"]) == (1, 1, True)
    assert vote["elements"] - vote["kept"] == 32
    said = attached.native.options
    assert (said.mask_digest, said.layout_digest) == (vote["mask"], vote["layout"])
    assert (said.kept_elements, said.declared_elements) == (
        vote["kept"],
        vote["elements"],
    )
    for _ in range(3):
        attached.step()
    assert len(attached.native.votes) == 1


def test_rank_0_tells_once_what_each_parameter_keeps_of_a_mask_set(attach):
    model = pruned()
    attached = attach(model)
    for _ in range(3):
        attached.step()
    ((digest, told),) = attached.native.kept
    assert digest == attached.native.votes[-1]["mask"]
    names = [name for name, _ in model.named_parameters()]
    assert [name for name, _, _ in told] == names
    assert ("2.weight", 32, 64) in told
    assert ("0.weight", model[0].weight.numel(), model[0].weight.numel()) in told
    assert sum(kept for _, kept, _ in told) == attached.native.votes[-1]["kept"]
    pactrain.prune(model, 0.75)
    for _ in range(3):
        attached.step()
    assert len(attached.native.kept) == 2
    assert ("2.weight", 16, 64) in attached.native.kept[-1][1]


def test_other_ranks_tell_nothing_of_parameters(attach):
    attached = attach(pruned())
    keeper = attached.session._keeper
    keeper._told = (0, NO_DIGEST)  # Nothing was told yet.
    attached.native.kept.clear()
    attached.native.rank = 1
    keeper._tell_keep()
    assert attached.native.kept == []
    attached.native.rank = 0
    keeper._tell_keep()
    assert len(attached.native.kept) == 1


def test_of_a_model_without_masks_no_parameter_is_told(attach, net):
    attached = attach(net)
    attached.step()
    assert attached.native.kept == []


def test_the_library_gets_the_bits_of_each_bucket_that_comes(attach):
    attached = attach(pruned(), {"bucket_cap_mb": 1e-4})
    assert not attached.native.mask_sets
    activate(attached)
    attached.step()
    assert not attached.native.mask_sets  # In force from the next step on.
    attached.step()
    layouts = attached.native.submits[-len(attached.native.mask_sets) :]
    assert [index for _, index, _ in attached.native.mask_sets] == [
        *range(len(layouts))
    ]
    assert {mask for mask, _, _ in attached.native.mask_sets} == {
        attached.native.votes[-1]["mask"]
    }
    known = len(attached.native.mask_sets)
    attached.step()
    assert len(attached.native.mask_sets) == known


def test_a_model_without_masks_says_so_once(attach, net):
    attached = attach(net)
    for _ in range(4):
        attached.step()
    (vote,) = attached.native.votes
    assert vote["mask"] == NO_DIGEST
    assert vote["kept"] == vote["elements"]
    assert not attached.native.mask_sets


def test_removed_masks_stay_in_force(attach, caplog):
    model = pruned()
    attached = attach(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        attached.step(optimizer=optimizer)
    mask = pactrain.masks.registry.get(model[2].weight)
    activate(attached)
    attached.step(optimizer=optimizer)
    attached.session.set_masks({})
    attached.job.decide = lambda step: dataclasses.replace(FULL, version=2)
    for _ in range(3):
        attached.step(optimizer=optimizer)
    assert not model[2].weight[~mask].any()
    assert "masks were removed" in caplog.text


def test_nothing_is_masked_before_the_decision(attach):
    model = pruned()
    attached = attach(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        attached.step(optimizer=optimizer)
    assert outside(model) > 0


def test_from_the_activating_commit_on_weights_and_state_are_masked(attach):
    model = pruned()
    attached = attach(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(3):
        attached.step(optimizer=optimizer)
    activate(attached)
    attached.step(optimizer=optimizer)
    mask = pactrain.masks.registry.get(model[2].weight)
    assert outside(model) == 0
    state = optimizer.state[model[2].weight]
    assert not state["exp_avg"][~mask].any()
    assert state["exp_avg"][mask].any()
    attached.step(optimizer=optimizer)
    assert outside(model) == 0
    assert not model[2].weight.grad[~mask].any()
    assert attached.session.stats()["pactrain/masks_active"] == 1


def test_gse_off_masks_no_weight_and_no_gradient(attach):
    model = pruned()
    attached = attach(model, gse=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        attached.step(optimizer=optimizer)
    activate(attached)
    attached.step(optimizer=optimizer)
    assert outside(model) > 0
    assert attached.native.options.gse is False


def test_a_smaller_mask_goes_on_and_votes_for_itself(attach):
    model = pruned(0.5)
    attached = attach(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        attached.step(optimizer=optimizer)
    activate(attached)
    attached.step(optimizer=optimizer)
    before = model[2].weight.detach().clone()
    pactrain.prune(model, 0.75)
    assert torch.equal(model[2].weight, before)  # Only the agreed mask acts.
    attached.step(optimizer=optimizer)
    assert attached.native.votes[-2]["unchanged"] == 0
    assert all(vote["inside"] for vote in attached.native.votes)
    activate(attached, version=2)
    attached.step(optimizer=optimizer)
    assert int((model[2].weight != 0).sum()) <= 16


def test_a_mask_outside_the_decision_is_told_at_once(attach):
    model = pruned(0.5)
    attached = attach(model)
    for _ in range(3):
        attached.step()
    activate(attached)
    attached.step()
    mask = pactrain.masks.registry.get(model[2].weight)
    attached.session.set_masks({"2.weight": ~mask})
    attached.step()
    assert [vote["inside"] for vote in attached.native.votes[-2:]] == [False, False]
    activate(attached, version=2)
    attached.step()
    assert attached.session.stats()["pactrain/active_keep"] < 1


def test_masks_that_only_this_rank_changed_are_warned_of_once(attach, caplog):
    model = pruned(0.5)
    attached = attach(model)
    for _ in range(3):
        attached.step()
    activate(attached)
    for _ in range(60):
        attached.step()
    assert "not agreed" not in caplog.text
    pactrain.prune(model, 0.75)  # The others do not: the decision stays.
    for _ in range(49):
        attached.step()
    assert "not agreed" not in caplog.text
    for _ in range(70):
        attached.step()
    assert caplog.text.count("for 50 steps and are still not agreed on") == 1
    assert "those in force go on. In force is COMPACTED fp32" in caplog.text
    assert "Change masks at all ranks alike." in caplog.text


@pytest.mark.parametrize(
    ("mode", "codec", "text"),
    [
        (Mode.FULL, Codec.FP32, "In force is FULL fp32"),
        (Mode.TERNARY, Codec.LEVELS7, "In force is TERNARY 7 levels"),
    ],
)
def test_without_agreed_masks_the_warning_says_that_all_is_sent(
    attach, caplog, mode, codec, text
):
    attached = attach(pruned(0.5))
    for _ in range(3):
        attached.step()
    activate(attached)
    attached.step()
    attached.job.decide = lambda step: dataclasses.replace(  # Withdrawn by the others.
        FULL, version=2, mode=mode, codec=codec
    )
    pactrain.prune(attached.ddp, 0.75)
    for _ in range(52):
        attached.step()
    assert f"until then every step sends all elements. {text}" in caplog.text


def test_weights_loaded_after_prune_are_an_error_at_attach(attach):
    model = pruned()
    model.load_state_dict(small_net(1).state_dict())
    with pytest.raises(pactrain.PacTrainError, match="weights were loaded after prune"):
        attach(model)


def test_weights_loaded_after_attach_are_an_error_before_the_step(attach):
    model = pruned()
    attached = attach(model)
    model.load_state_dict(small_net(1).state_dict())
    with (
        pytest.raises(pactrain.PacTrainError, match=r"2\.weight has 32 non-zero"),
        attached.session.guard(),
    ):
        attached.step()
    pactrain.apply_masks(model)
    attached.step()


def test_torch_prune_may_have_any_weight_orig(attach, net):
    torch_prune.random_unstructured(net[2], "weight", 0.5)
    attached = attach(net)
    before = net[2].weight_orig.detach().clone()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        attached.step(optimizer=optimizer)
    activate(attached)
    attached.step(optimizer=optimizer)
    dropped = net[2].weight_mask == 0
    assert torch.equal(net[2].weight_orig[dropped], before[dropped])


def test_masks_from_weights_settle_in_three_steps(attach):
    model = pruned()
    pactrain.masks.registry.remove(model[2].weight)
    attached = attach(model, masks="weights")
    for _ in range(7):
        attached.step()
    assert [vote["unchanged"] for vote in attached.native.votes] == [1, 2, 3]
    assert attached.native.votes[-1]["settle"] == 3


def test_a_state_resumes_masks_and_step(attach):
    first = attach(pruned())
    for _ in range(3):
        first.step()
    saved = io.BytesIO()
    torch.save(
        {"model": first.ddp.module.state_dict(), "session": first.session.state_dict()},
        saved,
    )
    saved.seek(0)
    loaded = torch.load(saved, weights_only=True)
    model = small_net(5)
    model.load_state_dict(loaded["model"])
    second = attach(model, state=loaded["session"])
    assert second.native.options.resume_step == first.session.next_step
    assert second.session.state_dict()["masks"].keys() == {"2.weight"}
    for _ in range(3):
        second.step()
    assert second.native.votes[-1]["mask"] == first.native.votes[-1]["mask"]


def test_a_state_has_the_masks_of_the_one_that_was_just_loaded(attach):
    state = attach(pruned()).session.state_dict()
    session = attach(small_net(5)).session
    session.load_state_dict(state)
    assert session.state_dict()["masks"].keys() == {"2.weight"}


def test_masks_that_are_not_in_force_yet_are_resumed_and_weights_zeroed(attach):
    first = attach(pruned())
    for _ in range(3):
        first.step()
    activate(first)
    first.step()
    model = first.ddp.module
    pactrain.prune(model, 0.75)
    state = first.session.state_dict()
    assert not state["masks_active"]
    again = small_net(5)
    again.load_state_dict(model.state_dict())
    second = attach(again, state=state)
    assert second.session.state_dict()["masks"].keys() == {"2.weight"}
    assert int((again[2].weight != 0).sum()) == 16


@pytest.mark.parametrize("by_hand", [False, True])
def test_weights_of_such_a_state_may_come_after_an_attach_that_has_masks_in_force(
    attach, monkeypatch, by_hand
):
    model = small_net()
    first = attach(model)
    first.step()
    pactrain.prune(model, 0.5)
    weights = copy.deepcopy(model.state_dict())
    state = first.session.state_dict()
    first.session.close()
    attach_native = attaching.NativeSession.attach

    def begins_with_masks(options, on_waiting, advice, within):
        native = attach_native(options, on_waiting, advice, within)
        native.decision = dataclasses.replace(
            FULL, version=1, mode=Mode.COMPACTED, mask_digest=options.mask_digest
        )
        native.job.decide = lambda step: native.decision
        return native

    monkeypatch.setattr(attaching.NativeSession, "attach", begins_with_masks)
    again = small_net(5)
    second = attach(again, state=state)
    assert second.session.stats()["pactrain/masks_active"]
    if by_hand:
        for name, parameter in again.named_parameters():
            parameter.data.copy_(weights[name])
    else:
        again.load_state_dict(weights)
    second.step()
    mask = pactrain.masks.registry.get(again[2].weight)
    assert torch.equal(again[2].weight, weights["2.weight"] * mask)
    again.load_state_dict(small_net(6).state_dict())  # Not those of the state.
    with pytest.raises(pactrain.PacTrainError), second.session.guard():
        second.step()


def test_a_state_of_another_model_is_an_error(attach, net):
    state = attach(pruned()).session.state_dict()
    other = attach(nn.Linear(6, 3))
    with pytest.raises(
        pactrain.InvalidArgument, match=r"for '2\.weight'; this model has no"
    ):
        other.session.load_state_dict(state)
    with pytest.raises(pactrain.InvalidArgument, match="state has version 3; allowed"):
        other.session.load_state_dict({**state, "version": 3})
    with pytest.raises(pactrain.InvalidArgument, match=r"state is a dict with \['x'\]"):
        other.session.load_state_dict({"x": 1})


def test_masks_are_settled_while_those_in_force_are_the_wanted_ones(attach, net):
    attached = attach(net)
    session = attached.session
    assert session.masks_settled  # None are wanted.
    for _ in range(2):
        attached.step()
    pactrain.prune(net, 0.5)
    assert not session.masks_settled
    for _ in range(3):
        attached.step()
    assert not session.masks_settled
    activate(attached)
    attached.step()
    assert session.masks_settled
