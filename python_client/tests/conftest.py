"""Fixtures: a process group of one rank, and both wrappers over the fake library."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from fake_native import FakeJob, FakeNative, digest_of
from small_nets import small_net
from thread_ranks import Ranks
from torch import nn

import pactrain
from pactrain import attaching, declared
from pactrain.session import sessions

torch.set_num_threads(1)
LAUNCHER = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
    *("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NODEID"),
    *("PACTRAIN_SITE", "PACTRAIN_SITES", "MASTER_ADDR", "MASTER_PORT"),
    "PACTRAIN_ON_SHRINK",
    "PACTRAIN_REPLACE",
    *("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"),
)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Device tests run where they are named: with no backward pass before them."""
    named = any("test_device" in word for word in config.invocation_params.args)
    is_one = collection_path.name.startswith("test_device")
    return True if is_one and not named else None


@pytest.fixture(scope="session")
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Attached:
    """A model that is attached to a fake job of one rank."""

    def __init__(self, ddp, session: pactrain.Session, native: FakeNative):
        self.ddp = ddp
        self.session = session
        self.native = native
        self.job = native.job

    def step(self, inputs=None, optimizer=None):
        """One forward and backward pass; with an optimizer also its step."""
        inputs = torch.ones(4, 6) if inputs is None else inputs
        if optimizer is not None:
            optimizer.zero_grad()
        self.ddp(inputs).square().mean().backward()
        if optimizer is not None:
            optimizer.step()


@pytest.fixture
def natives(monkeypatch):
    """The sessions of the fake library, in the order of their making."""
    monkeypatch.setenv("PACTRAIN_AGENT", "unix:/run/agent.sock")
    monkeypatch.setenv("PACTRAIN_JOB_ID", "unit")
    for name in LAUNCHER:
        monkeypatch.delenv(name, raising=False)
    for module in (attaching, declared):
        monkeypatch.setattr(module, "digest_of", digest_of)
    made: list[FakeNative] = []

    def fake_attach(options, on_waiting, advice, within):
        made.append(FakeJob(step=options.resume_step).rank())
        made[-1].advice = advice
        made[-1].options = options
        return made[-1]

    monkeypatch.setattr(attaching.NativeSession, "attach", fake_attach)
    yield made
    for session in list(sessions):
        session.close()


@pytest.fixture
def attach(group, natives):
    """attach(model, ddp options, **attach options) -> Attached"""

    def run(model, ddp_options=None, **options):
        ddp = nn.parallel.DistributedDataParallel(model, **(ddp_options or {}))
        session = pactrain.attach(ddp, **options)
        return Attached(ddp, session, natives[-1])

    return run


@pytest.fixture
def wrap(natives):
    """wrap(model, **options) -> Attached, by our own DistributedDataParallel."""

    def run(model, **options):
        ddp = pactrain.DistributedDataParallel(model, **options)
        return Attached(ddp, ddp.session, natives[-1])

    return run


@pytest.fixture
def net():
    return small_net()


@pytest.fixture
def ranks(natives, monkeypatch):
    monkeypatch.setattr("pactrain.membership._sleep", lambda seconds: None)
    return lambda world_size: Ranks(monkeypatch, world_size)
