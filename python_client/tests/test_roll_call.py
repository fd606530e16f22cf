from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

import pactrain
from pactrain import board, meeting
from pactrain.board import Board
from pactrain.meeting import Answer, call_roll


def call(answers, ranks=None, timeout=60.0):
    """What each rank raised, or None, and what was said of who is missing."""
    store = dist.HashStore()
    said = []

    def run(rank):
        note = Board(store, "test", timeout)
        try:
            call_roll(note, rank, len(answers), answers[rank], said.append)
        except pactrain.PacTrainError as error:
            return error
        return None

    chosen = range(len(answers)) if ranks is None else ranks
    with ThreadPoolExecutor(len(answers)) as pool:
        return list(pool.map(run, chosen)), said


def test_ranks_that_fit_together_go_on():
    agents = ["unix:/a", "unix:/a", "unix:/b"]
    assert call([Answer("j", agent) for agent in agents])[0] == [None] * 3
    assert call([Answer("j", "")] * 2)[0] == [None] * 2


@pytest.mark.parametrize(
    ("odd", "text", "todo"),
    [
        (
            Answer("k", "unix:/a"),
            "rank 0 has 'j', rank 2 has 'k'",
            "Set PACTRAIN_JOB_ID",
        ),
        (
            Answer("j", ""),
            "rank 0 has unix:/a, rank 2 has none",
            "on all ranks, or on none",
        ),
    ],
)
def test_a_rank_that_differs_is_refused_on_all_at_once(odd, text, todo):
    fitting = Answer("j", "unix:/a")
    errors, _ = call([fitting, fitting, odd, fitting])
    for error in errors:
        assert isinstance(error, pactrain.RefusedError)
        assert text in str(error)
        assert todo in str(error).splitlines()[-1]


def test_who_has_no_agent_while_rank_0_has_none_either_is_not_named():
    answers = [Answer("j", ""), Answer("j", ""), Answer("j", "unix:/a")]
    errors, _ = call(answers)
    assert "rank 0 has none, rank 2 has unix:/a" in str(errors[1])


def test_ranks_that_do_not_come_are_named(monkeypatch):
    monkeypatch.setattr(board, "_PATIENCE", board.timedelta(seconds=0.01))
    errors, said = call([Answer("j", "")] * 4, ranks=[0, 2], timeout=0.5)
    assert said == ["waiting for ranks 1, 3 of 4"]
    assert isinstance(errors[0], pactrain.CoordinatorUnavailableError)
    assert "Waited for ranks 1, 3 for 0.5 s (PACTRAIN_ATTACH_TIMEOUT)" in str(errors[0])
    assert isinstance(errors[1], pactrain.CoordinatorUnavailableError)


def test_the_roll_is_called_at_each_attach(attach, net, monkeypatch):
    called = []
    monkeypatch.setattr(meeting, "call_roll", lambda *given: called.append(given[3]))
    attach(net).session.close()
    attach(type(net)(*net)).session.close()
    # And nothing is compared where ranks meet after the attach to the agents.
    assert called == [Answer("unit", "unix:/run/agent.sock"), Answer("", "")] * 2
