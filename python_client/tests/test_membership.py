"""Ranks in threads that come and go, over the fake library."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections import deque

import pytest
import torch
from fake_native import FULL, FakeJob, FakeNative, FakeRegroup
from small_nets import small_net

import pactrain
from pactrain import attaching, distributed
from pactrain.state_transfer import StateTransfer
from pactrain.world import Site, World

STEPS = 8
MAKING = threading.Lock()


class Place:
    """A script's own progress."""

    def __init__(self):
        self.batch = 0

    def state_dict(self):
        return {"batch": self.batch}

    def load_state_dict(self, state):
        self.batch = state["batch"]


class Script:
    """What every rank runs: momentum, a schedule, and buffers that batches change."""

    def __init__(self, rank, share=True, seed=0, **options):
        with MAKING:  # Seeds are of the whole process.
            net = torch.nn.Sequential(small_net(seed), torch.nn.BatchNorm1d(3))
        kind = options.pop("pruned", "")
        scaled = options.pop("scaled", False)
        if kind:
            pactrain.prune(net[0], 0.5, kind=kind)
        self.rank = rank
        self.ddp = pactrain.DistributedDataParallel(net, bucket_cap_mb=1e-4, **options)
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        self.scaler = torch.amp.GradScaler("cpu", enabled=scaled)
        if scaled:
            self.optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0.5)
        self.states = []  # After each step.
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, gamma=0.7)
        self.place = Place()
        if share:
            self.ddp.share(
                optimizer=self.optimizer, scheduler=self.scheduler, place=self.place
            )

    def step(self):
        generator = torch.Generator().manual_seed(100 * self.place.batch + self.rank)
        inputs = torch.randn(4, 6, generator=generator)
        self.optimizer.zero_grad()
        self.scaler.scale(self.ddp(inputs).square().mean()).backward()
        assert all(p.grad is not None for p in self.ddp.parameters())
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.states.append(self.state()[:2])
        self.scheduler.step()
        self.place.batch += 1

    def run(self, until=STEPS):
        while self.place.batch < until:
            self.step()
        return self

    def state(self):
        """Of all that ranks have in common."""
        moments = [
            value.tolist()
            for p in self.ddp.parameters()
            for value in self.optimizer.state[p].values()
        ]
        parameters = [p.tolist() for p in self.ddp.parameters()]
        return parameters, moments, self.scheduler.state_dict()["last_epoch"]


class Ranks:
    """Threads, each with one rank; newcomers attach to what runs."""

    def __init__(self, monkeypatch, world_size):
        self.job = FakeJob(world_size)
        self.regroup = FakeRegroup(self.job)
        self.natives: dict[int, FakeNative] = {}
        self.results, self.errors = {}, {}
        self.threads = []
        self.here = threading.local()
        monkeypatch.setattr(attaching.NativeSession, "attach", self._attach)
        monkeypatch.setattr(distributed, "init", self._world)

    def _world(self):
        size = max(self.job.world_size, self.here.rank + 1)
        return World(self.here.rank, size, 0, 1, "", (Site("", size),))

    def _attach(self, options, on_waiting, advice):
        rank = self.here.rank
        if rank < self.job.world_size and rank not in self.natives:
            native = self.job.rank(rank)
        else:
            native = FakeNative(self.regroup.jobs[-1], 0)
            native.asked_rank = rank
            self.regroup.arrive(native, 0, 0)
        native.options = options
        self.natives[rank] = native
        return native

    def start(self, rank, script):
        def run():
            self.here.rank = rank
            try:
                self.results[rank] = script()
            except Exception as error:
                self.errors[rank] = error

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()

    def finish(self):
        for thread in self.threads:
            thread.join(30)
            assert not thread.is_alive()
        return self.results


@pytest.fixture
def ranks(natives, monkeypatch):
    monkeypatch.setattr("pactrain.membership._RETRY_SECONDS", 0.0)
    return lambda world_size: Ranks(monkeypatch, world_size)


_outcomes: dict[str, object] = {}


def undisturbed(ranks, world_size=2, **options):
    """What comes out if nothing happens."""
    key = f"{world_size} {options}"
    if key not in _outcomes:
        _outcomes[key] = _run_undisturbed(ranks, world_size, **options)
    return _outcomes[key]


def _run_undisturbed(ranks, world_size, **options):
    running = ranks(world_size)
    for rank in range(world_size):
        running.start(rank, lambda rank=rank: Script(rank, **options).run())
    results = running.finish()
    assert not running.errors
    return results[0].state()


FIRST = 3  # After the settings and the first state come the gradients.


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


def test_a_rank_reports_the_generation_and_its_next_step(ranks):
    running = ranks(2)
    running.job.ends_at, running.job.late_commits = FIRST + 3, {1}
    for rank in range(2):
        running.start(rank, lambda rank=rank: Script(rank).run())
    running.finish()
    assert [running.natives[rank].reports for rank in range(2)] == [
        [(7, FIRST + 3)],
        [(7, FIRST + 4)],
    ]


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
    assert "rank 2 -> 1 of 2" in caplog.text
    assert "generation 8: 2 of 3 ranks go on" in caplog.text


def newcomer(rank, start=True, **options):
    script = Script(rank, seed=5, **options)
    assert script.ddp._membership.newcomer
    if start:
        script.ddp.start()
        assert script.place.batch > 0
    return script.run()


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
    running = ranks(1)
    running.job.ends_at = FIRST + 3
    running.regroup.expected = 2
    running.start(0, lambda: Script(0).run())
    running.start(1, lambda: newcomer(1, start=False))
    results = running.finish()
    assert not running.errors
    assert results[0].state()[:2] == results[1].state()[:2]


UNSHARED = "Rank 0 trains with an optimizer that it does not share"
REFUSALS = {
    UNSHARED: {"share": False},
    "Rank 0 shares optimizer, place, scheduler, this rank nothing": {"share": False},
    "gse differs: rank 0 has 1, rank 1 has 0": {"gse": False},
    "optimizer is of class AdamW here, and SGD at the": {"scaled": True},
}


@pytest.mark.parametrize("words", REFUSALS)
def test_a_newcomer_that_does_not_fit_is_refused_and_the_others_go_on(ranks, words):
    wanted = undisturbed(ranks, world_size=1)
    running = ranks(1)
    running.job.ends_at = FIRST + 3
    running.regroup.expected = 2
    running.start(0, lambda: Script(0, share=words != UNSHARED).run())
    running.start(1, lambda: newcomer(1, **REFUSALS[words]))
    results = running.finish()
    assert words in str(running.errors[1])
    assert isinstance(running.errors[1], pactrain.RefusedError)
    assert running.natives[1].closed
    assert results[0].state() == wanted


def test_a_donor_that_cannot_give_its_state_says_why(ranks):
    class Odd(Place):
        def state_dict(self):
            return {"batch": self.batch, "odd": object() if self.batch else 0}

    def script(rank):
        made = Script(rank)
        made.place = Odd()
        made.ddp.share(place=made.place)
        return made

    running = ranks(1)
    running.job.ends_at = FIRST + 3
    running.regroup.expected = 2
    running.start(0, lambda: script(0).run())
    running.start(1, lambda: newcomer(1))
    results = running.finish()
    assert "Rank 0 cannot give its state: state['shared']" in str(running.errors[1])
    assert results[0].ddp.world.world_size == 1


def test_a_state_that_came_damaged_is_not_taken(ranks, monkeypatch):
    exchange = StateTransfer._exchange

    def damaged(self, what, data):
        received = exchange(self, what, data).copy()
        if what == "piece" and self._native.needs_state:
            received[0] ^= 1
        return received

    monkeypatch.setattr(StateTransfer, "_exchange", damaged)
    running = ranks(1)
    running.job.ends_at = FIRST + 3
    running.regroup.expected = 2
    running.start(0, lambda: Script(0).run())
    running.start(1, lambda: newcomer(1))
    results = running.finish()
    assert isinstance(running.errors[1], pactrain.ResyncRequiredError)
    assert "came with another digest" in str(running.errors[1])
    assert results[0].ddp.world.world_size == 1


def test_other_parameters_than_the_donors_are_found(ranks):
    def script():
        made = Script(1).run(2)
        with torch.no_grad():
            made.ddp.module[0][0].weight[0, 0] += 1
        return made.run()

    running = ranks(2)
    running.job.ends_at = FIRST + 4
    running.start(0, lambda: Script(0).run())
    running.start(1, script)
    running.finish()
    assert isinstance(running.errors[1], pactrain.ResyncRequiredError)
    assert "parameters of rank 1 differ from those of rank 0" in str(running.errors[1])
    assert running.errors[1].final


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


@pytest.mark.parametrize("how", ["hopeless", "embedded", "no time left"])
def test_a_rank_gives_up(ranks, monkeypatch, how):
    """With the last error; every later step fails with it, too."""
    running = ranks(1)
    running.job.ends_at = FIRST + 1

    def script():
        made = Script(0)
        membership = made.ddp._membership
        errors = [lost(may_rejoin=how != "hopeless") for _ in range(3)]
        running.natives[0].reattach_errors = errors
        config = membership._config
        if how == "embedded":
            membership._config = config.with_embedded("unix:/a")
        if how == "no time left":
            monkeypatch.setattr(membership, "_end", lambda: 0.0)
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


def test_what_has_no_state_is_not_shared(wrap, net):
    ddp = wrap(net).ddp
    for value in (3, torch.optim.SGD):
        with pytest.raises(pactrain.InvalidArgument, match="scheduler is of type"):
            ddp.share(scheduler=value)
    odd = torch.optim.lr_scheduler.LambdaLR(
        torch.optim.SGD(net.parameters()), lambda step: 1.0
    )
    odd.extra = object()
    with pytest.raises(pactrain.InvalidArgument, match=r"odd\['extra'\] is of type"):
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
