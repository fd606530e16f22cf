"""The same training on the CPU and on the device of tests/device, which needs no GPU."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import scenarios
import torch
import torch.distributed as dist
from launcher import Talk
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pactrain
from pactrain import _abi, device_path

sys.path.insert(0, str(Path(__file__).parents[2] / "device"))
import queued

CHECKPOINT = 6  # Steps.
STEPS = 12
PIN = {"pin": "COMPACTED"}  # What travels is not left to measured times.


def model_of(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(8 * 16, 32), nn.ReLU(), nn.Linear(32, 4),
    )  # fmt: skip


def wrapped(model: nn.Module, own: bool, **options: Any) -> tuple[nn.Module, Any]:
    if own:
        ddp = pactrain.DistributedDataParallel(model, bucket_cap_mb=0.01, **options)
        return ddp, ddp.session
    group = None
    if next(model.parameters()).device.type == queued.NAME:
        # Gloo refuses the device, so nobody gives all ranks rank 0's weights.
        from torch.testing._internal.distributed import fake_pg

        assert fake_pg
        group = dist.new_group(backend=f"cpu:gloo,{queued.NAME}:fake")
    theirs = DistributedDataParallel(model, bucket_cap_mb=0.01, process_group=group)
    return theirs, pactrain.attach(theirs, **options)


def train(
    talk: Talk,
    place: str,
    own: bool,
    kind: str,
    folder: str = "",
    resumes: bool = False,
    at_end: Callable[[Any], None] = lambda session: None,
) -> dict[str, Any]:
    """Accumulation, GradScaler, clipping, weight decay, pruning in the middle; saves a
    checkpoint in `folder`, or goes on from it."""
    if place != "cpu":
        queued.use()
    if own:
        os.environ |= {"RANK": str(talk.rank), "WORLD_SIZE": str(talk.world)}
    model = model_of(talk.rank if own else 0)
    saved = None
    if resumes:
        saved = torch.load(f"{folder}/{talk.rank}.pt", map_location="cpu", weights_only=True)
        model.load_state_dict(saved["model"])
    elif kind:
        pactrain.prune(model, 0.5, kind=kind)
    model.to(place)
    options: dict[str, Any] = PIN if kind else {}
    ddp, session = wrapped(model, own, state=saved and saved["session"], **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1, foreach=False)
    if saved is not None:
        optimizer.load_state_dict(saved["optimizer"])
    scaler = torch.amp.GradScaler(place)
    for step in range(CHECKPOINT if resumes else 0, STEPS):
        if step == CHECKPOINT and folder and not resumes:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "session": session.state_dict()}, f"{folder}/{talk.rank}.pt")
        first, second = scenarios.batch(talk, step, (8, 1, 8, 8)).to(place).chunk(2)
        optimizer.zero_grad()
        with ddp.no_sync():
            scaler.scale(ddp(first).square().mean()).backward()
        scaler.scale(ddp(second).square().mean()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=False)
        scaler.step(optimizer)
        scaler.update()
    session.sync_buffers()
    tensors = {name: value.cpu() for name, value in model.state_dict().items()}
    result = {
        "tensors": {name: value.flatten().tolist() for name, value in tensors.items()},
        "mode": session.mode,
        "outside": pactrain.sparsity(model).outside,
        "active_keep": session.stats()["pactrain/active_keep"],
    }
    at_end(session)
    session.close()
    return result


def kernels_here() -> str:
    """What the trainer library says of its kernels on this machine."""
    text = ctypes.create_string_buffer(2048)
    _abi.load_library().pt_cuda_status(text, ctypes.c_uint64(len(text)))
    return text.value.decode()


def train_packed(talk: Talk, place: str, kind: str) -> dict[str, Any]:
    """The same with the trainer library's kernels, by the stand-in for NVIDIA's driver."""
    driver = queued.use_driver()
    with path("device"):
        result = train(talk, place, own=True, kind=kind)
    return result | {"launches": driver.pactrain_fake_launches()}


@contextlib.contextmanager
def path(name: str) -> Iterator[None]:
    device_path.WITH_KERNELS.add(queued.NAME)
    os.environ[device_path.VARIABLE] = name
    try:
        yield
    finally:
        del os.environ[device_path.VARIABLE]


def train_by_nccl(
    talk: Talk, kind: str, versions: tuple[int, ...] = (), without: tuple[int, ...] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same, summed by the stand-in for NCCL where ranks share a node, but by ranks
    `without`; and what became of that. `versions`: of NCCL, by rank."""
    if versions:
        os.environ["FAKE_NCCL_VERSION"] = str(versions[talk.rank])
    queued.use_nccl()
    node: dict[str, Any] = {}

    def look(session: Any) -> None:
        stats = session.stats()
        names = ("nccl_buckets", "nccl_fallbacks", "device_path")
        node.update({name: stats.get(f"pactrain/{name}") for name in names})
        node["path"] = str(session.device_path)

    with path("device" if talk.rank in without else "nccl"):
        result = train(talk, queued.NAME, own=True, kind=kind, at_end=look)
    return result, node
