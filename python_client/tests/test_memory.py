"""What a rank holds beside its model: one byte per weight of masks, no scores."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from fake_native import activate
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import pactrain
from pactrain import layout, scores, storage

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


class LargeResults(TorchDispatchMode):
    """Notes the operations that make bools or places for a whole layer, or more."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, operation, types, arguments=(), keywords=None):
        result = operation(*arguments, **(keywords or {}))
        if isinstance(result, torch.Tensor) and result.numel() >= WIDTH**2:
            shared = result.untyped_storage().data_ptr() in {
                item.untyped_storage().data_ptr()
                for item in arguments
                if isinstance(item, torch.Tensor)
            }
            if result.dtype in (torch.bool, torch.int64) and not shared:
                self.made.append(str(operation.overloadpacket))
        return result


def change(attached, optimizer, *amounts):
    """Other masks come in force."""
    for version, amount in enumerate(amounts, 1):
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
    change(attached, torch.optim.SGD(model.parameters(), lr=0.1), 0.5, 0.7)
    assert attached.session.stats()["pactrain/active_keep"] < 0.35
    assert bool_bytes() - before == ELEMENTS


@pytest.mark.parametrize("wrapper", ["attach", "wrap"])
def test_masks_come_in_force_without_copies(request, wrapper, monkeypatch):
    """They do while gradients and the memory of FULL steps are there, too."""
    for module, limit in ((scores, "PIECE"), (layout, "_PIECE"), (storage, "_DRAWN")):
        monkeypatch.setattr(module, limit, WIDTH)
    model = network()
    attached = request.getfixturevalue(wrapper)(model)
    attached.step(torch.ones(4, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    with LargeResults() as large:
        change(attached, optimizer, 0.7)
    assert attached.session.stats()["pactrain/active_keep"] < 0.35
    assert large.made == ["aten.empty_strided"] * LAYERS  # The masks.


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
