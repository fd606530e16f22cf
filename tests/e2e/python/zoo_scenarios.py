"""Kinds of models that ranks train in the end-to-end tests. Each runs in every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from launcher import Talk
from scenarios import batch, digest, mlp, outcome, sgd, steps, train_step
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import prune as torch_prune

import pactrain
from pactrain.masks import registry


class TwoHeads(nn.Module):
    """A parameter that is unused at some ranks, and one that is unused at all."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(10, 32)
        self.left = nn.Linear(32, 32)
        self.right = nn.Linear(32, 32)
        self.never = nn.Linear(32, 32)

    def forward(self, inputs: torch.Tensor, right: bool = False) -> torch.Tensor:
        hidden = self.body(inputs).relu()
        head = self.right if right else self.left
        return head(hidden)


def conv(norm: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8) if norm else nn.Identity(), nn.ReLU(),
        nn.Conv2d(8, 8, 3), nn.ReLU(),
        nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip


def _zoo_plain(talk: Talk) -> dict[str, Any]:
    return _zoo_run(talk, mlp(), {})


def _zoo_bfloat16(talk: Talk) -> dict[str, Any]:
    model = mlp().bfloat16()
    return _zoo_run(talk, model, {}, lambda s: batch(talk, s).bfloat16())


def _zoo_mixed(talk: Talk) -> dict[str, Any]:
    """fp32 and bf16 parameters in one model: buckets of both kinds."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(10, 32)
            self.middle = nn.Linear(32, 32).bfloat16()
            self.last = nn.Linear(32, 4)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.last(self.middle(self.first(inputs).bfloat16()).float())

    torch.manual_seed(0)
    return _zoo_run(talk, Mixed(), {})


def _zoo_channels_last(talk: Talk) -> dict[str, Any]:
    model = conv().to(memory_format=torch.channels_last)
    shape = (4, 3, 12, 12)
    return _zoo_run(
        talk,
        model,
        {},
        lambda s: batch(talk, s, shape).contiguous(memory_format=torch.channels_last),
    )


def _zoo_small_buckets(talk: Talk) -> dict[str, Any]:
    return _zoo_run(talk, mlp(), {"bucket_cap_mb": 0.004, "gradient_as_bucket_view": True})


def _zoo_static_graph(talk: Talk) -> dict[str, Any]:
    return _zoo_run(talk, mlp(), {"static_graph": True})


def _zoo_torch_prune(talk: Talk) -> dict[str, Any]:
    model = mlp(seed=talk.rank)
    torch_prune.random_unstructured(model[2], "weight", 0.6)
    torch_prune.l1_unstructured(model[4], "weight", 0.6)
    ddp = DistributedDataParallel(model)
    return _zoo_train(talk, model, ddp, pactrain.attach(ddp))


def _zoo_weights(talk: Talk) -> dict[str, Any]:
    model = mlp()
    pactrain.prune(model, 0.6)
    for parameter in model.parameters():
        registry.remove(parameter)  # As if it came from somewhere else.
    ddp = DistributedDataParallel(model)
    return _zoo_train(talk, model, ddp, pactrain.attach(ddp, masks="weights"))


def _zoo_compiled(talk: Talk) -> dict[str, Any]:
    model = mlp()
    pactrain.prune(model, 0.6)
    ddp = torch.compile(DistributedDataParallel(model), backend="aot_eager")
    return _zoo_train(talk, model, ddp, pactrain.attach(ddp))


def _zoo_run(
    talk: Talk,
    model: nn.Module,
    options: dict[str, Any],
    inputs: Callable[[int], torch.Tensor] | None = None,
) -> dict[str, Any]:
    pactrain.prune(model, 0.6)
    ddp = DistributedDataParallel(model, **options)
    return _zoo_train(talk, model, ddp, pactrain.attach(ddp), inputs)


def _zoo_train(
    talk: Talk,
    model: nn.Module,
    ddp: nn.Module,
    session: Any,
    inputs: Callable[[int], torch.Tensor] | None = None,
) -> dict[str, Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in steps(session):
        train_step(ddp, optimizer, inputs(step) if inputs else batch(talk, step))
    result = outcome(session, model)
    session.close()
    return result


def _zoo_no_sync(talk: Talk) -> dict[str, Any]:
    model = mlp()
    pactrain.prune(model, 0.6)
    ddp = DistributedDataParallel(model)
    session = pactrain.attach(ddp)
    optimizer = sgd(model)
    for step in steps(session):
        optimizer.zero_grad()
        with ddp.no_sync():
            ddp(batch(talk, step)).square().mean().backward()
        ddp(batch(talk, step + 100)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    result = outcome(session, model)
    assert result["stats"]["pactrain/steps"] == step + 1
    session.close()
    return result


def _zoo_unused(talk: Talk) -> dict[str, Any]:
    torch.manual_seed(0)
    model = TwoHeads()
    pactrain.prune(model, 0.6, exempt=("body", "never"))
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    session = pactrain.attach(ddp)
    optimizer = sgd(model)
    for step in steps(session):
        optimizer.zero_grad()
        right = (step + talk.rank) % 2 == 0
        ddp(batch(talk, step), right=right).square().mean().backward()
        optimizer.step()
    result = outcome(session, model)
    assert model.never.weight.grad is None
    session.close()
    return result


def _zoo_scaler(talk: Talk) -> dict[str, Any]:
    """One rank's gradient overflows in one step: all ranks skip it."""
    model = mlp()
    pactrain.prune(model, 0.6)
    ddp = DistributedDataParallel(model)
    session = pactrain.attach(ddp)
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    skipped = []
    for step in steps(session):
        optimizer.zero_grad()
        loss = ddp(batch(talk, step)).square().mean()
        if step in (0, 12) and talk.rank == talk.world - 1:
            loss = loss * float("inf")
        before = digest(model)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if digest(model) == before:
            skipped.append(step)
    assert skipped == [0, 12], skipped
    result = outcome(session, model)
    session.close()
    return result


def _zoo_batch_norm(talk: Talk) -> dict[str, Any]:
    model = conv(norm=True)
    pactrain.prune(model, 0.6)
    ddp = DistributedDataParallel(model)
    session = pactrain.attach(ddp, buffer_sync_interval=5)
    optimizer = sgd(model)
    for step in steps(session):
        train_step(ddp, optimizer, batch(talk, step, (4, 3, 12, 12)))
    with torch.no_grad():
        ddp(batch(talk, step + 1, (4, 3, 12, 12)))  # Every rank's own statistics.
    own = model[1].running_mean.clone()
    session.sync_buffers()
    result = outcome(session, model)
    result["buffers"] = [buffer.double().sum().item() for buffer in model.buffers()]
    result["moved"] = not torch.equal(own, model[1].running_mean)
    assert result["stats"]["pactrain/buffer_syncs"] >= 3
    session.close()
    return result


ZOO = {
    name.removeprefix("_zoo_"): function
    for name, function in sorted(globals().items())
    if name.startswith("_zoo_") and name not in ("_zoo_run", "_zoo_train")
}


def zoo(talk: Talk, kinds: list[str]) -> dict[str, dict[str, Any]]:
    """Kinds of models one after another, each attached anew in one process."""
    return {kind: ZOO[kind](talk) for kind in kinds}
