"""The same training on the CPU and on the device of tests/device, which needs no GPU."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import scenarios
import torch
import torch.distributed as dist
from launcher import Talk
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pactrain
from pactrain import _abi, device_path
from pactrain.packing import Packer
from pactrain.types import NodePath

sys.path.insert(0, str(Path(__file__).parents[2] / "device"))
import queued
from patience import PATIENCE_SECONDS

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


def attached_by(talk: Talk, wanted: str) -> str:
    """Which path a model on a device has, and why, by the stand-in for NVIDIA's driver."""
    queued.use_driver()
    os.environ |= {"RANK": str(talk.rank), "WORLD_SIZE": str(talk.world)}
    with path(wanted):
        _, session = wrapped(model_of(0).to(queued.NAME), own=True)
        said = str(session.device_path)
        session.close()
    return said


@contextlib.contextmanager
def path(name: str) -> Iterator[None]:
    device_path.WITH_KERNELS.add(queued.NAME)
    os.environ[device_path.VARIABLE] = name
    try:
        yield
    finally:
        del os.environ[device_path.VARIABLE]


@contextlib.contextmanager
def paths_at_random(seed: int) -> Iterator[Counter[str]]:
    """Each bucket of this rank goes by torch, packed by the host for want of memory, or by
    NCCL where the others' do, too: by the seed. Counts which."""
    draw, went = random.Random(seed), Counter[str]()
    pack, reduce = Packer.pack, Packer.reduce
    full = RuntimeError("the device is full")

    def pack_or_not(packer: Packer, *arguments: Any) -> Any:
        if draw.random() > 0.2:
            return pack(packer, *arguments)
        went["torch"] += 1
        return None

    def reduce_or_not(packer: Packer, *arguments: Any) -> NodePath:
        short = draw.random() < 0.2
        with mock.patch.object(Packer, "_new", side_effect=full) if short else nullcontext():
            path = reduce(packer, *arguments)
        went["device" if path == NodePath.HOST else "nccl"] += 1
        return path

    with (
        mock.patch.object(Packer, "pack", pack_or_not),
        mock.patch.object(Packer, "reduce", reduce_or_not),
    ):
        yield went


def shown(command: list[str]) -> dict[str, Any]:
    """By agent, once a report has told of a sum by NCCL."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        said = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS
        )
        nodes = {node["agent"]: node["path"] for node in json.loads(said.stdout)["nodePaths"]}
        if any(int(path["ncclBuckets"]) for path in nodes.values()):
            return nodes
    return {}


def train_by_nccl(
    talk: Talk,
    kind: str,
    each: dict[str, tuple[str, ...]] | None = None,
    without: tuple[int, ...] = (),
    cpus: tuple[int, ...] = (),
    seed: int | None = None,
    asks: list[str] | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same, summed by the stand-in for NCCL where ranks share a node, but by ranks
    `without` and by those on `cpus`; and what became of that. `each`: variables of the
    stand-ins, by rank. `seed`: of paths_at_random(). `asks`: a command of pactrain-admin, for
    what it says of the nodes while all are there."""
    for name, values in (each or {}).items():
        os.environ[name] = values[talk.rank]
    queued.use_nccl()
    node: dict[str, Any] = {}

    def look(session: Any) -> None:
        stats = session.stats()
        names = ("nccl_buckets", "nccl_fallbacks", "device_path")
        node.update({name: stats.get(f"pactrain/{name}") for name in names})
        node["path"] = str(session.device_path)
        if asks is not None:
            node["shown"] = shown(asks) if talk.rank == 0 else {}
            dist.barrier()

    on_cpu = talk.rank in cpus
    chosen = "auto" if on_cpu else "device" if talk.rank in without else "nccl"
    place = "cpu" if on_cpu else queued.NAME
    at_random = nullcontext({}) if seed is None else paths_at_random(10 * seed + talk.rank)
    with path(chosen), at_random as went:
        result = train(talk, place, own=True, kind=kind, at_end=look)
    return result, node | went
