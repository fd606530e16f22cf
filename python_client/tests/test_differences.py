"""What differs between ranks, by name; and the error of one rank in attach()."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from fake_native import FakeJob
from small_nets import small_net
from torch.nn.utils import prune

import pactrain
from pactrain import differences
from pactrain.board import Board
from pactrain.differences import Differences, describe
from pactrain.errors import ResyncRequiredError
from pactrain.mask_keeper import MaskKeeper
from pactrain.mask_source import MaskSource
from pactrain.meeting import Meeting
from pactrain.parameters import ParameterTable

REFUSED = ResyncRequiredError("parameters differ: a, b.\nStart them again.")


def note(masks, values):
    return {"masks": masks, "values": values}


def on_ranks(call, count=2):
    """What each rank returned or raised."""

    def run(rank):
        try:
            return call(rank)
        except Exception as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_equal_ranks_have_no_differences():
    assert describe([note({"w": "a 1 of 2"}, {"w": "x"})] * 3) == ""


def test_masks_and_weights_that_differ_are_named_with_the_first_rank_that_does():
    same = note({"w": "a 1 of 2"}, {"w": "x", "v": "y"})
    other = note({"w": "b 2 of 2"}, {"w": "x", "v": "z"})
    assert describe([same, same, other]) == (
        "Masks differ: w (rank 0 keeps 1 of 2, rank 2 2 of 2).\n"
        "Weights differ: v (ranks 0 and 2)."
    )


def test_a_rank_without_a_mask_keeps_all_and_the_rest_is_counted():
    notes = [note({}, {}), note({f"w{i}": "b 1 of 2" for i in range(5)}, {})]
    text = describe(notes)
    assert "w0 (rank 0 keeps all, rank 1 1 of 2), w1" in text
    assert text.endswith("and 2 more.")


def explained(board, error=REFUSED, seeds=(0, 1)):
    job = FakeJob(len(seeds))
    nets = [small_net() for _ in seeds]  # Seeds are of the whole process.

    def run(rank):
        net = nets[rank]
        generator = torch.Generator().manual_seed(seeds[rank])
        mask = torch.rand(net[2].weight.shape, generator=generator) < 0.5
        prune.custom_from_mask(net[2], "weight", mask)
        table, native = ParameterTable(net), job.rank(rank)
        keeper = MaskKeeper(table, MaskSource(net, table), native, gse=True)
        return Differences(native, table, keeper, board).explain(error)

    return on_ranks(run)


def test_all_ranks_name_what_differs_where_they_meet():
    store = dist.HashStore()
    for error in explained(lambda seconds: Board(store, "test", seconds)):
        assert isinstance(error, ResyncRequiredError)
        first, second, todo = str(error).splitlines()
        assert first == "parameters differ: a, b."
        assert second.startswith("Masks differ: 2.weight (rank 0 keeps ")
        assert "session.sync_masks() on all" in todo
        assert todo.endswith("Start them again.")


def test_an_error_of_another_kind_is_left_alone():
    other = ResyncRequiredError("rank 1 was lost.\nStart again.")
    assert explained(None, other) == [other, other]


def test_ranks_that_meet_nowhere_or_not_in_time_have_the_error_as_it_is(monkeypatch):
    assert explained(None) == [REFUSED, REFUSED]
    monkeypatch.setattr(differences, "_PATIENCE_SECONDS", 0.01)
    apart = explained(lambda seconds: Board(dist.HashStore(), "test", seconds))
    assert apart == [REFUSED, REFUSED]


class Threads(Meeting):
    """Ranks of one process, which counts the boards of each name."""

    def board(self, title, timeout_seconds):
        return Board(self.store, title, timeout_seconds)


@pytest.mark.parametrize("failing", [0, 2])
def test_the_error_of_one_rank_ends_the_wait_of_all(failing):
    store = dist.HashStore()

    def run(rank):
        with Threads(store, "test", rank, 3).prepare():
            if rank == failing:
                raise ValueError("masks are wrong")

    errors = on_ranks(run, 3)
    assert isinstance(errors.pop(failing), ValueError)
    for error in errors:
        assert isinstance(error, pactrain.RefusedError)
        assert f"Rank {failing} could not attach its model" in str(error)
        assert "ValueError: masks are wrong" in str(error)


def test_ranks_that_have_prepared_go_on():
    store = dist.HashStore()

    def run(rank):
        with Threads(store, "test", rank, 3).prepare():
            pass
        return "on"

    assert on_ranks(run, 3) == ["on"] * 3


def compared(attached):
    """Whether ranks were compared in the last step."""
    return attached.native.submits[-1][2] is not None


@pytest.mark.parametrize("masks", ["track", None])
def test_masks_are_compared_when_they_move_also_in_a_step_that_is_done_again(
    attach, masks
):
    net = small_net()
    prune.l1_unstructured(net[2], "bias", 0.5)
    attached = attach(net, masks=masks, settle=2)
    attached.step()
    attached.step()
    assert not compared(attached)
    with torch.no_grad():
        net[2].bias_mask.logical_not_()
    attached.native.fail_next = pactrain.StepNotAppliedError("no.\nAgain.")
    with pytest.raises(RuntimeError):
        attached.step()
    attached.step()
    assert compared(attached)
    attached.step()
    assert not compared(attached)


def test_masks_of_pactrains_own_may_differ_for_a_while(attach):
    """They act when all want them, so nothing is compared."""
    net = small_net()
    attached = attach(net)
    attached.step()
    pactrain.prune(net, 0.5)
    attached.step()
    assert not compared(attached)
