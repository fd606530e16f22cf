"""What ranks do in the end-to-end tests of pruning. Each function runs in every rank."""

from __future__ import annotations

from typing import Any

import torch
from launcher import Talk
from scenarios import MOST_STEPS, batch, mlp, outcome, sgd, train_step
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pactrain
from pactrain import Mode
from pactrain.masks import registry

OPTIMIZERS = {
    "sgd": sgd,
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1),
}
AFTER = 5  # Steps once all has been agreed on.


def masks_of(model: nn.Module) -> dict[str, torch.Tensor]:
    masks = {name: registry.get(p) for name, p in model.named_parameters()}
    return {name: mask.clone() for name, mask in masks.items() if mask is not None}


def moved(model: nn.Module, masks: dict[str, torch.Tensor], values: dict[str, torch.Tensor]) -> int:
    """Weights outside the masks that are not what they were, bit for bit."""
    return sum(
        int((p[~masks[name]] != values[name][~masks[name]]).sum())
        for name, p in model.named_parameters()
        if name in masks
    )


def scheduled(talk: Talk, optimizer: str, kind: str, changes: int = 10) -> dict[str, Any]:
    """0 to 0.8; from each activation on weights outside the masks are looked at."""
    model = mlp()
    ddp = DistributedDataParallel(model)
    session = pactrain.attach(ddp)
    first_step = session.next_step
    schedule = pactrain.PruningSchedule(ddp, 0.8, steps=4 * changes, every=4, start=3, kind=kind)
    made = OPTIMIZERS[optimizer](model)
    wanted: dict[str, torch.Tensor] = {}
    active: dict[str, torch.Tensor] = {}
    values: dict[str, torch.Tensor] = {}
    seen: list[tuple[float, int]] = []  # Active keep, and the step it was first seen in.
    not_inside = wrong = full_after = done_for = step = 0
    while done_for < AFTER:
        assert step < MOST_STEPS, f"{schedule.changes} changes, {session.decision}"
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        train_step(ddp, made, batch(talk, step))
        keep = session.stats()["pactrain/active_keep"]
        if keep < 1 and (not seen or keep != seen[-1][0]):
            seen.append((keep, step))
            not_inside += sum(int((wanted[n] & ~m).sum()) for n, m in active.items())
            active = wanted
            values = {n: torch.zeros_like(v) for n, v in before.items()}
            if kind == "freeze":
                values = before
        wrong += moved(model, active, values)
        full_after += bool(seen) and session.decision.mode == Mode.FULL
        if schedule.step() is not None:
            wanted = masks_of(model)
        step += 1
        done_for += schedule.done
    result = outcome(session, model)
    report = pactrain.sparsity(model)
    session.close()
    return {
        **result,
        "seen": seen,
        "wrong": wrong,
        "not_inside": not_inside,
        "full_after": full_after,
        "made": step,
        "numbered": result["next_step"] - first_step,
        "layers": {name: kept for name, _, kept in report.layers},
        "text": str(report),
    }
