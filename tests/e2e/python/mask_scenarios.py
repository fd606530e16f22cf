"""What ranks do in the end-to-end tests of pruning. Each function runs in every rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from launcher import Talk
from scenarios import MOST_STEPS, batch, mlp, outcome, sgd, steps, train_step
from torch import nn
from torch.nn.functional import mse_loss
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


def by_own_batch(talk: Talk, step: int) -> dict[str, Any]:
    """Arguments of prune() for GraSP by a batch that no other rank has."""
    return {
        "method": "grasp",
        "loss": mse_loss,
        "batch": (batch(talk, step), batch(talk, step + 1, (8, 4))),
    }


def grasp_fails_on(talk: Talk, failing: int, argument: str) -> dict[str, Any]:
    """One argument of one rank is wrong; then all prune again and go on."""

    def fails(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("no such loss")

    model = mlp()
    ddp = DistributedDataParallel(model)
    session = pactrain.attach(ddp)
    given = by_own_batch(talk, 500)
    wrong = {"loss": fails, "amount": 1.5, "exempt": ("typo",)}
    changed = {argument: wrong[argument]} if talk.rank == failing else {}
    error = None
    try:
        pactrain.prune(ddp, **{"amount": 0.5, **given, **changed})
    except Exception as raised:
        error = raised
    masked = bool(masks_of(model))
    pactrain.prune(ddp, 0.5, **given)
    optimizer = sgd(model)
    for step in steps(session, lambda: session.masks_settled):
        train_step(ddp, optimizer, batch(talk, step))
    return {
        **outcome(session, model),
        "error": type(error).__name__,
        "text": str(error),
        "masked": masked,
    }


def grasp_then_again(talk: Talk) -> dict[str, Any]:
    """Other weights and batches at each rank; then more is pruned in the running job."""
    model = mlp(seed=talk.rank)
    pactrain.prune(model, 0.4, **by_own_batch(talk, 500))
    own = masks_of(model)
    ddp = DistributedDataParallel(model)
    session = pactrain.attach(ddp)
    first_step = session.next_step
    optimizer = sgd(model)
    for step in steps(session):
        train_step(ddp, optimizer, batch(talk, step))
    first = masks_of(model)
    before = pactrain.sparsity(model).kept
    report = pactrain.prune(ddp, 0.7, **by_own_batch(talk, 600))
    second = masks_of(model)
    zeros = {name: torch.zeros_like(mask, dtype=torch.float) for name, mask in second.items()}
    for last in steps(session, lambda: session.masks_settled, start=step + 1):
        train_step(ddp, optimizer, batch(talk, last))
    result = outcome(session, model)
    return {
        **result,
        "replaced": any(not torch.equal(own[n], m) for n, m in first.items()),
        "masks": {name: mask.tolist() for name, mask in second.items()},
        "inside": all(bool((first[n] | ~m).all()) for n, m in second.items()),
        "kept": (before, report.kept),
        "outside": moved(model, second, zeros),
        "lost": last + 1 + 1 - (result["next_step"] - first_step),  # One broadcast.
        "dense": result["stats"]["pactrain/dense_steps"],
    }


def frozen_seeded_differently(talk: Talk, optimizer: str) -> dict[str, Any]:
    """Every rank freezes weights of its own before DDP gives all rank 0's."""
    model = mlp(seed=talk.rank)
    pactrain.prune(model, 0.6, kind="freeze", method="random", seed=talk.rank)
    ddp = DistributedDataParallel(model)
    values = {name: p.detach().clone() for name, p in model.named_parameters()}
    session = pactrain.attach(ddp)
    masks = masks_of(model)
    made = OPTIMIZERS[optimizer](model)
    wrong = 0
    for step in steps(session):
        train_step(ddp, made, batch(talk, step))
        if session.stats()["pactrain/masks_active"]:
            wrong += moved(model, masks, values)
    result = outcome(session, model)
    trained = sum(int((p != values[n]).sum()) for n, p in model.named_parameters())
    return {**result, "wrong": wrong, "trained": trained, "kept": pactrain.sparsity(model).kept}


def schedules_of_their_own(talk: Talk) -> dict[str, Any]:
    """Ranks whose random masks differ after the first change; then rank 0's are taken."""
    model = mlp()
    pactrain.prune(model, 0.2)
    ddp = DistributedDataParallel(model)
    session = pactrain.attach(ddp)
    schedule = pactrain.PruningSchedule(
        ddp, 0.6, steps=9, every=3, start=10, method="random", seed=talk.rank
    )
    optimizer = sgd(model)
    for step in steps(session):
        train_step(ddp, optimizer, batch(talk, step))
        schedule.step()
    alone = outcome(session, model)
    changes = schedule.changes, session.masks_settled
    session.sync_masks()
    for last in steps(session, lambda: session.masks_settled, start=step + 1):
        train_step(ddp, optimizer, batch(talk, last))
    return {**outcome(session, model), "alone": alone, "changes": changes}


def resumed(talk: Talk, file: str, start: bool) -> dict[str, Any]:
    """A frozen schedule that is interrupted in the middle, saved and gone on with."""
    model = mlp()
    state = None if start else torch.load(Path(file), weights_only=True)
    if state is not None:
        model.load_state_dict(state["model"])
    ddp = DistributedDataParallel(model)
    session = pactrain.attach(ddp, state=state and state["session"])
    schedule = pactrain.PruningSchedule(ddp, 0.75, steps=20, every=5, kind="freeze")
    if state is not None:
        schedule.load_state_dict(state["schedule"])
    values = {name: p.detach().clone() for name, p in model.named_parameters()}
    masks = masks_of(model)
    optimizer = OPTIMIZERS["adamw"](model)
    step = wrong = 0
    while not schedule.done:
        assert step < MOST_STEPS
        train_step(ddp, optimizer, batch(talk, step))
        if session.stats()["pactrain/masks_active"]:
            wrong += moved(model, masks, values)
        # Before step(), which declares the next change as soon as it may.
        if start and schedule.changes == 2 and session.masks_settled:
            break
        schedule.step()
        step += 1
    saved = {
        "model": model.state_dict(),
        "session": session.state_dict(),
        "schedule": schedule.state_dict(),
    }
    if talk.rank == 0:
        torch.save(saved, Path(file))
    result = outcome(session, model)
    session.close()
    return {
        **result,
        "wrong": wrong,
        "changes": schedule.changes,
        "report": pactrain.sparsity(model),
    }


def by_hand(talk: Talk) -> dict[str, Any]:
    """No optimizer: weights are changed as pytorch/examples word_language_model does."""
    model = mlp()
    pactrain.prune(model, 0.6)
    masks = masks_of(model)
    zeros = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    ddp = DistributedDataParallel(model)
    session = pactrain.attach(ddp)
    momenta = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    seen: list[int] = []
    for step in steps(session):
        model.zero_grad()
        ddp(batch(talk, step)).square().mean().backward()
        for name, p in model.named_parameters():
            assert p.grad is not None
            momenta[name].mul_(0.9).add_(p.grad)
            p.data.add_(momenta[name], alpha=-0.1)
    model.register_forward_pre_hook(lambda *_: seen.append(moved(model, masks, zeros)))
    ddp(batch(talk, 0))
    session.close()
    return {
        **outcome(session, model),
        "seen": seen,
        "outside": moved(model, masks, zeros),
        "report": pactrain.sparsity(model),
    }


def loaded_in_mid_run(talk: Talk, pruned: bool) -> dict[str, Any]:
    """A checkpoint with other zeros, or none, while masks are in force."""
    other = mlp(seed=7)
    pactrain.prune(other, 0.6)
    if not pruned:
        other = mlp(seed=7)
    checkpoint = {name: p.detach().clone() for name, p in other.state_dict().items()}
    model = mlp()
    pactrain.prune(model, 0.6)
    ddp = DistributedDataParallel(model)
    session = pactrain.attach(ddp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for step in steps(session):
        train_step(ddp, optimizer, batch(talk, step))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    ddp.load_state_dict({f"module.{name}": value for name, value in checkpoint.items()})
    error = ""
    if not pruned:
        try:
            with session.guard():
                train_step(ddp, optimizer, batch(talk, step + 1))
        except pactrain.PacTrainError as raised:
            error = str(raised)
        pactrain.prune(ddp, 0.6)
    lost = 0
    train_step(ddp, optimizer, batch(talk, step + 2))
    for last in steps(session, lambda: session.masks_settled, start=step + 3):
        masks = masks_of(model)
        kept = {name: value * masks.get(name, 1) for name, value in checkpoint.items()}
        lost += sum(
            int((p[masks[name]] != kept[name][masks[name]]).sum())
            for name, p in model.named_parameters()
            if name in masks
        )
        train_step(ddp, optimizer, batch(talk, last))
    largest = all(
        bool(checkpoint[name][mask].abs().min() >= checkpoint[name][~mask].abs().max())
        for name, mask in masks.items()
    )
    return {**outcome(session, model), "error": error, "lost": lost, "largest": largest}
