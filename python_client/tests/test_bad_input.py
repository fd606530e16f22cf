"""Mistakes with models and masks: typed errors in words, that name what came."""

from __future__ import annotations

import copy
import io
import logging

import pytest
import torch
from small_nets import small_net
from torch import nn

import pactrain
from pactrain import InvalidArgument


def on_meta():
    with torch.device("meta"):
        return small_net()


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (0.5, "model is a float; allowed is a torch.nn.Module"),
        (on_meta(), "0.weight has no values yet"),
        (nn.Sequential(nn.LazyLinear(3)), "Call a model with lazy layers once"),
        (torch.jit.script(small_net()), "script it afterwards"),
    ],
)
@pytest.mark.parametrize(
    "call",
    [
        lambda model: pactrain.prune(model, 0.5),
        lambda model: pactrain.apply_masks(model, {}),
    ],
)
def test_what_cannot_be_pruned_is_named(model, text, call):
    with pytest.raises(InvalidArgument, match=text):
        call(model)


def test_arguments_in_the_wrong_order_are_told_in_one_short_line(net):
    with pytest.raises(InvalidArgument, match=r"amount is a Sequential; allowed is a"):
        pactrain.prune(net, net)
    with pytest.raises(InvalidArgument, match="model is a float"):
        pactrain.PruningSchedule(0.5, net, 10, 5)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"include": "weight"}, "include is a Parameter of shape \\(8, 6\\); allowed"),
        (
            {"exclude": ["weight"]},
            "exclude has a Parameter of shape \\(8, 6\\); allowed",
        ),
    ],
)
def test_parameters_in_the_place_of_names_are_told_by_their_shape(net, given, text):
    first = net[0].weight
    given = {k: first if isinstance(v, str) else [first] for k, v in given.items()}
    with pytest.raises(InvalidArgument, match=text):
        pactrain.prune(net, 0.5, **given)


def test_a_function_without_an_answer_exempts_by_mistake(net):
    with pytest.raises(InvalidArgument, match=r"exempt returned None for '0\.weight'"):
        pactrain.prune(net, 0.5, exempt=lambda name, parameter: None)


@pytest.mark.parametrize(
    ("masks", "text"),
    [
        ([torch.ones(8, 8)], "masks is \\[tensor.*; allowed is {name: mask}"),
        (torch.ones(8, 8), "masks is a Tensor of shape \\(8, 8\\)"),
        ({"2.weight": "dense"}, "is of type str; allowed is a tensor of shape"),
        ({"2.weight": "sparse"}, "is torch.sparse_coo; allowed is a dense tensor"),
        ({"2.weight": "meta"}, "is on device meta; allowed is a dense tensor"),
    ],
)
def test_masks_of_another_kind_are_named(net, masks, text):
    shape = net[2].weight.shape
    made = {
        "sparse": torch.ones(shape).to_sparse(),
        "meta": torch.ones(shape, device="meta"),
    }
    if isinstance(masks, dict):
        masks = {name: made.get(kind, kind) for name, kind in masks.items()}
    with pytest.raises(InvalidArgument, match=text):
        pactrain.apply_masks(net, masks)
    assert pactrain.sparsity(net).pruned == 0


def test_a_model_without_masks_is_left_alone_and_that_is_said(net, caplog):
    before = net[2].weight.clone()
    pactrain.apply_masks(net)
    assert torch.equal(net[2].weight, before)
    assert "model (Sequential) has no masks, so nothing was done" in caplog.text
    caplog.clear()
    schedule = pactrain.PruningSchedule(net, 0.5, 4, 2)
    schedule.step()  # Before its first change.
    pactrain.prune(net, 0.5)
    pactrain.apply_masks(net)
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize("state", [None, 3, [1]])
def test_what_is_no_state_of_a_schedule_is_named(net, state):
    schedule = pactrain.PruningSchedule(net, 0.5, 4, 2)
    with pytest.raises(InvalidArgument, match=r"state is .*; allowed is a dict"):
        schedule.load_state_dict(state)


def test_less_than_was_pruned_before_is_said(net, capfd):
    pactrain.prune(net, 0.5)
    assert "stays pruned" not in capfd.readouterr().err
    pactrain.prune(net, 0.3)
    assert "What was pruned before stays pruned" in capfd.readouterr().err


@pytest.mark.parametrize("alone", [True, False])
def test_a_session_is_no_file(attach, alone):
    if alone:
        with pytest.warns(UserWarning, match="nothing to exchange"):
            session = pactrain.attach(small_net())
    else:
        session = attach(small_net()).session
    for call in (copy.copy, copy.deepcopy, lambda s: torch.save(s, io.BytesIO())):
        with pytest.raises(pactrain.PacTrainError, match=r"Save session\.state_dict"):
            call(session)
    session.close()


def test_a_closed_session_takes_no_masks(attach):
    attached = attach(small_net())
    session, weights = attached.session, attached.ddp.module.state_dict()
    state = session.state_dict()
    session.close()
    calls = (
        lambda: session.set_masks({}),
        lambda: session.load(weights),
        lambda: session.load_state_dict(state),
        session.sync_masks,
    )
    for call in calls:
        with pytest.raises(pactrain.PacTrainError, match="is closed"):
            call()
