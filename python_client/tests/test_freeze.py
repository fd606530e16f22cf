from __future__ import annotations

import pytest
import torch
from fake_native import activate
from small_nets import small_net
from test_alone import one_process

import pactrain
from pactrain.masks import registry

__all__ = ["one_process"]
pytestmark = pytest.mark.filterwarnings("ignore:.*nothing to exchange")

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "nesterov": lambda p: torch.optim.SGD(
        p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1
    ),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.5),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.9),
}


def frozen(amount=0.5, seed=0):
    model = small_net(seed)
    pactrain.prune(model, amount, kind="freeze")
    return model


def mask(model):
    return registry.get(model[2].weight)


def weights(model):
    return model[2].weight.detach().clone()


def run(attached, optimizer, steps):
    for _ in range(steps):
        attached.step(optimizer=optimizer)


def same_outside(model, before):
    dropped = ~mask(model)
    return torch.equal(model[2].weight[dropped], before[dropped])


def test_freezing_changes_no_weight():
    model = small_net()
    before = weights(model)
    report = pactrain.prune(model, 0.5, kind="freeze")
    pactrain.apply_masks(model)
    assert torch.equal(weights(model), before)
    assert report.frozen == {"2.weight"}
    assert report.kept == report.elements - 32


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_only_kept_weights_train_under(attach, name):
    model = frozen()
    before = weights(model)
    attached = attach(model)
    optimizer = OPTIMIZERS[name](model.parameters())
    run(attached, optimizer, 3)
    assert not same_outside(model, before)  # Not agreed on yet.
    activate(attached)
    run(attached, optimizer, 1)
    assert same_outside(model, before)  # Those of the attach are back.
    kept = model[2].weight[mask(model)].clone()
    run(attached, optimizer, 3)
    assert same_outside(model, before)
    assert not torch.equal(model[2].weight[mask(model)], kept)
    assert not model[2].weight.grad[~mask(model)].any()


def test_frozen_values_are_those_of_a_later_load(attach):
    model = frozen()
    attached = attach(model)
    model.load_state_dict(small_net(1).state_dict())  # Before the masks are in force.
    loaded = weights(model)
    optimizer = OPTIMIZERS["nesterov"](model.parameters())
    run(attached, optimizer, 3)
    activate(attached)
    run(attached, optimizer, 2)
    assert same_outside(model, loaded)
    model.load_state_dict(small_net(2).state_dict())  # And after.
    loaded = weights(model)
    run(attached, optimizer, 3)
    assert same_outside(model, loaded)


def beside_pruned(seed):
    """Its first and last layer are frozen, the one between is pruned."""
    model = small_net(seed)
    pactrain.prune(model, 0.5, exempt=(), exclude=["2.*"], kind="freeze")
    pactrain.prune(model, 0.5, exempt=(), exclude=["0.*", "4.*"])
    return model


def by_load(model, session, state):
    model.load_state_dict(state)


def by_session(model, session, state):
    session.load(state)


def by_prune(model, session, state):
    pactrain.prune(model, masks_from=state)
    model.load_state_dict(state)


@pytest.mark.parametrize("one", [False, True], ids=["ranks", "one process"])
@pytest.mark.parametrize("bring", [by_load, by_session, by_prune])
def test_frozen_weights_are_a_checkpoints_that_has_its_zeros_elsewhere(
    request, bring, one
):
    model, state = beside_pruned(0), beside_pruned(1).state_dict()
    held = ~registry.get(model[0].weight)
    attached = None if one else request.getfixturevalue("attach")(model)
    session = pactrain.attach(model) if attached is None else attached.session
    optimizer = OPTIMIZERS["nesterov"](model.parameters())

    def train(steps, version):
        for _ in range(steps):
            optimizer.zero_grad()
            forward = model if attached is None else attached.ddp
            forward(torch.ones(4, 6)).square().mean().backward()
            optimizer.step()
        if attached is not None:
            activate(attached, version)

    train(3, 1)
    train(3, 1)
    bring(model, session, state)
    train(3, 2)
    train(3, 2)
    assert session.state_dict()["frozen"] == ["0.weight", "4.weight"]
    assert torch.equal(model[0].weight[held], state["0.weight"][held])
    assert torch.equal(mask(model), state["2.weight"] != 0)
    assert not model[2].weight[~mask(model)].any()


def test_weights_frozen_in_mid_run_keep_the_values_of_the_activation(attach):
    model = small_net()
    attached = attach(model)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    run(attached, optimizer, 3)
    pactrain.prune(model, 0.5, kind="freeze")
    run(attached, optimizer, 2)
    activate(attached)
    before = weights(model)
    run(attached, optimizer, 3)
    assert same_outside(model, before)


def test_frozen_weights_that_are_pruned_become_zero(attach):
    model = frozen()
    attached = attach(model)
    optimizer = OPTIMIZERS["nesterov"](model.parameters())
    run(attached, optimizer, 3)
    activate(attached)
    run(attached, optimizer, 2)
    digest = attached.native.votes[-1]["mask"]
    pactrain.prune(model, 0.5)  # The same masks, of another kind.
    run(attached, optimizer, 2)
    assert attached.native.votes[-1]["mask"] != digest
    assert attached.native.votes[-1]["inside"]
    activate(attached, version=2)
    run(attached, optimizer, 2)
    assert not model[2].weight[~mask(model)].any()


def test_set_masks_takes_a_kind(attach, net):
    attached = attach(net)
    before = weights(net)
    attached.session.set_masks({"2.weight": torch.eye(8)}, kind="freeze")
    assert registry.of(net[2].weight).frozen
    assert torch.equal(weights(net), before)
    with pytest.raises(pactrain.InvalidArgument, match="kind is 'keep'"):
        attached.session.set_masks({"2.weight": torch.eye(8)}, kind="keep")


def test_given_masks_can_be_of_either_kind(net):
    before = weights(net)
    pactrain.apply_masks(net, {"2.weight": torch.eye(8)}, kind="freeze")
    assert torch.equal(weights(net), before)
    pactrain.apply_masks(net, {"2.weight": torch.eye(8)})
    assert int((weights(net) != 0).sum()) == 8


def test_a_state_keeps_the_kind(attach):
    first = attach(frozen())
    state = first.session.state_dict()
    assert state["frozen"] == ["2.weight"]
    model = small_net(4)
    second = attach(model, state=state)
    assert registry.of(model[2].weight).frozen
    assert second.session.state_dict()["frozen"] == ["2.weight"]


def test_a_state_of_the_first_version_has_zeroed_weights(attach):
    model = small_net()
    pactrain.prune(model, 0.5)
    state = {**attach(model).session.state_dict(), "version": 1}
    del state["frozen"]
    again = small_net()
    again.load_state_dict(model.state_dict())
    attach(again, state=state)
    assert not registry.of(again[2].weight).frozen


def test_a_state_from_before_the_masks_were_in_force_zeroes_no_frozen_weight(attach):
    state = attach(frozen()).session.state_dict()
    assert not state["masks_active"]
    model = small_net(4)
    before = weights(model)
    attach(model, state=state)
    assert torch.equal(weights(model), before)
