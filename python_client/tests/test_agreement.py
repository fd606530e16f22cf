from __future__ import annotations

import dataclasses
import threading

import pytest
import torch
from fake_native import FakeJob, digest_of
from small_nets import small_net

import pactrain
from pactrain.agreement import Settings, agree, broadcast
from pactrain.mask_source import MaskSource
from pactrain.masks import make_mask_set
from pactrain.parameters import ParameterTable

SETTINGS = Settings(
    gse=1,
    sync_masks=1,
    buffer_sync_interval=50,
    parameter_check_interval=100,
    buffer_bytes=0,
    settle_steps=1,
    on_shrink=0,
)


def changed(**fields):
    return dataclasses.replace(SETTINGS, **fields)


def on_all_ranks(models, call):
    """What call(native, table, masks) returned or raised at each rank."""
    job = FakeJob(len(models))
    results = [None] * len(models)

    def run(rank):
        table = ParameterTable(models[rank])
        declared = MaskSource(models[rank], table).read()
        mine = make_mask_set(table, declared, digest_of)
        try:
            results[rank] = call(job.rank(rank), table, mine)
        except pactrain.PacTrainError as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(r,)) for r in range(len(models))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return results


def agree_all(models, settings):
    return on_all_ranks(
        models,
        lambda native, table, mine: agree(native, table, mine, settings[native.rank]),
    )


def pruned(seed, kind="zero"):
    model = small_net(seed)
    pactrain.prune(model, 0.5, kind=kind)
    return model


def test_equal_masks_are_not_sent():
    results = agree_all([pruned(0), pruned(0)], [SETTINGS] * 2)
    assert results == [(None, 1)] * 2


def test_all_ranks_get_rank_zeros_masks():
    models = [pruned(0), pruned(1), small_net(2)]
    results = agree_all(models, [SETTINGS] * 3)
    expected = MaskSource(models[0], ParameterTable(models[0])).read().masks
    for masks, _ in results:
        assert set(masks.masks) == {"2.weight"}
        assert torch.equal(masks.masks["2.weight"], expected["2.weight"])
        assert not masks.frozen


@pytest.mark.parametrize("kinds", [("freeze", "zero"), ("zero", "freeze")])
def test_all_ranks_get_rank_zeros_kinds(kinds):
    results = agree_all([pruned(0, kind) for kind in kinds], [SETTINGS] * 2)
    frozen = {"2.weight"} if kinds[0] == "freeze" else set()
    assert [masks.frozen for masks, _ in results] == [frozen] * 2


def test_an_unpruned_rank_zero_clears_all_masks():
    results = agree_all([small_net(0), pruned(1)], [SETTINGS] * 2)
    assert [masks.masks for masks, _ in results] == [{}, {}]


def test_without_sync_masks_a_difference_is_refused_on_all_ranks():
    results = agree_all([pruned(0), pruned(1)], [changed(sync_masks=0)] * 2)
    assert all(isinstance(result, pactrain.RefusedError) for result in results)
    assert "rank 0 has" in str(results[1])
    assert "rank 1 has" in str(results[1])


def test_settings_that_differ_are_refused_by_name_on_all_ranks():
    settings = [SETTINGS, changed(buffer_sync_interval=20)]
    for result in agree_all([pruned(0), pruned(0)], settings):
        assert isinstance(result, pactrain.RefusedError)
        assert "buffer_sync_interval differs: rank 0 has 50" in str(result)
        assert "rank 1 has 20" in str(result)


@pytest.mark.parametrize("failing", [{0}, {1}, {33}, {2, 33}])
def test_a_rank_that_could_not_prune_fails_all(failing):
    world = 34
    models = [pruned(0)] * world
    errors = on_all_ranks(
        models,
        lambda native, table, mine: broadcast(
            native, table, mine, native.rank in failing
        ),
    )
    for error in errors:
        assert isinstance(error, pactrain.PacTrainError)
        assert f"prune() failed on rank {min(failing)}, whose" in str(error)


def test_settle_steps_are_rank_zeros():
    settings = [changed(settle_steps=3), SETTINGS]
    results = agree_all([pruned(0), small_net(1)], settings)
    assert [settle_steps for _, settle_steps in results] == [3, 3]


@pytest.mark.parametrize("ranks", [1, 5])
def test_any_number_of_ranks(ranks):
    results = agree_all([pruned(0)] * ranks, [SETTINGS] * ranks)
    assert all(masks is None for masks, _ in results)


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"settle_steps": 3}, "settle differs: rank 0 has 10, rank 1 has 3"),
        ({"track": 0}, "masks differs: rank 0 has 'track', rank 1 has declared"),
    ],
)
def test_ranks_that_track_masks_do_so_alike(other, text):
    mine = {"track": 1, "settle_steps": 10}
    settings = [changed(**mine), changed(**{**mine, **other})]
    for result in agree_all([small_net(), small_net()], settings):
        assert isinstance(result, pactrain.RefusedError)
        assert text in str(result)


def test_another_settle_of_declared_masks_is_said_to_be_replaced(caplog):
    settings = [SETTINGS, changed(settle_steps=7)]
    results = agree_all([pruned(0), pruned(0)], settings)
    assert [settle_steps for _, settle_steps in results] == [1, 1]
    assert [record.message for record in caplog.records] == [
        "rank 1: settle=7 was replaced by rank 0's, 1"
    ]
