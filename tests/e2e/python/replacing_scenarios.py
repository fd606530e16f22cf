"""What ranks do whose job begins anew without them, and what they do that begin it."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import membership_scenarios
import scenarios
import torch
from launcher import Talk

import pactrain


class _Said(logging.Handler):
    """What users see of what a rank waits for."""

    def __init__(self, talk: Talk) -> None:
        super().__init__(logging.WARNING)
        self._talk = talk

    def emit(self, record: logging.LogRecord) -> None:
        self._talk.say(record.getMessage())


def told(talk: Talk, **arguments: Any) -> dict[str, Any]:
    """Trains, and tells the test each warning."""
    logging.getLogger("pactrain").addHandler(_Said(talk))
    return membership_scenarios.trained(talk, **arguments)


def until_replaced(talk: Talk, seed: int, until: int, stops: tuple[int, ...]) -> dict[str, Any]:
    """Trains on till another launch has the job; how it is told so, and whether its own state is
    as the last batch left it.

    It waits for a word from the test after the batches in `stops`; `until` bounds nothing here.
    """
    model = scenarios.mlp(seed)
    ddp = pactrain.DistributedDataParallel(model, bucket_cap_mb=0.002)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    ddp.share(optimizer=optimizer)

    def state() -> list[list[float]]:
        momenta = (optimizer.state[parameter] for parameter in model.parameters())
        return [[scenarios.digest(model)], *(m["momentum_buffer"].tolist() for m in momenta)]

    before = []
    try:
        for batch in itertools.count(1):
            optimizer.zero_grad()
            ddp(membership_scenarios.inputs(batch, seed)).square().mean().backward()
            optimizer.step()
            before = state()
            if batch in stops:
                talk.say(batch)
                talk.hear()
    except pactrain.ReplacedError as error:
        return {"batches": batch - 1, "text": str(error), "untouched": state() == before}
    raise AssertionError("it was not replaced")
