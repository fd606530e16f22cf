"""Newcomers to a job that runs: they take its state from a rank that has it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from fake_native import FULL
from thread_ranks import FIRST, Place, Script, newcomer, one_joins, undisturbed

import pactrain
from pactrain.model_state import ModelState


@pytest.mark.parametrize("pruned", ["", "zero"])
def test_a_newcomer_takes_everything_and_trains_with_the_others(ranks, pruned):
    running = ranks(2)
    running.job.ends_at = FIRST + 3
    running.regroup.expected = 3
    for rank in range(2):
        running.start(rank, lambda rank=rank: Script(rank, pruned=pruned).run())
    running.start(2, lambda: newcomer(2, pruned=pruned))
    results = running.finish()
    assert not running.errors
    assert results[0].state() == results[1].state() == results[2].state()
    assert results[2].ddp.world.world_size == 3


@pytest.mark.parametrize("kind", ["zero", "freeze"])
def test_masks_in_force_stay_so_and_are_a_newcomers_too(ranks, kind):
    running = ranks(2)
    running.job.ends_at = FIRST + 5
    running.regroup.expected = 3

    def decide(step):
        if step < FIRST + 3:  # All have voted before.
            return FULL
        digest = running.natives[0].votes[0]["mask"]
        return dataclasses.replace(FULL, version=1, mask_digest=digest)

    running.job.decide = decide  # The next generation decides nothing.
    for rank in range(2):
        running.start(rank, lambda rank=rank: Script(rank, pruned=kind).run())
    running.start(2, lambda: newcomer(2, pruned=kind))
    results = running.finish()
    assert not running.errors
    assert results[0].state() == results[1].state() == results[2].state()
    for result in results.values():
        assert result.ddp.session.stats()["pactrain/masks_active"] == 1
        weight = result.ddp.module[0][2].weight
        outside = weight[~pactrain.masks.registry.get(weight)]
        assert bool(outside.any()) == (kind == "freeze")
    last_votes = {running.natives[rank].votes[-1]["mask"] for rank in range(3)}
    assert last_votes == {running.natives[0].votes[0]["mask"]}


def test_a_step_of_the_transfer_that_nobody_applied_is_done_again(ranks):
    """As the deadline of a step ends it if a newcomer is late."""
    wanted = undisturbed(ranks)
    running = ranks(2)
    running.job.ends_at = FIRST + 3

    def fail_once(job):
        for native in running.natives.values():
            native.fail_next = pactrain.StepNotAppliedError("too late.\nAgain.")

    running.regroup.on_formed = fail_once
    for rank in range(2):
        running.start(rank, lambda rank=rank: Script(rank).run())
    results = running.finish()
    assert not running.errors
    assert results[0].state() == wanted
    assert len(running.regroup.jobs) == 2


def test_a_newcomer_that_does_not_call_start_starts_in_its_first_forward_pass(ranks):
    running = one_joins(
        ranks, lambda: Script(0).run(), lambda: newcomer(1, start=False)
    )
    assert not running.errors
    results = running.results
    assert results[0].state()[:2] == results[1].state()[:2]


UNSHARED = "Rank 0 trains with an optimizer that it does not share"
REST = ", place (Place), scheduler (StepLR)"
REFUSALS = {
    UNSHARED: {"share": False},
    f"Rank 0 shares optimizer (SGD){REST}; this rank nothing": {"share": False},
    "gse differs: rank 0 has True, rank 1 has False": {"gse": False},
    f"optimizer (SGD){REST}; this rank optimizer (AdamW)": {"scaled": True},
}


@pytest.mark.parametrize("words", REFUSALS)
def test_a_newcomer_that_does_not_fit_is_refused_and_the_others_go_on(ranks, words):
    wanted = undisturbed(ranks, world_size=1)
    running = one_joins(
        ranks,
        lambda: Script(0, share=words != UNSHARED).run(),
        lambda: newcomer(1, **REFUSALS[words]),
    )
    assert words in str(running.errors[1])
    assert isinstance(running.errors[1], pactrain.RefusedError)
    assert running.natives[1].closed
    assert running.results[0].state() == wanted


def test_a_donor_that_cannot_give_its_state_says_why(ranks):
    class Odd(Place):
        def state_dict(self):
            return {"batch": self.batch, "odd": object() if self.batch else 0}

    def script(rank):
        made = Script(rank)
        made.place = Odd()
        made.ddp.share(place=made.place)
        return made

    running = one_joins(ranks, lambda: script(0).run(), lambda: newcomer(1))
    assert "Rank 0 cannot give its state: place has" in str(running.errors[1])
    assert running.results[0].ddp.world.world_size == 1


def test_a_state_that_does_not_fit_is_refused(ranks, monkeypatch):
    encode = ModelState.encode
    monkeypatch.setattr(
        ModelState, "encode", lambda self: (encode(self)[0][:-4], encode(self)[1])
    )
    running = one_joins(ranks, lambda: Script(0).run(), lambda: newcomer(1))
    assert isinstance(running.errors[1], pactrain.RefusedError)
    assert "The state that came has" in str(running.errors[1])
    assert running.results[0].ddp.world.world_size == 1


def test_what_the_script_does_not_take_leaves_the_rest_as_it_was(ranks):
    before, made = [], []

    class Odd(Place):
        def load_state_dict(self, state):
            self.batch = state["batch"]
            if self.batch:
                raise ValueError("too late")

    Odd.__name__ = "Place"

    def script():
        made.append(Script(1, seed=5))
        made[0].place = Odd()
        made[0].ddp.share(place=made[0].place)
        before.append(made[0].state())
        made[0].ddp.start()

    wanted = undisturbed(ranks, world_size=1)
    running = one_joins(ranks, lambda: Script(0).run(), script)
    assert isinstance(running.errors[1], pactrain.RefusedError)
    assert "place (Place) did not take the state that came from another rank: " in str(
        running.errors[1]
    )
    assert "ValueError: too late" in str(running.errors[1])
    assert made[0].state() == before[0]
    assert made[0].place.batch == 0
    assert running.results[0].state() == wanted


def test_other_parameters_than_the_donors_are_found(ranks):
    def script():
        made = Script(1).run(2)
        with torch.no_grad():
            made.ddp.module[0][0].weight[0, 0] += 1
        try:
            return made.run()
        finally:
            made.ddp.session.close()  # As a script's end does; rank 0 goes on.

    running = ranks(2)
    running.job.ends_at = FIRST + 4
    running.start(0, lambda: Script(0).run())
    running.start(1, script)
    results = running.finish()
    assert results[0].ddp.world.world_size == 1
    assert isinstance(running.errors[1], pactrain.ResyncRequiredError)
    assert "parameters of rank 1 differ from those of rank 0" in str(running.errors[1])
    assert running.errors[1].final


def test_a_newcomer_asks_for_no_exchange_before_it_has_the_state(ranks):
    running = ranks(1)
    running.job.ends_at = FIRST + 1
    running.regroup.expected = 2

    def script():
        made = Script(1)
        with pytest.raises(pactrain.PacTrainError, match=r"Call model.start\(\) first"):
            made.ddp.session.sync_masks()
        return made.run()

    running.start(0, lambda: Script(0).run())
    running.start(1, script)
    running.finish()
    assert not running.errors
