"""What ranks do where gradients are known, so that the true risk r is."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from typing import Any

import torch
from launcher import Talk
from patience import PATIENCE_SECONDS
from scenarios import steps
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pactrain

ELEMENTS = 1 << 14


class Dot(nn.Module):
    """Its gradient is its input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(ELEMENTS))

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        return self.weight @ gradient


def gradient_of(rank: int, step: int) -> torch.Tensor:
    """With tails so heavy that some is clipped."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    normal, scale = torch.randn((2, ELEMENTS), generator=generator)
    return normal * scale.exp()


def true_risk(mean: torch.Tensor, gradients: torch.Tensor) -> float:
    """||mean - exact mean||^2 over the variance of the mean."""
    exact = gradients.double().mean(0)
    world = len(gradients)
    variance = (gradients.double() - exact).square().sum() / (world - 1) / world
    return float((mean.double() - exact).square().sum() / variance)


def shown_job(show: Sequence[str]) -> dict[str, Any]:
    """What pactrain-admin says of the job once it knows r."""
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        done = subprocess.run(show, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
        job: dict[str, Any] = json.loads(done.stdout)
        if "risk" in job:
            return job
        assert time.monotonic() < end, f"r is not known: {job}"
        time.sleep(0.1)


def known_gradients(talk: Talk, pin: Sequence[str], show: Sequence[str]) -> dict[str, float]:
    """The true r, as a mean over all steps under `pin`, and what `show` says of it."""
    model = Dot()
    ddp = DistributedDataParallel(model)
    session = pactrain.attach(ddp)
    if talk.rank == 0:
        subprocess.run(pin, check=True, timeout=PATIENCE_SECONDS)
    risks = []
    for step in steps(session, lambda: session.decision.mode == pactrain.Mode.TERNARY, after=40):
        ternary = session.decision.mode == pactrain.Mode.TERNARY
        model.weight.grad = None
        ddp(gradient_of(talk.rank, step)).backward()
        assert model.weight.grad is not None
        if ternary:
            all_ranks = [gradient_of(rank, step) for rank in range(talk.world)]
            risks.append(true_risk(model.weight.grad, torch.stack(all_ranks)))
    job = shown_job(show) if talk.rank == 0 else {}
    torch.distributed.barrier()  # The job runs until it was asked.
    return {"true": sum(risks) / len(risks)} | {k: job[k] for k in ("risk", "riskClip") if k in job}
