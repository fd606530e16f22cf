"""Ranks in threads that come and go, over the fake library."""

from __future__ import annotations

import itertools
import logging
from collections import deque

import pytest
import torch
from fake_native import LINEAGE
from small_nets import small_net
from thread_ranks import FIRST, Script, undisturbed

import pactrain
from pactrain.types import NO_DIGEST


@pytest.mark.parametrize(
    "options",
    [
        *(
            {},
            {"scaled": True},
            {"pruned": "zero"},
            {"pruned": "freeze", "scaled": True},
        ),
        {"buffer_sync_interval": 2},
    ],
)
@pytest.mark.parametrize("late", [set(), {0}, {1}])
@pytest.mark.parametrize("ends_at", [FIRST + n for n in range(4)])
def test_every_batch_is_applied_once(ranks, options, late, ends_at):
    """`late` have got the commit of the last step of their generation, others not."""
    wanted = undisturbed(ranks, **options)
    running = ranks(2)
    running.job.ends_at, running.job.late_commits = ends_at, late
    for rank in range(2):
        running.start(rank, lambda rank=rank: Script(rank, **options).run())
    results = running.finish()
    assert not running.errors
    assert results[0].state() == results[1].state() == wanted
    assert (
        results[0].states == results[1].states
    )  # Also after the step of no gradients.
    assert [job.generation for job in running.regroup.jobs] == [7, 8]
    assert results[1].ddp.world == pactrain.membership.WorldNow(1, 2, "here", 8)


def test_a_rank_reports_its_state_and_its_next_step(ranks):
    running = ranks(2)
    running.job.ends_at, running.job.late_commits = FIRST + 3, {1}
    for rank in range(2):
        running.start(rank, lambda rank=rank: Script(rank).run())
    running.finish()
    held = [running.natives[rank].reports[0] for rank in range(2)]
    assert [len(running.natives[rank].reports) for rank in range(2)] == [1, 1]
    assert [(h.lineage, h.committed, h.next_step) for h in held] == [
        (LINEAGE, 4, FIRST + 3),
        (LINEAGE, 5, FIRST + 4),
    ]
    said = [h.parameters for h in held]
    assert (
        said[0] != said[1] and NO_DIGEST not in said
    )  # After four steps, and after five.


def test_a_rank_that_was_left_behind_needs_nothing_shared(ranks):
    """It has run the same script from the start, so optimizers match by their order."""
    wanted = undisturbed(ranks)
    running = ranks(2)
    running.job.ends_at, running.job.late_commits = FIRST + 3, {1}
    for rank in range(2):
        running.start(rank, lambda rank=rank: Script(rank, share=False).run())
    results = running.finish()
    assert not running.errors
    assert results[0].state() == results[1].state() == wanted


def test_a_transfer_that_fails_is_done_again(ranks):
    wanted = undisturbed(ranks)
    running = ranks(2)
    running.job.ends_at, running.job.late_commits = FIRST + 3, {0}
    failures = deque([1, 0, 2])  # Steps of the transfer that the next ones survive.

    def end_again(job):
        if failures:
            job.ends_at = job.first_step + failures.popleft()
            job.late_commits = {1}

    running.regroup.on_formed = end_again
    for rank in range(2):
        running.start(rank, lambda rank=rank: Script(rank).run())
    results = running.finish()
    assert not running.errors
    assert results[0].state() == results[1].state() == wanted
    assert len(running.regroup.jobs) == 5
    # D5: a rank holds on to its own state until it has another one.
    for native in running.natives.values():
        assert {held.lineage for held in native.reports} == {LINEAGE}


def test_the_others_go_on_without_a_lost_rank(ranks, caplog):
    caplog.set_level(logging.INFO, "pactrain")
    running = ranks(3)
    running.job.ends_at = FIRST + 2
    running.regroup.expected = 2

    def script(rank):
        made = Script(rank, on_shrink="continue")
        made.ddp._membership.may_go_on = lambda error: False
        made.run()

    running.start(0, lambda: script(0))
    for rank in (1, 2):
        running.start(rank, lambda rank=rank: Script(rank, on_shrink="continue").run())
    results = running.finish()
    assert list(running.errors) == [0]
    assert results[1].state() == results[2].state()
    assert [results[rank].ddp.world.rank for rank in (1, 2)] == [0, 1]
    assert results[1].ddp.world.world_size == 2
    assert "rank 2 is now rank 1" in caplog.text
    assert "generation 8: 2 of 3 ranks go on" in caplog.text


@pytest.mark.parametrize("met", [False, True])
def test_a_rank_gives_up_when_generations_end_before_all_have_met(
    ranks, monkeypatch, met
):
    """As where agents cannot reach each other; not where a transfer was disturbed."""
    running = ranks(2)
    running.job.ends_at, running.job.late_commits = FIRST + 3, {1}
    generations = deque([1, 1, 1] if met else [-1, -1, -1])

    def end_again(job):
        if generations:
            job.ends_at = job.first_step + generations.popleft()

    running.regroup.on_formed = end_again

    seconds = 200  # Of each generation.
    monkeypatch.setattr(
        "pactrain.membership._now", lambda: seconds * len(running.regroup.jobs)
    )

    def script(rank):
        return Script(rank).run()

    for rank in range(2):
        running.start(rank, lambda rank=rank: script(rank))
    running.finish()
    if met:
        assert not running.errors
        return
    assert len(running.errors) == 2
    for error in running.errors.values():
        assert isinstance(error, pactrain.StepNotAppliedError)
        assert error.final
        assert "No step was committed for 300 s" in str(error)


def lost(text="no agent at unix:/a", may_rejoin=True):
    error = pactrain.AgentUnresponsiveError(f"{text}.\nStart it.")
    error.may_rejoin = may_rejoin
    return error


def test_a_rank_waits_for_its_agent_and_says_so_once(ranks, caplog):
    wanted = undisturbed(ranks)
    running = ranks(2)
    running.job.ends_at = FIRST + 3

    def script(rank):
        made = Script(rank)
        running.natives[rank].reattach_errors = [lost(), lost(), lost()] * rank
        return made.run()

    for rank in range(2):
        running.start(rank, lambda rank=rank: script(rank))
    results = running.finish()
    assert not running.errors
    assert results[1].state() == wanted
    assert caplog.text.count("for the agent: no agent at unix:/a") == 1


@pytest.mark.parametrize("how", ["hopeless", "no time left"])
def test_a_rank_gives_up(ranks, monkeypatch, how):
    """With the last error; every later step fails with it, too."""
    if how == "no time left":
        clock = itertools.count(step=301)
        monkeypatch.setattr("pactrain.membership._now", lambda: next(clock))
    running = ranks(1)
    running.job.ends_at = FIRST + 1

    def script():
        made = Script(0)
        errors = [lost(may_rejoin=how != "hopeless") for _ in range(3)]
        running.natives[0].reattach_errors = errors
        for _ in range(2):
            with pytest.raises(pactrain.AgentUnresponsiveError) as raised:
                made.run()
            assert raised.value.final
        assert all(p.grad is None for p in made.ddp.parameters())
        made.ddp.session.close()
        return len(errors)

    running.start(0, script)
    assert running.finish() == {0: 2}, running.errors


def test_with_abort_a_lost_rank_is_an_error_as_ever(ranks):
    running = ranks(2)
    running.job.ends_at = FIRST + 2
    for rank in range(2):
        running.start(rank, lambda rank=rank: Script(rank, on_shrink="abort").run())
    running.finish()
    for error in running.errors.values():
        assert isinstance(error, pactrain.StepNotAppliedError)
        assert error.final
    assert len(running.regroup.jobs) == 1


def test_an_exchange_that_the_script_asked_for_is_an_error(ranks):
    wanted = undisturbed(ranks)
    running = ranks(2)
    running.job.ends_at = FIRST + 3

    def script(rank):
        made = Script(rank).run(2)
        while running.natives[rank].generation == 7:
            try:
                made.ddp.session.sync_buffers()
            except pactrain.StepNotAppliedError as error:
                assert "sync_buffers() was not done at this rank" in str(error)
                assert "call it again after that" in str(error)
                return made.run()
        return made

    for rank in range(2):
        running.start(rank, lambda rank=rank: script(rank))
    results = running.finish()
    assert not running.errors
    assert results[0].state() == results[1].state() == wanted


def test_what_has_no_state_is_not_shared(wrap, net):
    ddp = wrap(net).ddp
    for value in (3, torch.optim.SGD):
        with pytest.raises(pactrain.InvalidArgument, match="scheduler is of type"):
            ddp.share(scheduler=value)
    odd = torch.optim.lr_scheduler.LambdaLR(
        torch.optim.SGD(net.parameters()), lambda step: 1.0
    )
    odd.extra = object()
    with pytest.raises(pactrain.InvalidArgument, match="odd has a state that cannot"):
        ddp.share(odd=odd)


@pytest.mark.parametrize("variable", [None, "continue"])
def test_the_reaction_comes_from_argument_or_variable(
    wrap, natives, monkeypatch, variable
):
    if variable:
        monkeypatch.setenv("PACTRAIN_ON_SHRINK", variable)
    wrap(small_net())
    assert natives[-1].options.on_shrink.name.lower() == (variable or "pause")
    wrap(small_net(), on_shrink="abort")
    assert natives[-1].options.on_shrink == 0
    with pytest.raises(pactrain.InvalidArgument, match="on_shrink is 'stop'; allowed"):
        wrap(small_net(), on_shrink="stop")
