"""Models of all kinds in an ordinary training loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils import prune as torch_prune
from torch.utils.checkpoint import checkpoint

from .place import STEPS, Place, net, sgd, train_step


def _train(
    place: Place,
    model: nn.Module,
    inputs: Callable[[int], Tensor] | None = None,
    **options: Any,
) -> nn.Module:
    ddp = place.wrap(model, **options)
    place.attach(ddp)
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9
    )
    for step in range(STEPS):
        train_step(ddp, optimizer, inputs(step) if inputs else place.batch(step))
    return model


def conv(norm: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8) if norm else nn.Identity(), nn.ReLU(),
        nn.Conv2d(8, 8, 3), nn.ReLU(),
        nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip


def bfloat16(place: Place) -> Any:
    return _train(place, net().bfloat16(), lambda step: place.batch(step).bfloat16())


class _Mixed(nn.Module):
    """fp32 and bf16 parameters in one model: buckets of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(10, 32)
        self.middle = nn.Linear(32, 32).bfloat16()
        self.last = nn.Linear(32, 4)

    def forward(self, inputs: Tensor) -> Any:
        return self.last(self.middle(self.first(inputs).bfloat16()).float())


def mixed_types(place: Place) -> Any:
    torch.manual_seed(0)
    return _train(place, _Mixed())


def channels_last(place: Place) -> Any:
    def inputs(step: int) -> Tensor:
        images = place.batch(step, (4, 3, 12, 12))
        return images.contiguous(memory_format=torch.channels_last)

    return _train(place, conv().to(memory_format=torch.channels_last), inputs)


def reordered_later(place: Place) -> Any:
    """Gradients would reach other weights than those that they are of."""
    model = conv()
    ddp = place.wrap(model)
    place.attach(ddp)
    optimizer = sgd(model)
    for step in range(STEPS):
        if step == 4:
            model.to(memory_format=torch.channels_last)
        train_step(ddp, optimizer, place.batch(step, (4, 3, 12, 12)))
    return model


def batch_norm(place: Place) -> Any:
    """Every rank has statistics of its own, until all take those of rank 0."""
    model = conv(norm=True)
    ddp = place.wrap(model)
    session = place.attach(ddp, buffer_sync_interval=5)
    optimizer = sgd(model)
    for step in range(STEPS):
        train_step(ddp, optimizer, place.batch(step, (4, 3, 12, 12)))
    session.sync_buffers()
    for buffer in model.buffers() if not place.ours else ():
        dist.broadcast(buffer, 0)
    return model, list(model.buffers())


def small_buckets(place: Place) -> Any:
    return _train(place, net(), bucket_cap_mb=0.004, gradient_as_bucket_view=True)


def static_graph(place: Place) -> Any:
    return _train(place, net(), static_graph=True)


class _TwoHeads(nn.Module):
    """A parameter that is unused at some ranks, and one that is unused at all."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(10, 32)
        self.left = nn.Linear(32, 32)
        self.right = nn.Linear(32, 32)
        self.never = nn.Linear(32, 32)

    def forward(self, inputs: Tensor, right: bool = False) -> Tensor:
        head = self.right if right else self.left
        hidden: Tensor = head(self.body(inputs).relu())
        return hidden


def unused(place: Place) -> Any:
    model = _trained_heads(place, _TwoHeads())
    return model, model.never.weight.grad is None


def unused_at_times(place: Place) -> Any:
    model = _TwoHeads()
    model.never.requires_grad_(False)
    return _trained_heads(place, model)


def never_reached(place: Place) -> Any:
    return _trained_heads(place, _TwoHeads())


def _trained_heads(place: Place, model: _TwoHeads) -> _TwoHeads:
    ddp = place.wrap(model, find_unused_parameters=True)
    place.attach(ddp)
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        right = (step + place.rank) % 2 == 0
        ddp(place.batch(step), right=right).square().mean().backward()
        optimizer.step()
    return model


class _Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(10, 32)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.1), nn.Tanh()) for _ in range(3)
        )
        self.last = nn.Linear(32, 4)
        self.reentrant = reentrant

    def forward(self, inputs: Tensor) -> Any:
        hidden = self.first(inputs)
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=self.reentrant)
        return self.last(hidden)


def checkpoint_reentrant(place: Place) -> Any:
    return _train(place, _Checkpointed(reentrant=True))


def checkpoint_not_reentrant(place: Place) -> Any:
    return _train(place, _Checkpointed(reentrant=False))


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(20, 16)
        self.body = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Any:
        return self.head(self.body(self.words(words)))


def tied(place: Place) -> Any:
    def words(step: int) -> Tensor:
        return (place.batch(step) * 10).long().remainder(20)

    return _train(place, _Tied(), words)


def renormed(place: Place) -> Any:
    """Forward passes scale the rows that a rank looks up, at this rank alone."""
    torch.manual_seed(0)
    words = nn.Sequential(nn.Embedding(20, 16, max_norm=1.0), nn.Linear(16, 16), nn.Linear(16, 4))
    return _train(place, words, lambda step: (place.batch(step) * 10).long().remainder(20))


def frozen(place: Place) -> Any:
    """Layers that do not train from the start."""
    model = net()
    model[2].requires_grad_(False)
    return _train(place, model)


def frozen_later(place: Place) -> Any:
    """A layer that stops to train: DDP has to look for it."""
    model = net()
    ddp = place.wrap(model, find_unused_parameters=True)
    place.attach(ddp)
    optimizer = sgd(model)
    for step in range(STEPS):
        if step == 4:
            model[2].requires_grad_(False)
        train_step(ddp, optimizer, place.batch(step))
    return model


def frozen_later_unsaid(place: Place) -> Any:
    """The same where DDP waits for its gradient."""
    model = net()
    ddp = place.wrap(model)
    place.attach(ddp)
    optimizer = sgd(model)
    for step in range(STEPS):
        if step == 4:
            model[2].requires_grad_(False)
        train_step(ddp, optimizer, place.batch(step))
    return model


def thawed_later(place: Place) -> Any:
    """A layer that begins to train after DDP was made, which does not know of it."""
    model = net()
    model[0].requires_grad_(False)
    ddp = place.wrap(model)
    place.attach(ddp)
    optimizer = sgd(model)
    for step in range(STEPS):
        if step == 4:
            model[0].requires_grad_(True)
        train_step(ddp, optimizer, place.batch(step))
    return model


def thawed_anew(place: Place) -> Any:
    """The same by the advice of the error: the model is wrapped and attached anew."""
    model = net()
    model[0].requires_grad_(False)
    ddp = place.wrap(model)
    session = place.attach(ddp)
    optimizer = sgd(model)
    for step in range(STEPS):
        if step == 4:
            session.close()
            model[0].requires_grad_(True)
            ddp = place.wrap(model)
            place.attach(ddp)
        train_step(ddp, optimizer, place.batch(step))
    return model


def lora(place: Place) -> Any:
    from peft import LoraConfig, get_peft_model

    model = net()
    torch.manual_seed(1)
    config = LoraConfig(r=4, target_modules=["2", "4"], modules_to_save=["6"])
    adapted: Any = get_peft_model(model, config)
    return _train(place, adapted)


def pruned_by_torch(place: Place) -> Any:
    """Masks of torch.nn.utils.prune, which differ from rank to rank: rank 0's count."""
    model = net(seed=place.rank if place.ours else 0)
    torch.manual_seed(place.rank if place.ours else 0)
    torch_prune.random_unstructured(model[2], "weight", 0.6)
    torch_prune.l1_unstructured(model[4], "weight", 0.6)
    return _train(place, model), [model[2].weight_mask, model[4].weight_mask]


def half_later(place: Place) -> Any:
    """The model is made bfloat16 after it was attached."""
    model = net()
    ddp = place.wrap(model)
    place.attach(ddp)
    model.bfloat16()
    optimizer = sgd(model)
    for step in range(STEPS):
        train_step(ddp, optimizer, place.batch(step).bfloat16())
    return model


def weight_norm(place: Place) -> Any:
    """Its directions are pruned, and so is the weight."""
    model = net()
    parametrizations.weight_norm(model[2])
    return _train(place, model)


def orthogonal(place: Place) -> Any:
    """Zeros of its parameter are none of the weight: the layer is not pruned."""
    model = net()
    parametrizations.orthogonal(model[2], orthogonal_map="householder", use_trivialization=False)
    _train(place, model)
    return model, model[2].weight, [bool(p.all()) for p in model.parameters()]


def unparametrized_later(place: Place) -> Any:
    """A parametrization goes after DDP was made, which waits for its parameters."""
    model = net()
    parametrizations.weight_norm(model[2])
    ddp = place.wrap(model)
    place.attach(ddp)
    optimizer = sgd(model)
    for step in range(STEPS):
        if step == 4:
            parametrize.remove_parametrizations(model[2], "weight")
        train_step(ddp, optimizer, place.batch(step))
    return model


def shared_encoder(place: Place) -> Any:
    """Two models with one encoder, each wrapped."""
    encoder, heads = net(), [net(seed=seed)[6] for seed in (1, 2)]
    encoder[6] = nn.Linear(32, 32)
    wrapped = [place.wrap(nn.Sequential(encoder, head)) for head in heads]
    for ddp in wrapped:
        place.attach(ddp)
    optimizer = sgd(nn.ModuleList([encoder, *heads]))
    for step in range(STEPS):
        optimizer.zero_grad()
        for ddp in wrapped:
            ddp(place.batch(step)).square().mean().backward()
        optimizer.step()
    return encoder, heads
