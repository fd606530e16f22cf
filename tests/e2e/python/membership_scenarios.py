"""What ranks do whose number changes: a script that shares what it goes on from."""

from __future__ import annotations

from typing import Any

import scenarios
import torch
import twin
from launcher import Talk
from torch.nn.functional import cross_entropy

import pactrain
from pactrain._library import digest_of


class Place:
    """How many batches this job has seen, and with how many ranks."""

    def __init__(self) -> None:
        self.batch = 0
        self.sizes: list[int] = []
        self.since = 0  # The batch since which it has the last size.

    def advance(self, world_size: int) -> None:
        self.batch += 1
        if self.sizes[-1:] != [world_size]:
            self.sizes.append(world_size)
            self.since = self.batch

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


class NextBatch:
    """As the C++ example shares it."""

    def __init__(self) -> None:
        self.epoch = 0
        self.step = 0

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def inputs(batch: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * batch + seed)
    return torch.randn((8, 10), generator=generator)


def trained(
    talk: Talk,
    seed: int,
    until: int,
    amount: float = 0.0,
    share: bool = True,
    width: int = 32,
    stops: tuple[int, ...] = (),
    sizes: tuple[int, ...] = (),
    lasts: int = scenarios.MOST_STEPS,
    device: str = "cpu",
    fault: bool = False,
) -> dict[str, Any]:
    """Until the job has seen `until` batches, and `sizes`, the last of them for 10 batches; at
    most `lasts` batches of its own. No word about errors.

    It waits for a word from the test after each number of batches in `stops`, and tells it each
    new world size that it made a batch with. After the first such word its memory has a `fault`.
    """
    model = scenarios.mlp(seed)
    if width != 32:
        model[2] = torch.nn.Linear(32, 32, bias=False)
    if amount:
        pactrain.prune(model, amount)
    model.to(device)
    ddp = pactrain.DistributedDataParallel(model, bucket_cap_mb=0.002)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, foreach=False)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.8)
    place = Place()
    if share:
        ddp.share(optimizer=optimizer, scheduler=scheduler, place=place)
    talk.say("attached")
    ddp.start()
    began = place.batch
    batches = []
    while len(batches) < lasts and (
        place.batch < until
        or (sizes and (tuple(place.sizes) != sizes or place.batch < place.since + 10))
    ):
        optimizer.zero_grad()
        batches.append(place.batch)
        ddp(inputs(place.batch, seed).to(device)).square().mean().backward()
        optimizer.step()
        scheduler.step()
        place.advance(ddp.world.world_size)
        if place.since == place.batch:
            talk.say(f"world size {ddp.world.world_size}")
        if place.batch in stops:
            talk.say(place.batch)
            talk.hear()
            if fault:
                with torch.no_grad():
                    model[0].bias[0] += 1e-3
                fault = False
    state = [
        value for parameter in model.parameters() for value in optimizer.state[parameter].values()
    ]
    result = {
        "digest": scenarios.digest(model),
        "optimizer": [value.tolist() for value in state],
        "lr": scheduler.get_last_lr(),
        "began": began,
        "batches": batches,
        "sizes": place.sizes,
        "world": ddp.world,
        "stats": ddp.session.stats(),
    }
    ddp.session.close()
    return result


def digits_with_cpp(
    talk: Talk,
    path: str,
    epochs: int,
    batch: int,
    amount: float,
    kind: str = "zero",
    stops: tuple[int, ...] = (),
) -> dict[str, Any]:
    """What examples/cpp_trainer does: in a job with it, whatever becomes of the ranks.

    It waits for a word from the test after each number of batches in `stops`.
    """
    world = pactrain.init()
    torch.manual_seed(world.rank)
    data, test = twin.read(path)
    images, labels = data.tensors
    model = twin.example.make_model(images.shape[1])
    pactrain.prune(model, amount, kind=kind)
    ddp = pactrain.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    place = NextBatch()
    ddp.share(optimizer=optimizer, place=place)
    ddp.start()
    began, sizes = place.step, []
    while place.epoch < epochs:
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(place.epoch))
        while place.step < len(labels) // (batch * ddp.world.world_size):
            at = place.step * ddp.world.world_size + ddp.world.rank
            chosen = order[at * batch :][:batch]
            optimizer.zero_grad()
            cross_entropy(ddp(images[chosen]), labels[chosen]).backward()
            optimizer.step()
            place.step += 1
            sizes += [ddp.world.world_size]
            if place.epoch == 0 and place.step in stops:
                talk.say(place.step)
                talk.hear()
        place.epoch, place.step = place.epoch + 1, 0
    ddp.session.sync_buffers()
    result = {
        "digest": ddp.session.parameters.value_digest(digest_of).to_bytes().hex(),
        "accuracy": twin.example.accuracy(model, test),
        "began": began,
        "sizes": sorted(set(sizes)),
        "momentum": sum(s["momentum_buffer"].abs().sum().item() for s in optimizer.state.values()),
    }
    ddp.session.close()
    return result
