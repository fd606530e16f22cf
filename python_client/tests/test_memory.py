"""What a rank holds beside its model: one byte per weight of masks, no scores."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from fake_native import activate
from torch import nn

import pactrain
from pactrain import scores

WIDTH, LAYERS = 64, 4
ELEMENTS = LAYERS * WIDTH**2


def network():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def bool_bytes():
    """Of all bool tensors that are alive, views counted once."""
    gc.collect()
    storages = {}
    for item in gc.get_objects():
        if isinstance(item, torch.Tensor) and item.dtype == torch.bool:
            storage = item.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(size for size in storages.values() if size >= WIDTH**2)


def change_twice(attached, optimizer):
    """Other masks come in force."""
    for version, amount in enumerate((0.5, 0.7), 1):
        pactrain.prune(attached.ddp.module, amount, exempt=())
        attached.step(torch.ones(4, WIDTH), optimizer)
        activate(attached, version)
        for _ in range(2):
            attached.step(torch.ones(4, WIDTH), optimizer)


@pytest.mark.parametrize("wrapper", ["attach", "wrap"])
def test_masks_are_there_once(request, wrapper):
    before = bool_bytes()
    model = network()
    pactrain.prune(model, 0.3, exempt=())
    assert bool_bytes() - before == ELEMENTS
    attached = request.getfixturevalue(wrapper)(model)
    attached.step(torch.ones(4, WIDTH))  # FULL.
    assert bool_bytes() - before == ELEMENTS
    change_twice(attached, torch.optim.SGD(model.parameters(), lr=0.1))
    assert attached.session.stats()["pactrain/active_keep"] < 0.35
    assert bool_bytes() - before == ELEMENTS


def test_masks_in_one_process_are_there_once():
    before = bool_bytes()
    model = network()
    pactrain.prune(model, 0.3, exempt=())
    with pytest.warns(UserWarning, match="nothing to exchange"):
        session = pactrain.attach(model)
    model(torch.ones(4, WIDTH)).sum().backward()
    assert bool_bytes() - before == ELEMENTS
    session.close()


@pytest.mark.parametrize("method", ["magnitude", "random"])
def test_scores_of_few_layers_are_there_at_a_time(monkeypatch, method):
    alive, most = [], []
    original = getattr(scores, method)

    def counted(*arguments):
        for score in original(*arguments):
            alive.append(weakref.ref(score))
            most.append(sum(ref() is not None for ref in alive))
            yield score

    monkeypatch.setattr(scores, method, counted)
    pactrain.prune(network(), 0.5, exempt=(), method=method)
    assert len(most) == LAYERS
    assert max(most) <= 2
