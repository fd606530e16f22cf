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
from pactrain.meeting import Answer, Meeting
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
        with Threads(store, "test", rank, 3).prepare(lambda: Answer("j", "")):
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
        with Threads(store, "test", rank, 3).prepare(lambda: Answer("j", "")):
            pass
        return "on"

    assert on_ranks(run, 3) == ["on"] * 3


def test_ranks_that_have_prepared_other_jobs_are_refused():
    store = dist.HashStore()

    def run(rank):
        with Threads(store, "test", rank, 2).prepare(lambda: Answer(job, "")):
            job = f"job{rank}"

    for error in on_ranks(run, 2):
        assert isinstance(error, pactrain.RefusedError)
        assert "rank 0 has 'job0', rank 1 has 'job1'" in str(error)


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


def ended(board, change, world_size=2, **known):
    """What rank 0 says at its end, where `change(rank, net, keeper)` came last."""
    job = FakeJob(world_size)
    nets = [small_net() for _ in range(world_size)]

    def run(rank):
        net = nets[rank]
        prune.l1_unstructured(net[2], "weight", 0.5)
        pactrain.prune(net[0], 0.5, exempt=())
        table, native = ParameterTable(net), job.rank(rank)
        for name, value in known.items():
            setattr(native, name, value)
        keeper = MaskKeeper(table, MaskSource(net, table), native, gse=True)
        change(rank, net, keeper)
        Differences(native, table, keeper, board).at_end()
        return keeper.apart

    return on_ranks(run, world_size)


def shared(seconds, store=None):
    return Board(store, "end", seconds)


def at(rank, do):
    return lambda mine, net, keeper: do(net, keeper) if mine == rank else None


def move(net, keeper):
    net[4].bias.data.add_(1)


def mask_by_torch(net, keeper):
    net[2].weight_mask[0] = 0


def mask_by_pactrain(net, keeper):
    pactrain.prune(net[0], 0.75, exempt=())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (move, "Weights differ: 4.bias (ranks 0 and 2)."),
        (mask_by_torch, "Masks differ: 2.weight (rank 0 keeps 32 of 64, rank 2 "),
        (mask_by_pactrain, "Masks differ: 0.weight (rank 0 keeps 24 of 48, rank 2 12 "),
    ],
)
def test_what_changed_last_is_compared_at_the_end(change, text):
    store = dist.HashStore()
    first, *others = ended(lambda s: shared(s, store), at(2, change), 3)
    (line,) = first
    assert line.startswith("ranks did not end alike. ")
    assert text in line
    assert "\n" not in line
    assert others == [[], []]


def test_equal_ranks_end_without_words(caplog):
    store = dist.HashStore()
    assert ended(lambda s: shared(s, store), at(0, lambda *_: None)) == [[], []]
    assert not caplog.text


def test_weights_that_one_rank_has_just_loaded_are_no_difference():
    """To evaluate the best ones, say."""
    store = dist.HashStore()

    def load(net, keeper):
        move(net, keeper)
        keeper.weights_loaded()

    assert ended(lambda s: shared(s, store), at(0, load)) == [[], []]


def test_a_rank_that_does_not_come_is_waited_for_a_bounded_time(monkeypatch, caplog):
    monkeypatch.setattr(differences, "_END_PATIENCE_SECONDS", 0.01)
    caplog.set_level("INFO", "pactrain")
    ended(lambda seconds: Board(dist.HashStore(), "end", seconds), at(0, move))
    assert "ranks were not compared at the end" in caplog.text


def test_sessions_that_an_error_has_ended_are_not_compared():
    def meet(seconds):
        raise AssertionError

    assert ended(meet, at(0, move), is_final=True) == [[], []]
    assert ended(None, at(0, move)) == [[], []]
    assert ended(meet, at(0, move), world_size=1) == [[]]


def test_close_compares_and_the_summary_says_what_came_of_it(
    attach, monkeypatch, caplog
):
    """Rank 1 is played by a note."""
    store = dist.HashStore()
    board = Board(store, "end", 5)
    monkeypatch.setattr(Meeting, "board", lambda self, title, seconds: board)
    attached = attach(small_net())
    attached.step()
    attached.native.world_size = 2
    monkeypatch.setattr(board, "read_of_all", lambda ranks, tell: [
        board.read("0", "rank 0"), board.read("0", "rank 0") | {"values": "other"},
    ])  # fmt: skip
    board.write("1/named", {"values": {"4.bias": "other"}, "masks": {}})
    attached.session.close()
    assert "not reached: ranks did not end alike" in caplog.text
    assert "ranks did not end alike" in attached.session.summary()
