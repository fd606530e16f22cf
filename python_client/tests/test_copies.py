"""Copies of an attached model: as with plain DDP, without a session, with masks."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from fake_native import activate, submitted
from small_nets import pruned, small_net
from torch.optim.swa_utils import AveragedModel

import pactrain
from pactrain import averages
from pactrain.masks import registry


def by_torch_save(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": by_torch_save,
    "AveragedModel": lambda model: AveragedModel(model).module,
}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())


def masks_of(model):
    return [registry.get(parameter) for parameter in model.parameters()]


def equal(ours, theirs):
    return all(
        a is b is None or torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)
    )


@ways
def test_an_attached_model_is_copied_with_its_masks(attach, way):
    attached = attach(pruned())
    attached.step()
    clone = way(attached.ddp)
    assert any(mask is not None for mask in masks_of(clone))
    assert equal(masks_of(clone), masks_of(attached.ddp))
    assert equal(clone.parameters(), attached.ddp.parameters())
    attached.step()  # The copy has taken nothing away.


@ways
def test_a_copy_has_no_session_and_may_get_one(attach, natives, way):
    attached = attach(pruned())
    clone = way(attached.ddp)
    clone(torch.ones(4, 6)).mean().backward()
    assert submitted(attached.native) == 0
    session = pactrain.attach(clone)
    clone(torch.ones(4, 6)).mean().backward()
    assert submitted(natives[-1]) == 1
    assert session.stats()["pactrain/keep"] < 1


@ways
def test_a_copy_of_the_model_inside_has_its_masks(attach, way):
    attached = attach(pruned())
    assert equal(masks_of(way(attached.ddp.module)), masks_of(attached.ddp))


def test_a_model_is_copied_with_its_masks_before_it_is_attached(attach):
    clone = copy.deepcopy(pruned())
    assert attach(clone).session.stats()["pactrain/keep"] < 1


def test_a_copy_keeps_the_kind_of_its_masks():
    model = small_net()
    pactrain.prune(model, 0.5, kind="freeze")
    for way in WAYS.values():
        assert registry.of(way(model)[2].weight).frozen


def test_masks_of_a_copy_are_its_own(attach):
    model = pruned()
    clone = copy.deepcopy(model)
    registry.set(clone[2].weight, torch.ones(8, 8))
    assert not registry.get(model[2].weight).all()


def test_a_copy_of_a_copy_has_masks():
    assert registry.get(copy.deepcopy(copy.deepcopy(pruned()))[2].weight) is not None


def test_a_copy_sends_its_buffers_as_plain_ddp_does(attach):
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4))
    clone = copy.deepcopy(attach(model).ddp)
    assert clone.will_sync_module_buffers()


def test_a_model_is_attached_again_after_close(attach, natives):
    attached = attach(pruned(), buffer_sync_interval=7)
    attached.step()
    attached.session.close()
    session = pactrain.attach(attached.ddp, state=attached.session.state_dict())
    for _ in range(4):
        attached.step()
    assert submitted(natives[0]) == 1
    assert session.stats()["pactrain/steps"] == 4
    assert len(natives[1].votes) == 1


def test_buffers_are_synchronised_after_the_second_attach_too(attach, natives):
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4))
    attached = attach(model)
    attached.session.close()
    session = pactrain.attach(attached.ddp, buffer_sync_interval=1)
    attached.step()
    assert session.stats()["pactrain/buffer_syncs"] == 1


def test_a_copy_of_our_own_wrapper_is_evaluated(wrap):
    wrapped = wrap(pruned())
    wrapped.step()
    clone = copy.deepcopy(wrapped.ddp)
    assert equal(masks_of(clone), masks_of(wrapped.ddp))
    inputs = torch.ones(4, 6)
    assert torch.equal(clone.eval()(inputs), wrapped.ddp(inputs))
    with pytest.raises(pactrain.PacTrainError, match="has no session"):
        clone.train()(inputs)
    by_torch_save(wrapped.ddp).eval()(inputs)


def scheduled(attach, update, steps=24, amount=0.8):
    """A model that is pruned little by little; `update(model, step)` after each step.
    Masks are in force with the step after they are declared."""
    torch.manual_seed(0)
    model = pruned(0.25)
    attached = attach(model)
    activate(attached)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = pactrain.PruningSchedule(model, amount, steps=12, every=4)
    version = 1
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(4, 6, generator=generator)
        attached.step(inputs, optimizer)
        if schedule.step() is not None:
            attached.step(inputs)  # Votes.
            version += 1
            activate(attached, version)
        update(model, step)
    assert schedule.done
    return model


class Averages:
    """An EMA by AveragedModel and one by hand, without gradients."""

    def __init__(self):
        self.all = []

    def __call__(self, model, step):
        if step == 0:
            average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.8)
            self.all.append(AveragedModel(model, multi_avg_fn=average))
            self.all.append(copy.deepcopy(model).requires_grad_(False))
        self.all[0].update_parameters(model)
        for mine, theirs in zip(
            self.all[1].parameters(), model.parameters(), strict=True
        ):
            mine.lerp_(theirs.detach(), 0.2)


def test_an_average_has_the_masks_that_the_model_has_by_now(
    attach, caplog, monkeypatch
):
    monkeypatch.setattr(averages, "_told", False)
    copies = Averages()
    model = scheduled(attach, copies)
    mask = registry.get(model[2].weight)
    assert int(mask.sum()) == 13
    for average in copies.all:
        net = getattr(average, "module", average)
        assert pactrain.sparsity(average).outside == int(
            (net[2].weight[~mask] != 0).sum()
        )
        pactrain.apply_masks(average)
        assert torch.equal(net[2].weight != 0, mask)
    assert caplog.text.count("average of a model whose masks have changed") == 1


def test_an_average_from_before_the_first_masks_gets_them(attach):
    model = small_net()
    attached = attach(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.8)
    ema = AveragedModel(model, multi_avg_fn=average)
    best = copy.deepcopy(model)
    for step in range(20):
        if step == 3:
            pactrain.prune(model, 0.5)
        attached.step(torch.randn(4, 6), optimizer)
        if step == 3:
            activate(attached)
        ema.update_parameters(model)
    mask = registry.get(model[2].weight)
    pactrain.apply_masks(ema)
    assert torch.equal(ema.module[2].weight != 0, mask)
    assert registry.get(best[2].weight) is None  # Its weights do not fade.


def test_what_is_no_average_keeps_its_masks(attach):
    """Else weights would be lost that trained within them."""
    kept = {}

    def update(model, step):
        if step == 1:
            kept["best"] = copy.deepcopy(model)
            kept["best, written again"] = copy.deepcopy(model)
            kept["trained"] = copy.deepcopy(model)
            kept["mask"] = registry.get(model[2].weight)
        if step == 2:
            kept["best, written again"].load_state_dict(model.state_dict())
        trained = kept.get("trained")
        if trained is not None:
            inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
            trained.zero_grad()
            trained(inputs).square().mean().backward()
            for parameter in trained.parameters():
                parameter.data.sub_(parameter.grad, alpha=0.1)

    model = scheduled(attach, update)
    assert not torch.equal(registry.get(model[2].weight), kept["mask"])
    for name in ("best", "best, written again", "trained"):
        pactrain.apply_masks(kept[name])
        assert torch.equal(registry.get(kept[name][2].weight), kept["mask"]), name


def test_an_average_of_masks_that_grow_loses_nothing_of_what_has_grown(attach):
    model = pruned()
    attached = attach(model)
    activate(attached)
    attached.step()
    average = copy.deepcopy(model)
    attached.session.set_masks({"2.weight": torch.ones(8, 8)})
    grown = ~registry.get(average[2].weight)
    with torch.no_grad():
        for mine in average[2].weight.data, model[2].weight.data:
            mine[grown] = 0.1
    pactrain.apply_masks(average)
    assert bool((average[2].weight[grown] == 0.1).all())
