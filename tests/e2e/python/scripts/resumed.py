"""Scripts that save in mid-run and, started again, go on from there."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

import pactrain

from .place import AMOUNT, STEPS, Place, net, sgd, train_step


def _saved(place: Place) -> Any:
    file = place.folder / "checkpoint.pt"
    return torch.load(file) if file.exists() else None


def _train_and_save(
    place: Place,
    ddp: nn.Module,
    optimizer: Optimizer,
    saved: Any,
    session: Any = None,
    steps: int = STEPS,
) -> None:
    first = saved["step"] if saved else 0
    for step in range(first, first + steps):
        train_step(ddp, optimizer, place.batch(step))
    if place.rank == 0:
        made = {
            "step": first + steps,
            "model": ddp.state_dict(),
            "optimizer": optimizer.state_dict(),
        }
        if session is not None:
            made["session"] = session.state_dict()
        torch.save(made, place.folder / "checkpoint.pt")
    dist.barrier()


def load_before_wrap(place: Place) -> Any:
    saved = _saved(place)
    model = net(seed=1 if saved else 0)
    if saved:
        model.load_state_dict(
            {name.removeprefix("module."): value for name, value in saved["model"].items()}
        )
    ddp = place.wrap(model)
    place.attach(ddp)
    optimizer = sgd(model)
    if saved:
        optimizer.load_state_dict(saved["optimizer"])
    _train_and_save(place, ddp, optimizer, saved)
    return model


def load_after_wrap(place: Place) -> Any:
    """As pytorch/examples imagenet --resume: the weights of before come last."""
    saved = _saved(place)
    model = net(seed=1 if saved else 0)
    ddp = place.wrap(model)
    place.attach(ddp)
    optimizer = sgd(model)
    if saved:
        ddp.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    _train_and_save(place, ddp, optimizer, saved)
    return model


def load_after_wrap_pruned(place: Place) -> Any:
    """Its zeros are not those of the fresh weights that were pruned."""
    return load_after_wrap(place)


def other_world(place: Place) -> Any:
    return load_before_wrap(place)


def other_world_after_wrap(place: Place) -> Any:
    return load_after_wrap(place)


def session_state(place: Place) -> Any:
    """One that knows PacTrain: the session's state is saved, too."""
    saved = _saved(place)
    model = net(seed=1 if saved else 0)
    ddp = place.wrap(model)
    if saved:
        ddp.load_state_dict(saved["model"])
    session = place.attach(ddp, state=saved["session"] if saved else None)
    optimizer = sgd(model)
    if saved:
        optimizer.load_state_dict(saved["optimizer"])
    _train_and_save(place, ddp, optimizer, saved, session)
    return model


def state_after_prune(place: Place) -> Any:
    """More is pruned after the load, before the session's state is given."""
    saved = _saved(place)
    model = net(seed=1 if saved else 0)
    ddp = place.wrap(model)
    if saved:
        ddp.load_state_dict(saved["model"])
        pactrain.prune(model, 0.8)
    session = place.attach(ddp, state=saved["session"] if saved else None)
    optimizer = sgd(model)
    for step in range(2 * STEPS if saved else 0):
        train_step(ddp, optimizer, place.batch(step))
    _train_and_save(place, ddp, optimizer, saved, session)
    return model


def assign_before_wrap(place: Place) -> Any:
    """load_state_dict(assign=True) puts other parameters in the model."""
    model = net(seed=1)
    model.load_state_dict(net(seed=0).state_dict(), assign=True)
    ddp = place.wrap(model)
    place.attach(ddp)
    optimizer = sgd(model)
    for step in range(STEPS):
        train_step(ddp, optimizer, place.batch(step))
    return model


def assign_after_wrap(place: Place) -> Any:
    """DDP does not know the new parameters: plain DDP trains them on each rank alone."""
    model = net(seed=1)
    ddp = place.wrap(model)
    place.attach(ddp)
    model.load_state_dict(net(seed=0).state_dict(), assign=True)
    optimizer = sgd(model)
    for step in range(STEPS):
        train_step(ddp, optimizer, place.batch(step))
    return model


def stale_masks(place: Place) -> Any:
    """A pruned checkpoint is loaded after prune(), and no rank takes another's masks."""
    trained = net(seed=0)
    pactrain.prune(trained, AMOUNT)
    weights = trained.state_dict()
    model = net(seed=1)
    if place.ours:
        pactrain.prune(model, AMOUNT)
        model.load_state_dict(weights)
    ddp = place.wrap(model)
    place.attach(ddp, sync_masks=False)
    optimizer = sgd(model)
    for step in range(3 * STEPS):
        train_step(ddp, optimizer, place.batch(step))
    if not place.ours:
        return True, True
    return [torch.equal(model[i].weight == 0, weights[f"{i}.weight"] == 0) for i in (2, 4)]


def from_weights(place: Place) -> Any:
    """A network that was pruned elsewhere: the zeros of its weights are the masks."""
    model = net()
    ddp = place.wrap(model)
    place.attach(ddp, masks="weights")
    optimizer = sgd(model)
    for step in range(3 * STEPS):
        train_step(ddp, optimizer, place.batch(step))
    return model
