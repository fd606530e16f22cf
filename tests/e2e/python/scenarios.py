"""What ranks do in the end-to-end tests. Each function runs in every rank of a job."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from launcher import Talk
from patience import PATIENCE_SECONDS
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pactrain
from pactrain.masks import registry

STEPS = 20
MOST_STEPS = 5000


def digest(model: nn.Module) -> str:
    """Over all parameters, bit for bit."""
    whole = hashlib.sha256()
    for parameter in model.parameters():
        bits = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        whole.update(bits.numpy().tobytes())
    return whole.hexdigest()


def mlp(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(),
        nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4),
    )  # fmt: skip


def batch(talk: Talk, step: int, shape: tuple[int, ...] = (8, 10)) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + talk.rank)
    return torch.randn(shape, generator=generator)


def steps(
    session: Any,
    done: Callable[[], bool] | None = None,
    start: int = 0,
    after: int = 10,
) -> Iterator[int]:
    """Step numbers: at least STEPS, until `done` (COMPACTED) was so for `after` steps.

    How soon that is depends on the machine; all ranks see it after the same step.
    """
    compacted = done or (lambda: session.decision.mode == pactrain.Mode.COMPACTED)
    step, since = start, 0
    while step < start + STEPS or since < after:
        assert step < start + MOST_STEPS, f"still {session.mode}: {session.decision}"
        yield step
        step += 1
        since = since + 1 if compacted() else 0


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)


def train_step(ddp: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    optimizer.zero_grad()
    ddp(inputs).float().square().mean().backward()
    optimizer.step()


def outcome(session: Any, model: nn.Module) -> dict[str, Any]:
    stats = session.stats()
    return {
        "digest": digest(model),
        "mode": session.mode,
        "stats": stats,
        "next_step": session.next_step,
        "finite": all(bool(p.isfinite().all()) for p in model.parameters()),
    }


def seeded_differently(talk: Talk) -> dict[str, Any]:
    """Every rank prunes weights of its own before DDP gives all rank 0's."""
    model = mlp(seed=talk.rank)
    pactrain.prune(model, 0.6)
    ddp = DistributedDataParallel(model)
    session = pactrain.attach(ddp)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in steps(session):
        train_step(ddp, optimizer, batch(talk, step))
    result = outcome(session, model)
    mask = registry.get(model[2].weight)
    assert mask is not None
    result["outside"] = int((model[2].weight[~mask] != 0).sum())
    return result


def until_ternary(talk: Talk, amount: float = 0.6, pin: Sequence[str] = ()) -> dict[str, Any]:
    """Trains until it has gone TERNARY, by policy or since `pin` was run, and a while longer."""
    model = mlp(seed=talk.rank)
    if amount:
        pactrain.prune(model, amount)
    ddp = DistributedDataParallel(model)
    session = pactrain.attach(ddp)
    if pin and talk.rank == 0:
        subprocess.run(pin, check=True, timeout=PATIENCE_SECONDS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in steps(session, lambda: session.decision.mode == pactrain.Mode.TERNARY):
        train_step(ddp, optimizer, batch(talk, step))
    result = outcome(session, model)
    mask = registry.get(model[2].weight)
    if mask is not None:
        result["outside"] = int((model[2].weight[~mask] != 0).sum())
    return result | {"reason": session.decision.reason}


def nan_in_ternary(talk: Talk) -> dict[str, Any]:
    """One rank's gradient is not a number in one step: every rank sees it."""
    model = mlp()
    pactrain.prune(model, 0.5)
    ddp = DistributedDataParallel(model)
    session = pactrain.attach(ddp)
    optimizer = sgd(model)
    for step in steps(session, lambda: session.decision.mode == pactrain.Mode.TERNARY):
        train_step(ddp, optimizer, batch(talk, step))
    optimizer.zero_grad()
    loss = ddp(batch(talk, 0)).float().square().mean()
    (loss * float("nan") if talk.rank == 1 else loss).backward()
    gradient = model[2].weight.grad
    assert gradient is not None
    return {"mode": session.mode, "nan": bool(gradient.isnan().any())}


def different_masks_without_sync(talk: Talk) -> None:
    model = mlp(seed=talk.rank)
    pactrain.prune(model, 0.6)
    pactrain.attach(DistributedDataParallel(model), sync_masks=False)


def loaded_after_prune(talk: Talk) -> dict[str, Any]:
    model = mlp()
    pactrain.prune(model, 0.6)
    model.load_state_dict(mlp(seed=1).state_dict())
    ddp = DistributedDataParallel(model)
    try:
        pactrain.attach(ddp)
    except pactrain.PacTrainError as error:
        text = str(error)
    pactrain.apply_masks(model)
    session = pactrain.attach(ddp)
    optimizer = sgd(model)
    for step in range(5):
        train_step(ddp, optimizer, batch(talk, step))
    return {**outcome(session, model), "text": text}


def checkpointed(talk: Talk, folder: str, start: int, stop: int, save: list[int]) -> dict[str, Any]:
    """Trains from the checkpoint of step `start` (0: none) up to `stop` (0: COMPACTED)."""
    model = mlp(seed=start)
    optimizer = sgd(model)
    state = None
    if start:
        loaded = torch.load(Path(folder) / f"{start}.pt", weights_only=True)
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
        state = loaded["session"]
    else:
        pactrain.prune(model, 0.6)
    ddp = DistributedDataParallel(model)
    session = pactrain.attach(ddp, state=state)
    first_step = session.next_step
    for step in range(start, stop) if stop else steps(session, start=start):
        train_step(ddp, optimizer, batch(talk, step))
        if step + 1 in save and talk.rank == 0:
            torch.save(
                {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "session": session.state_dict(),
                },
                Path(folder) / f"{step + 1}.pt",
            )
    result = outcome(session, model)
    result["first_step"] = first_step
    result["keep"] = session.stats()["pactrain/keep"]
    session.close()
    return result


def active_keep(session: Any) -> float:
    return float(session.stats()["pactrain/active_keep"])


def one_rank_changes_its_mask(talk: Talk, inside: bool) -> dict[str, Any]:
    """Rank 1 alone wants another mask for ten steps; then all ranks want it."""
    model = mlp()
    pactrain.prune(model, 0.5)
    ddp = DistributedDataParallel(model)
    session = pactrain.attach(ddp)
    optimizer = sgd(model)
    old = {n: registry.get(p) for n, p in model.named_parameters()}
    masks = {n: m for n, m in old.items() if m is not None}
    other = {}
    for name, mask in masks.items():
        drop = torch.zeros_like(mask)
        drop.view(-1)[::3] = True
        other[name] = mask & ~drop if inside else mask | drop
    for step in steps(session):
        train_step(ddp, optimizer, batch(talk, step))
    if talk.rank == 1:
        session.set_masks(other)
    for more in range(step + 1, step + 11):
        train_step(ddp, optimizer, batch(talk, more))
    alone = outcome(session, model)
    if talk.rank != 1:
        session.set_masks(other)
    wanted = sum(int(mask.sum()) for mask in other.values())
    wanted += sum(p.numel() for n, p in model.named_parameters() if n not in masks)
    keep = wanted / session.parameters.elements

    def in_force() -> bool:
        return session.mode[0] == "C" and abs(active_keep(session) - keep) < 1e-9

    for last in steps(session, in_force, start=more + 1):
        train_step(ddp, optimizer, batch(talk, last))
    result = outcome(session, model)
    result["alone"] = alone
    return result


def elements_outside(talk: Talk) -> dict[str, Any]:
    """gse=False and a gradient outside the mask at rank 1 in one step."""
    model = mlp()
    pactrain.prune(model, 0.5)
    mask = registry.get(model[2].weight)
    assert mask is not None
    ddp = DistributedDataParallel(model)
    session = pactrain.attach(ddp, gse=False)
    outside = False

    def mask_gradient(grad: torch.Tensor) -> torch.Tensor:
        assert mask is not None
        return grad * mask + (~mask * 2.0 if outside else 0.0)

    for parameter, kept in (
        (p, registry.get(p)) for p in model.parameters() if p is not model[2].weight
    ):
        if kept is not None:
            parameter.register_hook(lambda grad, kept=kept: grad * kept)
    model[2].weight.register_hook(mask_gradient)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in steps(session):
        train_step(ddp, optimizer, batch(talk, step))
    before = session.stats()["pactrain/dense_steps"]
    outside = talk.rank == 1
    train_step(ddp, optimizer, batch(talk, step + 1))
    outside = False
    dense = session.stats()["pactrain/dense_steps"]
    gradient = model[2].weight.grad[~mask].unique().tolist()
    for more in range(step + 2, step + 5):
        train_step(ddp, optimizer, batch(talk, more))
    return {
        **outcome(session, model),
        "dense_before": before,
        "dense": dense,
        "gradient": gradient,
    }


def another_bucket_cap(talk: Talk) -> dict[str, Any]:
    model = mlp()
    ddp = DistributedDataParallel(
        model,
        find_unused_parameters=True,  # Or DDP would take rank 0's buckets over.
        bucket_cap_mb=25 if talk.rank == 0 else 0.001,
    )
    session = pactrain.attach(ddp)
    texts = []
    for step in range(2):
        try:
            with session.guard():
                ddp(batch(talk, step)).square().mean().backward()
        except pactrain.StepNotAppliedError as error:
            texts.append(str(error))
    cleared = all(parameter.grad is None for parameter in model.parameters())
    return {"texts": texts, "cleared": cleared, "digest": digest(model)}


def another_model(talk: Talk) -> None:
    torch.manual_seed(0)
    model = nn.Linear(10, 4 + talk.rank)
    pactrain.attach(DistributedDataParallel(model, init_sync=False))


def diverged(talk: Talk, later: bool) -> dict[str, Any]:
    """Rank 1 has other weights: from the start, or by a load of its own."""
    model = mlp()
    ddp = DistributedDataParallel(model)
    session = pactrain.attach(ddp)
    optimizer = sgd(model)
    for step in range(3 if later else 0):
        train_step(ddp, optimizer, batch(talk, step))
    if talk.rank == 1:
        with torch.no_grad():
            model[0].bias[0] += 1
        if later:
            model.load_state_dict(model.state_dict())
    try:
        with session.guard():
            ddp(batch(talk, 9)).square().mean().backward()
    except pactrain.PacTrainError as error:
        return {"error": type(error).__name__, "text": str(error), "final": error.final}
    return {"error": "none", "text": "", "final": False}


def attached(model: nn.Module) -> tuple[nn.Module, Any]:
    ddp = DistributedDataParallel(model)
    return ddp, pactrain.attach(ddp)


def interrupted(
    talk: Talk, wrap: Callable[[nn.Module], tuple[nn.Module, Any]] = attached
) -> dict[str, Any]:
    """Five steps, a pause in which the test does something, then as many as it says."""
    model = mlp()
    pactrain.prune(model, 0.6)
    ddp, session = wrap(model)
    optimizer = sgd(model)
    error: pactrain.PacTrainError | None = None
    step, stop = 0, 5
    while step < stop:
        before = digest(model)
        optimizer.zero_grad()
        try:
            with session.guard():
                ddp(batch(talk, step)).square().mean().backward()
        except pactrain.PacTrainError as failed:
            error = failed
            break
        optimizer.step()
        step += 1
        if step == 5:
            talk.say("training")
            stop += talk.hear()
    return {
        "steps": step,
        "error": type(error).__name__,
        "text": str(error),
        "digest": digest(model),
        "untouched": error is None or digest(model) == before,
        "cleared": all(p.grad is None for p in model.parameters()),
    }


def attach_only(talk: Talk, amount: float = 0.5) -> str:
    model = mlp()
    pactrain.prune(model, amount)
    session = pactrain.attach(DistributedDataParallel(model))
    session.close()
    return "attached"


def jobs_of_their_own(talk: Talk) -> str:
    """Every rank has another PACTRAIN_JOB_ID."""
    os.environ["PACTRAIN_JOB_ID"] = f"job-of-rank-{talk.rank}"
    return attach_only(talk)


def agent_of_rank_zero_only(talk: Talk) -> str:
    if talk.rank != 0:
        del os.environ["PACTRAIN_AGENT"]
    return attach_only(talk)


def only_rank_zero_attaches(talk: Talk) -> None:
    ddp = DistributedDataParallel(mlp())
    if talk.rank == 0:
        pactrain.attach(ddp)
    talk.hear()


def two_models(talk: Talk) -> dict[str, list[str]]:
    """Two at once, and a third after they were closed."""
    sessions = [pactrain.attach(DistributedDataParallel(mlp())) for _ in range(2)]
    agents, sites = [s.agent for s in sessions], [s.site for s in sessions]
    for session in sessions:
        session.close()
    third = pactrain.attach(DistributedDataParallel(mlp()))
    return {"agents": [*agents, third.agent], "sites": [*sites, third.site]}
