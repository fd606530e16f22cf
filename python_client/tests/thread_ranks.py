"""Scripts in threads, each a rank over the fake library, that come and go."""

from __future__ import annotations

import threading

import torch
from fake_native import FakeJob, FakeNative, FakeRegroup
from small_nets import small_net
from torch.nn.utils import prune

import pactrain
from pactrain import attaching, distributed
from pactrain.types import NO_DIGEST, HeldState
from pactrain.world import Site, World

STEPS = 8
FIRST = 3  # After the settings and the first state come the gradients.
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
        self.device = options.pop("device", "cpu")
        if kind:
            pactrain.prune(net[0], 0.5, kind=kind)
        if options.pop("masked", False):  # By its seed.
            prune.l1_unstructured(net[0][2], "weight", 0.5)
        net.to(self.device)
        self.rank = rank
        self.ddp = pactrain.DistributedDataParallel(net, bucket_cap_mb=1e-4, **options)
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        self.scaler = torch.amp.GradScaler(self.device, enabled=scaled)
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
        inputs = torch.randn(4, 6, generator=generator).to(self.device)
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

    def _attach(self, options, on_waiting, advice, within):
        rank = self.here.rank
        if rank < self.job.world_size and rank not in self.natives:
            native = self.job.rank(rank)
        else:
            native = FakeNative(self.regroup.jobs[-1], 0)
            native.asked_rank = rank
            self.regroup.arrive(native, HeldState(NO_DIGEST, 0, NO_DIGEST, 0))
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
    states = [results[rank].state() for rank in range(world_size)]
    assert all(state == states[0] for state in states)
    return states[0]


def newcomer(rank, start=True, **options):
    script = Script(rank, seed=5, **options)
    assert script.ddp._membership.newcomer
    if start:
        script.ddp.start()
        assert script.place.batch > 0
    return script.run()


def one_joins(ranks, runs, joins):
    """Runs `runs` at rank 0 and has `joins` come to it."""
    running = ranks(1)
    running.job.ends_at = FIRST + 3
    running.regroup.expected = 2
    running.start(0, runs)
    running.start(1, joins)
    running.finish()
    return running
