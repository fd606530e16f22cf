"""Weights that a script copies by hand into a model with masks: none is lost."""

from __future__ import annotations

import pytest
import torch
from conftest import LAUNCHER
from fake_native import activate
from small_nets import outside, pruned, small_net
from test_enforced_weights import ByHand
from test_loaded_masks import LAYER, dense, is_lossless, run, trained

import pactrain
from pactrain.alone import alone
from pactrain.masks import registry


def by_data(model, state):
    for name, parameter in model.named_parameters():
        parameter.data.copy_(state[name])


def by_replaced_data(model, state):
    for name, parameter in model.named_parameters():
        parameter.data = state[name].clone()


def without_grad(model, state):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(state[name])


def from_vector(model, state):
    vector = torch.cat([state[n].reshape(-1) for n, _ in model.named_parameters()])
    torch.nn.utils.vector_to_parameters(vector, model.parameters())


ways = pytest.mark.parametrize(
    "copy_in", [by_data, by_replaced_data, without_grad, from_vector]
)
by_whom = pytest.mark.parametrize("script", ["optimizer", "by hand"])


def begun(attach, model, script, steps=6, active=True):
    """Its masks have been in force for some of so many steps."""
    attached = attach(model)
    if active:
        activate(attached)
    optimizer = (
        ByHand(model, momentum=0.9)
        if script == "by hand"
        else torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    )
    run(attached, optimizer, steps)
    return attached, optimizer


def still(optimizer):
    """Steps change nothing from now on."""
    if isinstance(optimizer, ByHand):
        optimizer.step = lambda: None
    else:
        optimizer.param_groups[0]["lr"] = 0.0


@ways
@by_whom
@pytest.mark.parametrize("active_steps", [0, 1, 6, None])
def test_a_pruned_checkpoint_brings_its_masks(attach, copy_in, script, active_steps):
    model, state = pruned(), trained()
    active = active_steps is not None
    attached, optimizer = begun(
        attach, model, script, 6 if active_steps is None else active_steps, active
    )
    still(optimizer)
    copy_in(model, state)
    run(attached, optimizer, 4)
    assert is_lossless(model, state)
    activate(attached, version=2)
    run(attached, optimizer, 3)
    assert is_lossless(model, state)
    assert attached.session.masks_settled


@ways
@by_whom
@pytest.mark.parametrize("steps", [0, 1, 6])
@pytest.mark.parametrize("amount", [None, 0.25])
def test_what_fits_no_masks_is_refused_before_anything_is_zeroed(
    attach, copy_in, script, steps, amount
):
    model = pruned()
    state = dense() if amount is None else trained(amount)
    attached, optimizer = begun(attach, model, script, steps)
    copy_in(model, state)
    for _ in range(2):
        with (
            pytest.raises(pactrain.PacTrainError, match=r"2\.weight has .*by hand"),
            attached.session.guard(),
        ):
            attached.step()
    assert torch.equal(model[2].weight, state[LAYER])
    still(optimizer)
    if amount is None:
        pactrain.prune(model, 0.5)
    else:
        attached.session.load(state)
    run(attached, optimizer, 3)
    assert torch.equal(model[2].weight, state[LAYER])
    activate(attached, version=2)
    run(attached, optimizer, 2)
    if amount is None:
        largest = state[LAYER].abs().reshape(-1).topk(32).indices
        assert registry.get(model[2].weight).reshape(-1)[largest].all()
    else:
        assert is_lossless(model, state)


@pytest.mark.parametrize("by_session", [True, False])
@pytest.mark.parametrize("pruned_elsewhere", [True, False])
def test_what_was_meant_to_be_masked_may_be_told_so(
    attach, by_session, pruned_elsewhere
):
    model = pruned()
    attached, optimizer = begun(attach, model, "optimizer")
    by_data(model, dense())
    with (
        pytest.raises(pactrain.PacTrainError, match=r"Call session\.apply_masks\(\)"),
        attached.session.guard(),
    ):
        attached.step()
    if pruned_elsewhere:
        by_data(model, trained())
    attached.session.apply_masks() if by_session else pactrain.apply_masks(model)
    still(optimizer)
    run(attached, optimizer, 2)
    if pruned_elsewhere:
        assert is_lossless(model, trained())
    else:
        assert outside(model) == 0


@pytest.mark.parametrize("steps", [1, 2, 6, 10, 13])
@pytest.mark.parametrize("masked", ["pruned in mid-run", "by apply_masks()"])
def test_what_was_masked_hides_no_copy_that_comes_later(attach, steps, masked):
    """It is larger than any step."""
    model = small_net()
    attached = attach(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    if masked == "pruned in mid-run":
        run(attached, optimizer, 4)
        pactrain.prune(model, 0.5)
    else:
        pactrain.prune(model, 0.5)
    run(attached, optimizer)
    activate(attached)
    run(attached, optimizer, 2)
    if masked == "by apply_masks()":
        with torch.no_grad():
            model[2].weight.add_(1.0)
        attached.session.apply_masks()
    run(attached, optimizer, steps)
    assert outside(model) == 0
    by_data(model, dense())
    with (
        pytest.raises(pactrain.PacTrainError, match=r"2\.weight has .*by hand"),
        attached.session.guard(),
    ):
        attached.step()
    assert torch.equal(model[2].weight, dense()[LAYER])


def test_one_layer_alone_is_noticed(attach):
    model = pruned()
    attached, _ = begun(attach, model, "optimizer")
    model[2].weight.data.copy_(dense()[LAYER])
    with pytest.raises(pactrain.PacTrainError), attached.session.guard():
        attached.step()
    assert torch.equal(model[2].weight, dense()[LAYER])


def test_a_checkpoint_of_nearly_the_same_masks_loses_nothing(attach):
    """Where hardly any of what is outside them is not zero."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        small_net()[0], torch.nn.ReLU(), torch.nn.Linear(8, 900)
    )
    pactrain.prune(model, 0.5, exempt=())
    state = {n: 1.5 * v for n, v in model.state_dict().items()}
    mask = registry.get(model[2].weight)
    state["2.weight"].view(-1)[(~mask).view(-1).nonzero()[100, 0]] = 0.3
    attached, optimizer = begun(attach, model, "optimizer")
    by_data(model, state)
    with pytest.raises(pactrain.PacTrainError), attached.session.guard():
        attached.step()
    optimizer.step()
    assert torch.equal(model[2].weight, state["2.weight"])


def test_weights_of_the_same_beginning_are_noticed(attach):
    """The smallest tenth of a checkpoint that is hardly further than the model."""
    model = pruned(0.1)
    state = {n: 1.01 * v for n, v in small_net().state_dict().items()}
    attached, _ = begun(attach, model, "optimizer", steps=0)
    by_data(model, state)
    with pytest.raises(pactrain.PacTrainError), attached.session.guard():
        attached.step()
    assert torch.equal(model[2].weight, state[LAYER])


def test_pruning_again_after_copying_begins_anew(attach):
    model = pruned()
    attached, optimizer = begun(attach, model, "optimizer")
    still(optimizer)
    by_data(model, dense())
    pactrain.prune(model, 0.5)
    largest = dense()[LAYER].abs().reshape(-1).topk(32).indices
    assert registry.get(model[2].weight).reshape(-1)[largest].all()
    run(attached, optimizer, 2)
    assert torch.equal(model[2].weight, dense()[LAYER])


def test_masks_that_were_given_after_copying_are_the_newest(attach):
    model = pruned()
    attached, optimizer = begun(attach, model, "optimizer")
    by_data(model, dense())
    wanted = torch.eye(8)
    attached.session.set_masks({LAYER: wanted})
    run(attached, optimizer, 2)
    activate(attached, version=2)
    run(attached, optimizer, 2)
    assert torch.equal(model[2].weight != 0, wanted.bool())


def test_weights_that_are_swapped_and_put_back_are_left_alone(attach):
    model = pruned()
    attached, optimizer = begun(attach, model, "optimizer")
    for _ in range(5):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        by_data(model, dense())
        model(torch.ones(1, 6))
        torch._foreach_copy_([p.data for p in model.parameters()], before)
        run(attached, optimizer, 1)
    assert outside(model) == 0


@pytest.mark.parametrize("make", ["clamp", "noise", "centred"])
def test_what_a_script_does_to_weights_after_each_step_is_masked_as_ever(attach, make):
    model = pruned()
    attached, optimizer = begun(attach, model, "optimizer")
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        run(attached, optimizer, 1)
        for parameter in model.parameters():
            noise = 1e-4 * torch.randn(parameter.shape, generator=generator)
            if make == "clamp":
                parameter.data.clamp_(-0.3, 0.3)
            elif make == "noise":
                parameter.data.add_(noise)
            elif parameter.dim() > 1:
                parameter.data.sub_(1e-4)
    attached.session.apply_masks()
    assert outside(model) == 0


def test_frozen_weights_that_were_copied_are_the_ones_that_stay(attach):
    model = small_net()
    pactrain.prune(model, 0.5, kind="freeze")
    dropped = ~registry.get(model[2].weight)
    attached, optimizer = begun(attach, model, "optimizer")
    by_data(model, dense())
    run(attached, optimizer, 3)
    assert torch.equal(model[2].weight[dropped], dense()[LAYER][dropped])


def test_at_the_end_nothing_of_a_copy_is_zeroed(attach, caplog):
    model = pruned()
    attached, _ = begun(attach, model, "by hand")
    by_data(model, dense())
    attached.session.close()
    assert torch.equal(model[2].weight, dense()[LAYER])
    assert "weights outside the masks are not zero" in caplog.text


@pytest.fixture
def one_process(monkeypatch):
    for name in LAUNCHER:
        monkeypatch.delenv(name, raising=False)
    yield
    for session in list(alone):
        session.close()


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(4, 6)).square().mean().backward()
    optimizer.step()


@pytest.mark.filterwarnings("ignore:.*nothing to exchange")
@ways
@by_whom
@pytest.mark.parametrize("steps", [0, 1, 6])
@pytest.mark.parametrize("state", [trained(), dense()], ids=["pruned", "dense"])
def test_it_is_so_in_one_process(one_process, copy_in, script, steps, state):
    model = pruned()
    pactrain.attach(model)
    optimizer = ByHand(model, 0.9)
    if script == "optimizer":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        step(model, optimizer)
    still(optimizer)
    copy_in(model, state)
    if state[LAYER].all():
        for _ in range(2):
            with pytest.raises(
                pactrain.PacTrainError, match=r"2\.weight has .*by hand"
            ):
                step(model, optimizer)
        pactrain.prune(model, 0.5)
        step(model, optimizer)
        largest = state[LAYER].abs().reshape(-1).topk(32).indices
        assert registry.get(model[2].weight).reshape(-1)[largest].all()
    else:
        step(model, optimizer)
        step(model, optimizer)
        assert is_lossless(model, state)


@pytest.mark.filterwarnings("ignore:.*nothing to exchange")
def test_in_one_process_nothing_of_a_copy_is_zeroed_at_the_end(one_process, caplog):
    model = pruned()
    session = pactrain.attach(model)
    optimizer = ByHand(model, 0.9)
    step(model, optimizer)
    by_data(model, dense())
    session.close()
    assert torch.equal(model[2].weight, dense()[LAYER])
    assert "weights outside the masks are not zero" in caplog.text


class Adam(ByHand):
    def __init__(self, model, rate=1e-3):
        super().__init__(model)
        self.squares = [torch.zeros_like(p) for p in model.parameters()]
        self.rate = rate
        self.steps = 0

    def step(self):
        self.steps += 1
        moments = zip(self.model.parameters(), self.buffers, self.squares, strict=True)
        for p, mean, square in moments:
            mean.mul_(0.9).add_(p.grad, alpha=0.1)
            square.mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
            mean_now = mean / (1 - 0.9**self.steps)
            square_now = square / (1 - 0.999**self.steps)
            p.data.sub_(self.rate * mean_now / (square_now.sqrt() + 1e-8))


@pytest.mark.parametrize("make", [ByHand, lambda m: ByHand(m, 0.9, 0.01), Adam])
@pytest.mark.parametrize("first", [0, 7])
def test_steps_by_hand_are_no_copies_while_masks_come_and_change(attach, make, first):
    """Moments that are not masked leave something outside new masks."""
    model = pruned()
    attached = attach(model)
    script = make(model)
    for step in range(40):
        if step == first:
            activate(attached)
        if step == 15:
            pactrain.prune(model, 0.75)
        if step == 18:
            activate(attached, version=2)
        run(attached, script, 1)
    attached.session.close()
    assert outside(model) == 0


def net_of(attach, one, kind):
    """Pruned, and what makes a backward pass and a step of it."""
    model = small_net()
    pactrain.prune(model, 0.5, kind=kind)
    if one:
        pactrain.attach(model)
        return model, lambda: model(torch.ones(4, 6)).square().mean().backward()
    attached = attach(model)
    activate(attached)

    def backward():
        with attached.session.guard():
            attached.step()

    return model, backward


worlds = pytest.mark.parametrize("one", [False, True], ids=["ranks", "one process"])


@pytest.mark.filterwarnings("ignore:.*nothing to exchange")
@worlds
@pytest.mark.parametrize("steps", [0, 1, 6])
def test_what_is_copied_between_backward_and_step_is_not_zeroed(
    one_process, attach, one, steps
):
    model, backward = net_of(attach, one, "zero")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        backward()
        optimizer.step()
    optimizer.zero_grad()
    backward()
    by_data(model, dense())
    still(optimizer)
    with pytest.raises(pactrain.PacTrainError, match=r"2\.weight has .*by hand"):
        optimizer.step()
        optimizer.zero_grad()
        backward()
    assert torch.equal(model[2].weight, dense()[LAYER])


@pytest.mark.filterwarnings("ignore:.*nothing to exchange")
@worlds
def test_frozen_weights_that_are_rounded_for_a_pass_stay_what_they_were(
    one_process, attach, one
):
    model, backward = net_of(attach, one, "freeze")
    dropped = ~registry.get(model[2].weight)
    before = model[2].weight.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    for _ in range(12):
        latent = model[2].weight.detach().clone()
        model[2].weight.data.copy_((4 * latent).round() / 4)
        optimizer.zero_grad()
        backward()
        model[2].weight.data.copy_(latent)
        optimizer.step()
    assert torch.equal(model[2].weight[dropped], before[dropped])


@pytest.mark.parametrize("make", ["a large step", "rounding"])
def test_until_other_masks_are_in_force_large_steps_by_hand_are_steps(attach, make):
    model = pruned()
    attached, script = begun(attach, model, "by hand")
    pactrain.prune(model, 0.75)
    if make == "a large step":
        script.buffers[2].mul_(6)
    for _ in range(3):
        run(attached, script, 1)
        if make == "rounding":
            for parameter in model.parameters():
                parameter.data.copy_((128 * parameter).round() / 128)
    activate(attached, version=2)
    run(attached, script, 2)
    attached.session.close()
    assert outside(model) == 0
