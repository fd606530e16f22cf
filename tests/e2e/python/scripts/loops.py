"""Training loops of all kinds around an ordinary model."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from .place import STEPS, Place, net, sgd, train_step


def plain(place: Place) -> Any:
    model = net(seed=place.rank)  # DDP gives all ranks those of rank 0.
    ddp = place.wrap(model)
    place.attach(ddp)
    optimizer = sgd(model)
    losses = [train_step(ddp, optimizer, place.batch(step)) for step in range(STEPS)]
    return model, losses


def pruned_apart(place: Place) -> Any:
    return plain(place)


def _compiled(place: Place, backend: str, inside: bool) -> Any:
    model = net()
    if inside:
        ddp: Any = place.wrap(torch.compile(model, backend=backend))
    else:
        ddp = torch.compile(place.wrap(model), backend=backend)
    place.attach(ddp)
    optimizer = sgd(model)
    for step in range(STEPS):
        train_step(ddp, optimizer, place.batch(step))
    return model


def compile_aot(place: Place) -> Any:
    return _compiled(place, "aot_eager", inside=False)


def compile_inductor(place: Place) -> Any:
    return _compiled(place, "inductor", inside=False)


def compile_inductor_inside(place: Place) -> Any:
    return _compiled(place, "inductor", inside=True)


def compiled_step(place: Place) -> Any:
    """The optimizer's step is compiled."""
    model = net()
    ddp = place.wrap(model)
    place.attach(ddp)
    optimizer = sgd(model)
    optimizer.step = torch.compile(optimizer.step, backend="eager")
    for step in range(STEPS):
        train_step(ddp, optimizer, place.batch(step))
    return model


def autocast(place: Place) -> Any:
    model = net()
    ddp = place.wrap(model)
    place.attach(ddp)
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = ddp(place.batch(step)).square().mean()
        loss.backward()
        optimizer.step()
    return model


def scaler(place: Place) -> Any:
    """One rank's gradient overflows in one step: all ranks skip it."""
    model = net()
    ddp = place.wrap(model)
    place.attach(ddp)
    optimizer = sgd(model)
    scaling = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = ddp(place.batch(step)).square().mean()
        if step in (0, 5) and place.rank == place.world - 1:
            loss = loss * float("inf")
        scaling.scale(loss).backward()
        scaling.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaling.step(optimizer)
        scaling.update()
    return model, scaling.get_scale()


def _loaded(place: Place, **options: Any) -> Any:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(64, 10, generator=generator)
    data = TensorDataset(inputs, torch.arange(64))
    sampler: Any = DistributedSampler(data, place.world, place.rank)
    loader = DataLoader(data, batch_size=8, sampler=sampler, **options)
    model = net()
    ddp = place.wrap(model)
    place.attach(ddp)
    optimizer = sgd(model)
    seen: list[int] = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch, numbers in loader:
            train_step(ddp, optimizer, batch)
            seen += numbers.tolist()
    return model, seen


def workers_fork(place: Place) -> Any:
    return _loaded(place, num_workers=2, multiprocessing_context="fork")


def workers_persistent(place: Place) -> Any:
    return _loaded(place, num_workers=2, multiprocessing_context="fork", persistent_workers=True)


def workers_spawn(place: Place) -> Any:
    return _loaded(place, num_workers=1, multiprocessing_context="spawn", persistent_workers=True)


def _accumulation_rounds() -> list[list[int]]:
    """Seven batches by three: the last round is short."""
    return [[0, 1, 2], [3, 4, 5], [6]]


def accumulation(place: Place) -> Any:
    model = net()
    ddp = place.wrap(model)
    place.attach(ddp)
    optimizer = sgd(model)
    for epoch in range(2):
        for batches in _accumulation_rounds():
            optimizer.zero_grad()
            for batch in batches[:-1]:
                with ddp.no_sync():
                    (ddp(place.batch(10 * epoch + batch)).square().mean() / 3).backward()
            (ddp(place.batch(10 * epoch + batches[-1])).square().mean() / 3).backward()
            optimizer.step()
    return model


def accumulation_flag(place: Place) -> Any:
    """As nanoGPT does it."""
    model = net()
    ddp = place.wrap(model)
    place.attach(ddp)
    optimizer = sgd(model)
    for epoch in range(2):
        for batches in _accumulation_rounds():
            for batch in batches:
                ddp.require_backward_grad_sync = batch == batches[-1]
                (ddp(place.batch(10 * epoch + batch)).square().mean() / 3).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return model


def accumulation_not_exchanged(place: Place) -> Any:
    """A mistake: the last round is short and ends within no_sync()."""
    model = net()
    ddp = place.wrap(model)
    place.attach(ddp)
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        if step == 5:
            with ddp.no_sync():
                ddp(place.batch(step)).square().mean().backward()
        else:
            ddp(place.batch(step)).square().mean().backward()
        optimizer.step()
    return model


def penalty_first(place: Place) -> Any:
    """A term of the weights alone has a backward pass of its own."""
    model = net()
    ddp = place.wrap(model)
    place.attach(ddp)
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        (1e-3 * model[0].weight.square().sum()).backward()
        ddp(place.batch(step)).square().mean().backward()
        optimizer.step()
    return model


def penalty_last(place: Place) -> Any:
    model = net()
    ddp = place.wrap(model)
    place.attach(ddp)
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        ddp(place.batch(step)).square().mean().backward()
        (1e-3 * model[0].weight.square().sum()).backward()
        optimizer.step()
    return model


def called_inside(place: Place) -> Any:
    """A mistake: the model inside is called, which exchanges nothing."""
    model = net()
    place.attach(place.wrap(model))
    optimizer = sgd(model)
    for step in range(STEPS):
        train_step(model, optimizer, place.batch(step))
    return model


def drifted(place: Place) -> Any:
    """Rank 1 moves its weights alone, by no optimizer."""
    model = net()
    ddp = place.wrap(model)
    session = place.attach(ddp)
    optimizer = sgd(model)
    with session.guard():
        for step in range(120):
            train_step(ddp, optimizer, place.batch(step))
            if step == 5 and place.rank == 1:
                model[0].weight.data.mul_(1.01)
    return model


def accumulation_all(place: Place) -> Any:
    """Without no_sync(): every backward pass is exchanged, and gradients add up."""
    model = net()
    ddp = place.wrap(model)
    place.attach(ddp)
    optimizer = sgd(model)
    for step in range(STEPS):
        (ddp(place.batch(step)).square().mean() / 2).backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    return model


def clipping(place: Place) -> Any:
    model = net()
    ddp = place.wrap(model)
    place.attach(ddp)
    optimizer = sgd(model)
    norms = []
    for step in range(STEPS):
        optimizer.zero_grad()
        ddp(place.batch(step)).square().mean().backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.05))
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        for parameter in model.parameters():
            parameter.grad.data = parameter.grad.data.clamp(-0.005, 0.005)
        optimizer.step()
    return model, norms


def zero_redundancy(place: Place) -> Any:
    model = net()
    ddp = place.wrap(model)
    place.attach(ddp)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.AdamW, lr=0.01, weight_decay=0.01
    )
    for step in range(STEPS):
        train_step(ddp, optimizer, place.batch(step))
    return model


def two_models(place: Place) -> Any:
    """A generator and a discriminator that takes two backward passes per step."""
    makes, judges = net(), net(seed=1)
    makes[6] = nn.Linear(32, 10)
    makes_ddp, judges_ddp = place.wrap(makes), place.wrap(judges)
    place.attach(makes_ddp)
    place.attach(judges_ddp)
    make, judge = sgd(makes), sgd(judges)
    for step in range(STEPS):
        judge.zero_grad()
        judges_ddp(place.batch(step)).square().mean().backward()
        made = makes_ddp(place.batch(step + 100))
        (judges_ddp(made.detach()) - 1).square().mean().backward()
        judge.step()
        make.zero_grad()
        for parameter in judges.parameters():
            parameter.requires_grad_(False)
        judges(made).square().mean().backward()
        for parameter in judges.parameters():
            parameter.requires_grad_(True)
        make.step()
    return makes, judges


def _clamp(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.clamp_(-0.01, 0.01)


def hooks(place: Place) -> Any:
    """The user's own: on gradients of single weights, and after they were accumulated."""
    model = net()
    seen: list[float] = []
    model[0].weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    model[2].bias.register_post_accumulate_grad_hook(
        lambda parameter: seen.append(float(parameter.grad.sum()))
    )
    ddp = place.wrap(model)
    place.attach(ddp)
    model[4].weight.register_hook(lambda gradient: gradient * 2)
    model[4].register_full_backward_hook(lambda m, before, after: (before[0] * 0.5,))
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(_clamp)
    optimizer = sgd(model)
    for step in range(STEPS):
        train_step(ddp, optimizer, place.batch(step))
    return model, seen


def dropped_gradients(place: Place) -> Any:
    """DINO: the last layer is not trained at first, so its gradients are dropped."""
    model = net()
    ddp = place.wrap(model)
    place.attach(ddp)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        ddp(place.batch(step)).square().mean().backward()
        if step < 4:
            for name, parameter in ddp.named_parameters():
                if "4." in name or "6." in name:
                    parameter.grad = None
        optimizer.step()
    return model


def ema(place: Place) -> Any:
    model = net()
    ddp = place.wrap(model)
    place.attach(ddp)
    averaged = AveragedModel(ddp, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    teacher = copy.deepcopy(model).requires_grad_(False)
    optimizer = sgd(model)
    for step in range(STEPS):
        train_step(ddp, optimizer, place.batch(step))
        averaged.update_parameters(ddp)
        with torch.no_grad():
            for mean, new in zip(teacher.parameters(), model.parameters(), strict=True):
                mean.mul_(0.9).add_(new, alpha=0.1)
    return model, averaged, teacher


def lbfgs(place: Place) -> Any:
    """Several backward passes in one optimizer step."""
    model = net()
    ddp = place.wrap(model)
    place.attach(ddp)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    batch = place.batch(0)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = ddp(batch).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    return model


def kept_gradients(place: Place) -> Any:
    """PCGrad: gradients of two tasks are kept in lists, and what conflicts is taken off."""
    model = net()
    ddp = place.wrap(model)
    place.attach(ddp)
    optimizer = sgd(model)
    parameters = list(model.parameters())
    for step in range(STEPS):
        kept: list[list[Any]] = []
        for task in range(2):
            optimizer.zero_grad()
            outputs = ddp(place.batch(step))[:, 2 * task : 2 * task + 2]
            (outputs - task).square().mean().backward()
            kept.append([parameter.grad for parameter in parameters])
        for parameter, one, other in zip(parameters, *kept, strict=True):
            conflict = (one * other).sum().clamp(max=0) / other.square().sum().add(1e-12)
            parameter.grad = one + (1 - conflict) * other
        optimizer.step()
    return model


class _Replaces(torch.optim.Optimizer):
    """Puts a new tensor in p.data in each step, as some optimizers do."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.data = parameter.data - 0.05 * (parameter.grad + 1e-3)


def replaced_data(place: Place) -> Any:
    model = net()
    ddp = place.wrap(model)
    place.attach(ddp)
    optimizer = _Replaces(model.parameters())
    for step in range(STEPS):
        train_step(ddp, optimizer, place.batch(step))
    return model


def by_hand(place: Place) -> Any:
    """No optimizer at all, as in pytorch/examples word_language_model."""
    model = net()
    ddp = place.wrap(model)
    place.attach(ddp)
    for step in range(STEPS):
        model.zero_grad()
        ddp(place.batch(step)).square().mean().backward()
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.05)
    return model
