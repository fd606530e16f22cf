"""One rank of a job of gpu_check.py: trains, and says what it has at the end."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import sys
import tempfile
import time
import traceback
from typing import Any

import gpu_step_times
from gpu_place import Answer, on, width

STEPS = 8


def rank_main(kind: str, place: str) -> Answer:
    from pactrain.errors import PacTrainError, RefusedError

    device = on(place)
    try:
        timed = gpu_step_times.KINDS.get(kind)
        return train(kind, device) if timed is None else timed(device)
    except Exception as error:
        first = (str(error).splitlines() or [""])[0][:300]
        found: Answer = {"error": f"{type(error).__name__}: {first}"}
        if isinstance(error, PacTrainError):
            return found | {"refused": isinstance(error, RefusedError)}
        return found | {"at": traceback.format_tb(error.__traceback__)[-3:]}


def train(kind: str, device: Any) -> Answer:
    import torch
    from torch import nn

    import pactrain

    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    exact = kind not in ("mixed", "resumed")
    wide = width()
    sizes = (wide,) * 4 if exact else (64, 2 * wide, 2 * wide, 16)
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    model: nn.Module = nn.ModuleList(layers) if exact else nn.Sequential(*layers)
    net = Parallel(model, kind == "delayed") if exact else model
    pactrain.prune(net, 0.5, exempt=())
    if exact:  # Whole numbers; what is kept stays above zero.
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.mul_(64).round_()
    options: dict[str, Any] = {"pin": "COMPACTED", "settle": 1, "bucket_cap_mb": 0.2}
    ddp = pactrain.DistributedDataParallel(net.to(device), **options)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.5, momentum=0 if exact else 0.5)
    scaler = torch.amp.GradScaler(device.type, init_scale=64.0)
    endless = kind == "endless"
    step = 0
    while step < STEPS or endless:
        if kind == "node":
            time.sleep(1)  # NCCL opens beside the steps.
        optimizer.zero_grad()
        run_step(ddp, device, step, exact, scaler)
        if exact:
            optimizer.step()
        else:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        step += 1
        if step == STEPS // 2 and kind == "resumed":
            reload(ddp, optimizer)
        if endless and step == 3:
            print("trains", flush=True)
    stats = ddp.session.stats()
    packed = stats["pactrain/active_keep"] < 1
    path = ddp.session.device_path
    digest = hashlib.sha256()
    for value in net.state_dict().values():
        digest.update(value.cpu().numpy().tobytes())
    ddp.session.close()
    if stats["pactrain/device_fallbacks"] if device.type != "cpu" else 0:
        return {"error": f"fell back: {path}"}
    return {"digest": digest.hexdigest(), "masks": packed, "path": path.name}


def run_step(ddp: Any, device: Any, step: int, exact: bool, scaler: Any) -> None:
    import torch

    seed = 2 * step + int(os.environ["RANK"])
    generator = torch.Generator().manual_seed(seed)
    if exact:
        shape = (16, width())
        inputs = torch.randint(-4, 5, shape, generator=generator).float()
        ddp(inputs.to(device)).sum().backward()
        return
    inputs = torch.randn(16, 64, generator=generator).to(device)
    for part, last in zip(inputs.chunk(2), (False, True), strict=True):
        with contextlib.nullcontext() if last else ddp.no_sync():
            with torch.autocast(device.type, torch.bfloat16):
                loss = ddp(part).float().square().mean()
            scaler.scale(loss).backward()


def reload(ddp: Any, optimizer: Any) -> None:
    """What a checkpoint holds, through a file and back."""
    import torch

    with tempfile.NamedTemporaryFile() as file:
        torch.save({"model": ddp.state_dict(), "optimizer": optimizer.state_dict()}, file.name)
        for parameter in ddp.parameters():
            parameter.data.zero_()
        saved = torch.load(file.name, map_location="cpu", weights_only=True)
    ddp.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])


def Parallel(layers: Any, delayed: bool) -> Any:
    """The sum of all layers: gradients are sums of inputs, whole numbers.

    `delayed`: what computes them begins 20 ms after it was enqueued.
    """
    import torch
    from torch import nn

    class Delay(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, values: Any) -> Any:
            return values.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            torch.cuda._sleep(30_000_000)
            return gradient.clone()

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, inputs: Any) -> Any:
            outputs = [layer(inputs).sum(1) for layer in self.layers]
            return sum(Delay.apply(o) if delayed else o for o in outputs)

    return Sum()


if __name__ == "__main__":
    print(json.dumps(rank_main(*sys.argv[1:])), flush=True)
