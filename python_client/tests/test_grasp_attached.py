"""GraSP on attached models: collective, so that one rank's failure is told to all."""

from __future__ import annotations

import pytest
import torch
from fake_native import activate
from small_nets import small_net
from torch import nn

import pactrain
from pactrain.masks import registry
from pactrain.types import Op


def by_batch(model):
    return {
        "method": "grasp",
        "loss": lambda net: net(torch.ones(2, 6)).square().sum(),
        "exempt": ("0", "4"),
    }


def test_grasp_on_an_attached_model_is_sent_to_all_ranks(attach, net):
    attached = attach(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        attached.step(optimizer=optimizer)
    before = net[2].weight.detach().clone()
    report = pactrain.prune(attached.ddp, 0.5, **by_batch(net))
    assert attached.native.submits[-1][0] == Op.XOR
    assert report.layers == (("module.2.weight", 64, 32),)
    assert torch.equal(net[2].weight, before)
    attached.step(optimizer=optimizer)
    activate(attached)
    attached.step(optimizer=optimizer)
    mask = registry.get(net[2].weight)
    assert not net[2].weight[~mask].any()


def test_if_masks_cannot_be_sent_they_are_as_before(attach):
    model = small_net()
    pactrain.prune(model, 0.5)
    attached = attach(model)
    mask = registry.get(model[2].weight).clone()
    attached.native.fail_next = pactrain.StepNotAppliedError("no.\nRedo.")
    with pytest.raises(pactrain.StepNotAppliedError):
        pactrain.prune(model, 0.75, **by_batch(model))
    assert torch.equal(registry.get(model[2].weight), mask)
    attached.session.close()
    with pytest.raises(pactrain.PacTrainError, match="session of this model is closed"):
        attached.session.sync_masks()


def raises(output):
    raise ArithmeticError("no such loss")


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"amount": 2}, "amount is 2"),
        ({"exempt": ("typo",)}, "exempt has 'typo'"),
        ({"exempt": lambda name: True}, "exempt raised TypeError"),
        ({"seed": -0.5}, "seed is -0.5"),
        ({"scope": "row"}, "scope is 'row'"),
        ({"loss": raises}, "no such loss"),
    ],
)
def test_grasp_that_fails_before_or_while_it_runs_is_told_to_all(
    attach, net, wrong, text
):
    attached = attach(net)
    before = len(attached.native.submits)
    given = {"amount": 0.5, **by_batch(net), **wrong}
    with pytest.raises((pactrain.InvalidArgument, ArithmeticError), match=text):
        pactrain.prune(attached.ddp, **given)
    assert [op for op, _, _ in attached.native.submits[before:]] == [Op.XOR]
    assert "2.weight" not in attached.session.state_dict()["masks"]


def test_a_failure_is_told_by_the_first_session_of_several(attach):
    first, second = attach(small_net()), attach(small_net(1))
    model = nn.Sequential(first.ddp.module, second.ddp.module)
    before = len(second.native.submits)
    with pytest.raises(pactrain.InvalidArgument, match="amount is 2"):
        pactrain.prune(model, **{**by_batch(model), "amount": 2, "exempt": ()})
    assert first.native.submits[-1][0] == Op.XOR
    assert len(second.native.submits) == before


def test_another_method_that_fails_is_told_to_nobody(attach, net):
    attached = attach(net)
    before = len(attached.native.submits)
    with pytest.raises(pactrain.InvalidArgument, match="amount is 2"):
        pactrain.prune(attached.ddp, 2)
    assert len(attached.native.submits) == before
