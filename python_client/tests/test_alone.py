"""A bare model in a world of one: nothing is exchanged, masks act."""

from __future__ import annotations

import copy
import os

import pytest
import torch
import torch.distributed as dist
from conftest import LAUNCHER
from small_nets import outside, pruned, small_net
from test_enforced_weights import ByHand
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils import prune as torch_prune

import pactrain
from pactrain.alone import alone
from pactrain.masks import registry

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing to exchange")


@pytest.fixture(autouse=True)
def one_process(monkeypatch):
    for name in LAUNCHER:
        monkeypatch.delenv(name, raising=False)
    yield
    for session in list(alone):
        session.close()


def train(model, steps=5, optimizer=None):
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
        model(inputs).square().mean().backward()
        optimizer.step()
    return optimizer


def test_without_a_session_weights_come_back():
    model = pruned()
    train(model)
    assert outside(model)


def test_masks_act(recwarn):
    model = pruned()
    session = pactrain.attach(model)
    assert "its masks act in this one process" in str(recwarn[0].message)
    train(model)
    assert not outside(model)
    assert session.masks_settled
    stats = session.stats()
    assert (stats["pactrain/steps"], stats["pactrain/masks_active"]) == (5, 1)
    assert stats["pactrain/active_keep"] == stats["pactrain/keep"] < 1
    assert "5 optimizer steps in one process" in session.summary()


def test_gradients_are_masked_as_in_a_job_of_one_rank():
    model = pruned()
    pactrain.attach(model)
    train(model, 3, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    outside = ~registry.get(model[2].weight)
    assert not model[2].weight.grad[outside].any()
    assert model[2].weight.grad.any()


def test_masks_act_without_an_optimizer_of_torch():
    model = pruned()
    pactrain.attach(model)
    for _ in range(3):
        model.zero_grad()
        model(torch.ones(4, 6)).square().mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(parameter.grad, alpha=-0.1)
    assert not outside(model)


def test_frozen_values_stay():
    model = small_net()
    pactrain.prune(model, 0.5, kind="freeze")
    before = model[2].weight.detach().clone()
    pactrain.attach(model)
    train(model)
    outside = ~registry.get(model[2].weight)
    assert torch.equal(model[2].weight[outside], before[outside])
    assert not torch.equal(model[2].weight, before)


def test_given_masks_act():
    model = small_net()
    pactrain.apply_masks(model, {"2.weight": torch.eye(8)})
    pactrain.attach(model, masks={"2.weight": torch.eye(8)})
    train(model, 1)
    assert int((model[2].weight != 0).sum()) <= 8


def test_gse_off_masks_nothing():
    model = pruned()
    session = pactrain.attach(model, gse=False)
    train(model)
    assert outside(model)
    assert session.stats()["pactrain/masks_active"] == 0


def test_pruning_in_mid_run_acts_from_the_next_step():
    model = small_net()
    pactrain.attach(model)
    optimizer = train(model, 2)
    pactrain.prune(model, 0.5)
    train(model, 1, optimizer)
    assert not outside(model)


def test_a_pruning_schedule_runs():
    model = small_net()
    session = pactrain.attach(model)
    schedule = pactrain.PruningSchedule(model, 0.5, steps=4, every=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        train(model, 1, optimizer)
        schedule.step()
    assert schedule.done
    assert not outside(model)
    assert session.stats()["pactrain/keep"] < 1


def test_a_state_goes_on_in_one_process_and_in_several(attach):
    model = pruned()
    session = pactrain.attach(model)
    train(model)
    state = session.state_dict()
    assert state["step"] == 5
    again = small_net()
    again.load_state_dict(model.state_dict())
    resumed = pactrain.attach(again, state=state)
    train(again)
    assert not outside(again)
    assert resumed.state_dict()["step"] == 10
    wider = small_net()
    wider.load_state_dict(model.state_dict())
    attached = attach(wider, state=state)
    assert attached.session.next_step >= 5
    assert attached.session.stats()["pactrain/keep"] < 1


@pytest.mark.parametrize("by_session", [False, True])
def test_weights_of_a_state_from_before_its_masks_acted_may_come_later(by_session):
    model = small_net()
    session = pactrain.attach(model)
    train(model, 2)
    pactrain.prune(model, 0.5)
    weights, state = copy.deepcopy(model.state_dict()), session.state_dict()
    assert not state["masks_active"]
    session.close()
    again = small_net(5)
    resumed = pactrain.attach(again, state=None if by_session else state)
    again.load_state_dict(weights)
    if by_session:
        resumed.load_state_dict(state)
    train(again, 1, torch.optim.SGD(again.parameters(), lr=0.0))
    mask = registry.get(again[2].weight)
    assert torch.equal(again[2].weight, weights["2.weight"] * mask)
    again.load_state_dict(small_net(6).state_dict())  # Not those of the state.
    with pytest.raises(pactrain.PacTrainError):
        train(again, 1)


def test_a_script_without_an_optimizer_loads_other_masks_after_its_first_step():
    model = pruned()
    state = pactrain.attach(model).state_dict()
    by_hand = ByHand(model)
    for session in list(alone):
        session.close()
    pactrain.attach(model, state=state)
    train(model, 1, by_hand)
    more = copy.deepcopy(model)
    pactrain.prune(more, 0.75)
    model.load_state_dict(more.state_dict())
    train(model, 2, by_hand)
    assert torch.equal(registry.get(model[2].weight), registry.get(more[2].weight))


def test_weights_that_are_loaded_after_prune_are_an_error():
    model = pruned()
    pactrain.attach(model)
    model.load_state_dict(small_net(3).state_dict())
    with pytest.raises(pactrain.PacTrainError, match="weights were loaded after prune"):
        train(model, 1)


def test_weights_that_were_pruned_elsewhere_bring_their_masks():
    checkpoint = trained_elsewhere()
    model = pruned()
    session = pactrain.attach(model)
    optimizer = train(model, 2)
    model.load_state_dict(checkpoint)
    before = model[2].weight.detach().clone()
    optimizer.param_groups[0]["lr"] = 0.0
    train(model, 1, optimizer)
    assert torch.equal(model[2].weight, before)
    assert torch.equal(registry.get(model[2].weight), before != 0)
    assert session.stats()["pactrain/masks_active"] == 1


def test_load_takes_the_zeros_of_a_checkpoint_pruned_by_another_amount():
    checkpoint = trained_elsewhere(0.75)
    model = pruned()
    session = pactrain.attach(model)
    session.load(checkpoint)
    train(model)
    assert torch.equal(registry.get(model[2].weight), checkpoint["2.weight"] != 0)
    assert not outside(model)


def test_steps_and_pins_are_checked_and_said_to_have_no_effect(caplog):
    with pytest.raises(pactrain.InvalidArgument, match="activate_at is 0"):
        pactrain.attach(pruned(), activate_at=0)
    pactrain.attach(pruned())
    assert "have no effect" not in caplog.text
    pactrain.attach(pruned(), activate_at=8)
    assert "activate_at, pin and pin_from have no effect" in caplog.text


def test_close_masks_what_is_left_and_says_what_it_cannot(caplog):
    model = pruned()
    session = pactrain.attach(model)
    train(model)
    with torch.no_grad():
        model[2].weight.fill_(1.0)
    session.close()
    assert "not reached: 32 weights outside the masks are not zero" in caplog.text


def trained_elsewhere(amount=0.5):
    model = small_net(9)
    pactrain.prune(model, amount)
    return copy.deepcopy(model.state_dict())


def test_a_model_of_torchs_pruning_is_left_to_torch():
    model = small_net()
    torch_prune.l1_unstructured(model[2], "weight", 0.5)
    session = pactrain.attach(model)
    train(model)
    assert session.stats()["pactrain/keep"] < 1


def test_close_leaves_the_model_alone():
    model = pruned()
    session = pactrain.attach(model)
    session.close()
    session.close()
    train(model)
    assert outside(model)
    pactrain.apply_masks(model)
    pactrain.attach(model)
    train(model)
    assert not outside(model)


def test_a_copy_has_no_session():
    model = pruned()
    pactrain.attach(model)
    clone = copy.deepcopy(model)
    train(clone)
    assert outside(clone)
    assert not outside(model)


def test_a_second_attach_is_refused():
    model = pruned()
    pactrain.attach(model)
    with pytest.raises(pactrain.RefusedError, match="attached already"):
        pactrain.attach(model)


def test_a_bare_model_is_refused_where_there_are_several_ranks(monkeypatch, group):
    for set_up in (
        lambda: monkeypatch.setattr(dist, "get_world_size", lambda: 2),
        lambda: (
            monkeypatch.setattr(dist, "is_initialized", lambda: False),
            monkeypatch.setenv("WORLD_SIZE", "2"),
            monkeypatch.setenv("RANK", "0"),
        ),
    ):
        set_up()
        with pytest.raises(
            pactrain.RefusedError, match=r"Sequential\) is not wrapped .* 2 ranks"
        ):
            pactrain.attach(pruned())


def test_numbers_are_reported_and_words_refused():
    session = pactrain.attach(small_net())
    session.report(loss=1.0, lr=0.5)
    assert session.stats()["pactrain/loss"] == 1.0
    with pytest.raises(pactrain.InvalidArgument, match="loss is 'low'"):
        session.report(loss="low")
    with session.guard():
        pass


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.SparseAdam])
def test_masks_act_on_an_embedding_with_sparse_gradients(optimizer):
    model = torch.nn.Sequential(torch.nn.Embedding(8, 6, sparse=True), small_net())
    pactrain.prune(model, 0.5, exempt=("1",))
    pactrain.attach(model)
    mask = registry.get(model[0].weight)
    trainer = optimizer(model[0].parameters(), lr=0.1)
    for _ in range(3):
        trainer.zero_grad()
        model(torch.tensor([1, 2, 2])).sum().backward()
        assert not model[0].weight.grad.to_dense()[~mask].any()
        trainer.step()
    assert not model[0].weight[~mask].any()


@pytest.mark.parametrize("kind", ["zero", "freeze"])
def test_masks_of_layers_that_are_unfrozen_later_act(kind):
    model = small_net()
    pactrain.prune(model, 0.5, kind=kind)
    mask = registry.get(model[2].weight)
    before = model[2].weight.detach().clone()
    model[2].weight.requires_grad_(False)
    session = pactrain.attach(model)
    optimizer = train(model, 2)
    model[2].weight.requires_grad_(True)
    train(model, 3, optimizer)
    assert torch.equal(model[2].weight[~mask], before[~mask])
    assert not torch.equal(model[2].weight[mask], before[mask])
    assert session.stats()["pactrain/keep"] < 1
    session.close()


def test_a_checkpoint_that_is_loaded_part_by_part_brings_its_masks():
    donor, model = (
        torch.nn.Sequential(small_net(), torch.nn.Linear(3, 8)) for _ in "ab"
    )
    pactrain.prune(donor, 0.75)
    pactrain.prune(model, 0.5)
    for part, theirs in zip(model, donor, strict=True):
        part.load_state_dict(theirs.state_dict())
    pactrain.attach(model)
    train(model)
    assert torch.equal(model[0][2].weight == 0, donor[0][2].weight == 0)


@pytest.mark.parametrize("how", ["loaded", "copied by hand", "into the frozen layer"])
def test_unfreezing_a_layer_hides_no_weights_that_came_before(how, caplog):
    model, others = (
        torch.nn.Sequential(small_net(seed), torch.nn.Linear(3, 8), small_net(seed)[2])
        for seed in (0, 3)
    )
    pactrain.prune(model, 0.5)
    model[0][2].weight.requires_grad_(False)
    session = pactrain.attach(model)
    others = others.state_dict()
    if how == "loaded":
        model.load_state_dict(others)
    else:
        if how == "into the frozen layer":
            others = {**model.state_dict(), "0.2.weight": others["0.2.weight"]}
            others = copy.deepcopy(others)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(others[name])
    model[0][2].weight.requires_grad_(True)
    with pytest.raises(pactrain.PacTrainError, match=r"\.weight"):
        train(model, 1)
    assert all(
        torch.equal(value, others[name]) for name, value in model.state_dict().items()
    )
    session.close()


def test_nothing_is_left_outside_the_masks_where_adam_makes_no_numbers_of_zeros():
    model = pruned().half()
    pactrain.attach(model)
    mask = registry.get(model[2].weight)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(4, 6).half()).square().mean().backward()
        optimizer.step()
    assert bool((model[2].weight[~mask] == 0).all())


def test_momentum_by_hand_does_not_bring_weights_back_beneath_new_masks(caplog):
    caplog.set_level("INFO", "pactrain")
    model = pruned(0.25)
    pactrain.attach(model)
    script = ByHand(model, momentum=0.9)
    train(model, 5, script)
    pactrain.prune(model, 0.75)
    train(model, 2, script)
    seen = []
    model[2].register_forward_pre_hook(lambda *_: seen.append(outside(model)))
    train(model, 5, script)
    assert seen == [0] * 5
    assert caplog.text.count("weights are masked before each forward pass") == 1


def test_with_an_optimizer_of_torch_nothing_is_hooked_when_masks_change():
    model = pruned(0.25)
    pactrain.attach(model)
    optimizer = train(model, 5, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
    pactrain.prune(model, 0.75)
    train(model, 5, optimizer)
    assert not model._forward_pre_hooks
    assert not outside(model)


def test_weights_changed_by_hand_are_masked_also_after_a_layer_is_unfrozen():
    model = pruned()
    model[0].requires_grad_(False)
    pactrain.attach(model)
    by_hand = Noisy(model)
    train(model, 3, by_hand)
    seen = []
    model[2].register_forward_pre_hook(lambda *_: seen.append(outside(model)))
    train(model, 1, by_hand)
    assert not any(seen)
    model[0].requires_grad_(True)
    train(model, 4, by_hand)
    assert not any(seen)


class Noisy(ByHand):
    """Leaves something outside the masks."""

    def step(self):
        for p in self.model.parameters():
            if p.grad is not None:
                p.data.sub_(0.01 * p.grad + 1e-4)


@pytest.mark.parametrize("by_session", [False, True])
def test_what_was_pruned_since_a_state_was_saved_stays_pruned(by_session):
    model = pruned()
    session = pactrain.attach(model)
    train(model)
    state = session.state_dict()
    if by_session:
        pactrain.prune(model, 0.8)
        train(model, 1)
        session.load_state_dict(state)
    else:
        session.close()
        pactrain.prune(model, 0.8)
        pactrain.attach(model, state=state)
    mask = registry.get(model[2].weight)
    train(model)
    assert float((model[2].weight == 0).float().mean()) >= 0.79
    assert torch.equal(registry.get(model[2].weight) | mask, mask)


def test_masks_follow_names_where_a_parametrization_goes(caplog):
    model = small_net()
    parametrizations.weight_norm(model[2])
    pactrain.prune(model, 0.5)
    session = pactrain.attach(model)
    train(model)
    zeros = model[2].weight == 0
    parametrize.remove_parametrizations(model[2], "weight")
    train(model)
    session.close()
    assert int(zeros.sum()) == 32
    assert not model[2].weight[zeros].any()
    assert not caplog.records


def test_masks_follow_names_where_a_parametrization_comes():
    model = pruned()
    pactrain.attach(model)
    train(model)
    zeros = model[2].weight == 0
    parametrizations.weight_norm(model[2])
    train(model)
    assert not model[2].weight[zeros].any()


def test_masks_follow_names_where_a_module_is_replaced(caplog):
    model = pruned()
    session = pactrain.attach(model)
    train(model)
    zeros = model[2].weight == 0
    new = nn.Linear(8, 8)
    new.load_state_dict(model[2].state_dict())
    model[2] = new
    train(model, 3, torch.optim.SGD(model.parameters(), lr=0.1))
    session.close()
    assert not model[2].weight[zeros].any()
    assert "gone" not in caplog.text


def test_masks_that_do_not_fit_a_new_module_are_told_of(caplog):
    model = pruned()
    pactrain.attach(model)
    train(model)
    model[2] = nn.Linear(8, 8)
    train(model)
    assert "2.weight: other parameters are in their place" in caplog.text
    assert model[2].weight.all()


def test_a_checkpoint_of_weights_that_are_moved_with_noise_is_masked():
    model = pruned()
    session = pactrain.attach(model)
    mask = registry.get(model[2].weight)
    for step in range(4):
        train(model, 1, ByHand(model))
        generator = torch.Generator().manual_seed(step)
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.sub_(0.001 * noise)
    saved = copy.deepcopy((model[2].state_dict(), session.state_dict()))
    assert not saved[0]["weight"][~mask].any()
    assert saved[1]["masks_active"]


def test_two_models_that_share_parameters_are_refused():
    encoder = nn.Linear(6, 8)
    first, second = (nn.Sequential(encoder, nn.Linear(8, 3)) for _ in "ab")
    pactrain.attach(first)
    with pytest.raises(pactrain.RefusedError, match=r"0\.weight, 0\.bias: these"):
        pactrain.attach(second)


def test_masks_that_are_given_do_not_yield_to_those_of_prune():
    model = pruned(0.75)
    mask = torch.rand(8, 8, generator=torch.Generator().manual_seed(0)) > 0.3
    with pytest.raises(
        pactrain.PacTrainError, match=r"masks that attach\(\) was given"
    ):
        pactrain.attach(model, masks={"2.weight": mask})
    model = small_net()
    pactrain.apply_masks(model, {"2.weight": mask})
    pactrain.prune(model, 0.75)
    session = pactrain.attach(model, masks={"2.weight": mask})
    train(model, 2)
    session.close()
    assert torch.equal(registry.get(model[2].weight), mask)


def test_report_goes_on_in_one_process():
    model = pruned()
    session = pactrain.attach(model)
    got = []
    pactrain.report(session, lambda values, step: got.append((step, values)), every=2)
    train(model)
    session.close()
    assert [step for step, _ in got] == [2, 4, 5]
    assert got[-1][1]["pactrain/steps"] == 5
    with pytest.raises(pactrain.InvalidArgument, match="closed"):
        pactrain.report(session, print)


def test_training_that_goes_on_after_close_is_told_of_once(caplog):
    model = pruned()
    session = pactrain.attach(model)
    optimizer = train(model)
    session.close()
    train(model, 2, optimizer)
    assert caplog.text.count("training goes on after close()") == 1
    for call in (
        lambda: session.set_masks({}),
        lambda: session.load_state_dict(session.state_dict()),
        lambda: session.load(model.state_dict()),
    ):
        with pytest.raises(pactrain.PacTrainError, match="closed"):
            call()


def test_a_model_that_is_attached_again_is_not_told_of(caplog):
    model = pruned()
    session = pactrain.attach(model)
    optimizer = train(model)
    session.close()
    pactrain.attach(model)
    train(model, 2, optimizer)
    assert "goes on after close" not in caplog.text


def test_a_forked_child_does_not_end_the_session():
    model = pruned()
    session = pactrain.attach(model)
    child = os.fork()
    if child == 0:
        session.close()
        os._exit(0 if session in alone else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_complex_weights_have_masks_without_a_warning(recwarn):
    model = small_net()
    model.mix = nn.Parameter(torch.ones(8, 8, dtype=torch.complex64))
    with torch.no_grad():
        model.mix[:4] = 0
    pactrain.attach(model, masks={"mix": model.mix.detach() != 0})
    for _ in range(3):
        model.mix.grad = None
        (model.mix * 2j).real.square().sum().backward()
        with torch.no_grad():
            model.mix -= 0.01 * model.mix.grad
    assert not [w for w in recwarn if "complex" in str(w.message)]


def test_a_mask_of_another_shape_than_its_parameter_is_gone(caplog):
    model = pruned()
    model[2].weight.data = torch.randn(5, 8)  # As structured pruning leaves it.
    model[2].bias.data = torch.zeros(5)
    model[4].weight.data = torch.randn(3, 5)
    session = pactrain.attach(model)
    assert "a parameter of shape (8, 8) has shape (5, 8) now" in caplog.text
    train(model)
    session.close()
    assert pactrain.prune(model, 0.5).layers == (("2.weight", 40, 20),)


def test_nothing_is_said_of_the_mask_of_a_layer_that_is_frozen_later(caplog):
    model = pruned()
    session = pactrain.attach(model)
    train(model)
    model[2].requires_grad_(False)
    train(model)
    session.close()
    assert not caplog.text
    assert registry.get(model[2].weight) is not None
    assert outside(model) == 0
