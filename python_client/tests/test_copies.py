"""Copies of an attached model: as with plain DDP, without a session, with masks."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from fake_native import submitted
from small_nets import pruned, small_net
from torch.optim.swa_utils import AveragedModel

import pactrain
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
        assert registry.is_frozen(way(model)[2].weight)


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
