"""The error of one rank after the attach to the agents, where ranks meet too."""

from __future__ import annotations

import threading

import pytest
import torch.distributed as dist
from test_differences import Threads, on_ranks

import pactrain
from pactrain import meeting
from pactrain.errors import ResyncRequiredError

LOST = ResyncRequiredError("rank 2 ended.\nStart again.")


class Started:
    """A native session, as far as the start looks at it."""

    is_final = False


@pytest.mark.parametrize("failing", [0, 2])
@pytest.mark.parametrize("waiting", [False, True])
def test_so_does_one_that_fails_after_the_attach_to_the_agents(failing, waiting):
    store, closed = dist.HashStore(), threading.Event()

    def run(rank):
        native = Started()
        try:
            with Threads(store, "test", rank, 3).begin(native):
                if rank == failing:
                    raise ValueError("masks are wrong")
                if waiting:  # In an exchange, which ends when the other closes.
                    assert closed.wait(20)
                    native.is_final = True
                    raise LOST
        finally:
            if rank == failing:
                closed.set()

    errors = on_ranks(run, 3)
    assert isinstance(errors.pop(failing), ValueError)
    for error in errors:
        assert isinstance(error, pactrain.RefusedError)
        assert f"Rank {failing} could not attach its model" in str(error)
        assert "ValueError: masks are wrong" in str(error)
        assert isinstance(error.__cause__, ResyncRequiredError) == waiting


def test_an_exchange_that_fails_at_all_keeps_its_own_error():
    store = dist.HashStore()

    def run(rank):
        native = Started()
        with Threads(store, "test", rank, 2).begin(native):
            native.is_final = True
            raise LOST

    assert on_ranks(run, 2) == [LOST] * 2


def test_ranks_that_have_begun_go_on_also_where_one_is_lost(monkeypatch):
    monkeypatch.setattr(meeting, "_MOST_WAIT_TO_BEGIN", 0.05)

    def run(rank, world_size=2):
        with Threads(store, "test", rank, world_size).begin(Started()):
            pass
        return "on"

    store = dist.HashStore()
    assert on_ranks(run, 2) == ["on"] * 2
    store = dist.HashStore()
    assert on_ranks(lambda rank: run(rank, 3), 2) == ["on"] * 2
