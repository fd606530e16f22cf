"""One piece of the evidence: a workload, a method and a seed, by eight virtual workers.

All workers' gradients are taken in one process, one micro-batch after the other, and then
what the method does to them is done. Seeds are paired: the same weights, samples, augmentation
and masks for every method. BatchNorm learns from worker 0 alone, whose buffers DDP broadcasts; of
local steps each worker has its own, whose mean goes with the weights that are common.
The rate is constant after a warm-up; what is scored is a moving average of the weights.

All of it is on the workload's device, but for masks, which prune() makes of a copy on the CPU.
A run can be put away and taken up again at any step: state() and restore().
"""

from __future__ import annotations

import copy
import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import pactrain
from bench.evidence.methods import ROWS, LocalSteps, Method, Row, Setup
from bench.evidence.workloads import Workload, digest_of
from pactrain.masks import registry

WORKERS = 8
EMA = 0.98
EVALUATIONS = 20  # Of DDP's steps.
WARM_UP = 0.1
MOMENTUM = 0.9
BETAS, EPSILON = (0.9, 0.95), 1e-8
MOST_TIMES = 2  # DDP's steps that a row may take to the target.
# Of a run's state, where they are there.
TENSORS = ("_weights", "_resting", "_kept", "_own", "_own_buffers")


def flat(model: nn.Module, gradients: bool = False) -> Tensor:
    parts = (p.grad if gradients else p.detach() for p in model.parameters())
    return torch.cat([part.flatten() for part in parts if part is not None])


def load(model: nn.Module, values: Tensor) -> None:
    with torch.no_grad():
        at = 0
        for parameter in model.parameters():
            parameter.copy_(values[at : at + parameter.numel()].view(parameter.shape))
            at += parameter.numel()


def learnt_buffers(model: nn.Module) -> list[Tensor]:
    """Those with values, not counts."""
    return [buffer for buffer in model.buffers() if buffer.is_floating_point()]


def flat_buffers(model: nn.Module) -> Tensor:
    parts = [buffer.flatten() for buffer in learnt_buffers(model)]
    return torch.cat(parts) if parts else next(model.parameters()).new_empty(0)


def load_buffers(model: nn.Module, values: Tensor) -> None:
    with torch.no_grad():
        at = 0
        for buffer in learnt_buffers(model):
            buffer.copy_(values[at : at + buffer.numel()].view(buffer.shape))
            at += buffer.numel()


@dataclass
class Optimizer:
    """SGD with Nesterov's momentum, or AdamW, on flat weights: torch's formulas.

    `has_momentum`: the gradients have theirs already, and decay alone gets it here, as in the
    optimizer of DGC's authors (DGCSGD).
    """

    workload: Workload
    has_momentum: bool = False
    carried: ClassVar[tuple[str, ...]] = ("_first", "_second", "_steps")
    _first: Tensor | None = field(default=None, repr=False)
    _second: Tensor | None = field(default=None, repr=False)
    _steps: int = 0

    def step(self, weights: Tensor, gradient: Tensor, rate: float) -> Tensor:
        decay = self.workload.weight_decay
        if self.workload.clip:
            gradient = gradient * min(1.0, self.workload.clip / (float(gradient.norm()) + 1e-6))
        self._steps += 1
        if self.workload.optimizer == "sgd":
            pushed = decay * weights if self.has_momentum else gradient + decay * weights
            self._first = pushed if self._first is None else MOMENTUM * self._first + pushed
            moved = pushed + MOMENTUM * self._first
            return weights - rate * (moved + gradient if self.has_momentum else moved)
        if self._first is None or self._second is None:
            self._first, self._second = torch.zeros_like(weights), torch.zeros_like(weights)
        self._first = BETAS[0] * self._first + (1 - BETAS[0]) * gradient
        self._second = BETAS[1] * self._second + (1 - BETAS[1]) * gradient.square()
        first = self._first / (1 - BETAS[0] ** self._steps)
        second = (self._second / (1 - BETAS[1] ** self._steps)).sqrt_()
        return weights * (1 - rate * decay) - rate * first / (second + EPSILON)


def carried_of(part: Method | LocalSteps | Optimizer) -> dict[str, Any]:
    return {name: getattr(part, name) for name in part.carried}


def carry(part: Method | LocalSteps | Optimizer, values: dict[str, Any]) -> None:
    for name in part.carried:
        setattr(part, name, values[name])


def kept_or_all(kept: Tensor | None, elements: int) -> Tensor:
    return torch.arange(elements) if kept is None else kept


def kept_elements(model: nn.Module, amount: float, **how: Any) -> Tensor | None:
    """Prunes, by magnitude unless told otherwise; the flat places that stay. None: nothing is."""
    if amount <= 0:
        return None
    pactrain.prune(model, amount, **how)
    masks = [(p, registry.get(p)) for p in model.parameters()]
    whole = torch.cat(
        [
            torch.ones(p.numel(), dtype=torch.bool) if mask is None else mask.flatten()
            for p, mask in masks
        ]
    )
    return whole.nonzero().flatten()


def risk(update: Tensor, gradients: Tensor, kept: Tensor | None) -> float:
    """||update - mean||^2 over the variance of the mean: the share of the batch it costs.

    Of the kept elements, where there is a mask.
    """
    if kept is not None:
        update, gradients = update[kept], gradients[:, kept]
    mean = gradients.mean(0)
    workers = len(gradients)
    variance = float((gradients - mean).square().sum()) / (workers - 1) / workers
    return float((update - mean).square().sum()) / variance


class Run:
    """A piece under way; call step() until `done`, then result()."""

    def __init__(
        self,
        workload: Workload,
        name: str,
        seed: int,
        target: float | None,
        rate_factor: float = 1.0,
        steps: int = 0,
        say: Callable[[str], None] = print,
        row: Row | None = None,
        beat: int | None = None,
    ) -> None:
        """`target` None: it is not fixed yet, and `steps` (default: the workload's) is all.

        `beat`: ends as soon as it cannot be at the target within so many steps, as another was.
        """
        self.workload, self.name, self.seed, self.target = workload, name, seed, target
        self.row = row or ROWS[name]
        self.steps = steps or workload.steps
        self._every = max(1, self.steps // EVALUATIONS)
        self._beat = beat
        self._rate_factor = rate_factor
        torch.manual_seed(seed)
        self._device = workload.place.device
        self._model = workload.make_model()
        if not self.row.random_start:
            self._model.load_state_dict(workload.pretrained(say))
        self._begins = digest_of(flat(self._model).numpy().tobytes())
        self._model.to(self._device)
        self._batches = workload.batches(seed, WORKERS)
        self._kept: Tensor | None = None
        self._weights = flat(self._model)
        shapes = [tuple(p.shape) for p in self._model.parameters()]
        self._setup = Setup(shapes, seed, MOMENTUM, self.steps, self._device)
        self._mask_at = round(self.row.mask_at * self.steps)
        self._method = self.row.make(self._setup, None)
        if self._mask_at == 0:
            self._mask()
        self._average = copy.deepcopy(self._model)
        self._cpu, self._wall = time.process_time(), time.monotonic()
        self._step = 0
        self._bytes = 0.0
        self._start_score = workload.score(self._model, test=False)
        self._curve: list[tuple[int, float]] = []
        self._risks: list[float] = []
        self._test: float | None = None
        keeps = isinstance(self._method, Method) and self._method.keeps_momentum
        count = WORKERS if isinstance(self._method, LocalSteps) else 1
        self._optimizers = [Optimizer(workload, keeps) for _ in range(count)]
        self._own = self._weights.repeat(count, 1) if count > 1 else None
        self._own_buffers = flat_buffers(self._model).repeat(count, 1) if count > 1 else None

    @property
    def done(self) -> bool:
        if self._cannot_win():
            return True
        if self._step < self.steps:
            return False
        arrived = self.target is None or crossing(self._curve, self.target) is not None
        return arrived or self._step >= MOST_TIMES * self.steps

    def _cannot_win(self) -> bool:
        if self._beat is None or self.target is None:
            return False
        return soonest(self._curve, self.target, self._every) > self._beat

    def _mask(self) -> None:
        """Prunes, and the method begins anew with what is kept. What is not stays as it is."""
        pruned = copy.deepcopy(self._model).cpu()
        how: dict[str, Any] = dict(self.row.prune)
        if how.get("method") == "grasp":
            batch = [part.cpu() for part in self._batches(0)[0]]
            how |= {"loss": lambda m: self.workload.loss(m, *batch)}
        kept = kept_elements(pruned, round(1 - self.row.keep, 6), **how)
        self._kept = None if kept is None else kept.to(self._device)
        self._weights = flat(pruned).to(self._device)
        load(self._model, self._weights)
        self._resting = self._weights.clone()
        self._method = self.row.make(self._setup, self._kept)

    def step(self) -> None:
        if self._step == self._mask_at > 0:
            self._mask()
        rate = self.workload.rate * self._rate_factor * self._share_of_rate()
        batches = self._batches(self._step)
        if isinstance(self._method, LocalSteps):
            self._local_step(self._method, batches, rate)
        else:
            update = self._update(batches)
            stepped = self._optimizers[0].step(self._weights, update, rate)
            if self._kept is None:
                self._weights = stepped
            else:  # Decay and momentum of before the mask move nothing that is not kept.
                kept = stepped[self._kept]
                self._weights = self._resting.index_copy(0, self._kept, kept)
        load(self._model, self._weights)
        self._step += 1
        self._track_average()
        self._evaluate()

    def _share_of_rate(self) -> float:
        """The rate is constant after a warm-up, unless the row's falls."""
        warm = WARM_UP * self.steps
        share = min(1.0, (self._step + 1) / warm)
        if self.row.decays:
            share *= min(1.0, (self.steps - self._step) / (self.steps - warm))
        return share

    def _update(self, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
        """What all apply in place of the gradients' mean, [elements]."""
        gradients = self._weights.new_empty(len(batches), self._weights.numel())
        for worker, batch in enumerate(batches):  # The model has the weights already.
            gradients[worker] = self._gradient(batch, learns=worker == 0)
        if self._kept is not None:
            gradients *= torch.zeros_like(self._weights).index_fill_(0, self._kept, 1.0)
        assert isinstance(self._method, Method)
        update, sent = self._method.exchange(gradients, self._step)
        self._bytes += sent
        if self._step % 10 == 0 and not self._method.keeps_momentum:
            self._risks.append(risk(update, gradients, self._kept))
        return update

    def _evaluate(self) -> None:
        """Where it is time for it."""
        if self._step % self._every == 0:
            self._curve.append((self._step, self.workload.score(self._average, test=False)))
        if self._step == self.steps:
            self._test = self.workload.score(self._average, test=True)

    def _gradient(self, batch: tuple[Tensor, Tensor], learns: bool) -> Tensor:
        """`learns`: BatchNorm's buffers do."""
        momentum = 0.1 if learns else 0.0
        for module in self._model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = momentum
        self._model.zero_grad()
        torch.autograd.backward(self.workload.loss(self._model, *batch))
        return flat(self._model, gradients=True)

    def _local_step(
        self, method: LocalSteps, batches: list[tuple[Tensor, Tensor]], rate: float
    ) -> None:
        """The model's buffers stay those of the common weights, which are what is scored."""
        assert self._own is not None
        assert self._own_buffers is not None
        common = flat_buffers(self._model)
        for worker, batch in enumerate(batches):
            own = self._own[worker]
            load(self._model, own)
            load_buffers(self._model, self._own_buffers[worker])
            gradient = self._gradient(batch, learns=True)
            self._own[worker] = self._optimizers[worker].step(own, gradient, rate)
            self._own_buffers[worker] = flat_buffers(self._model)
        if (self._step + 1) % method.period == 0:
            self._weights = method.merge(self._weights, self._own)
            self._own[:] = self._weights
            common = self._own_buffers.mean(0)
            self._own_buffers[:] = common
        load_buffers(self._model, common)
        self._bytes += method.bytes(self._weights.numel())

    def _track_average(self) -> None:
        """Of weights and buffers; it forgets faster at first."""
        share = min(EMA, self._step / (self._step + 9))

        def values(model: nn.Module) -> Iterator[Tensor]:
            yield from model.parameters()
            yield from model.buffers()

        with torch.no_grad():
            for average, value in zip(values(self._average), values(self._model), strict=True):
                if average.is_floating_point():
                    average.lerp_(value, 1 - share)

    def result(self) -> dict[str, Any]:
        elements = self._weights.numel()
        return {
            "workload": self.workload.name,
            "method": self.name,
            "seed": self.seed,
            "rate_factor": self._rate_factor,
            "steps": self.steps,
            "steps_run": self._step,
            "elements": elements,
            "keep": 1.0 if self._kept is None else len(self._kept) / elements,
            "bytes_per_element": self._bytes / self._step / elements,
            "start": self._start_score,
            "curve": self._curve,
            "test": self._test,
            "risk": sum(self._risks) / len(self._risks) if self._risks else None,
            "log_risk": [round(math.log(r), 4) if r > 0 else None for r in self._risks],
            "cpu_seconds": round(time.process_time() - self._cpu, 1),
            "seconds": round(time.monotonic() - self._wall, 1),
        }

    def _identity(self) -> dict[str, Any]:
        """What has to be equal for a state to be this run's."""
        return {
            "workload": self.workload.name,
            "method": self.name,
            "seed": self.seed,
            "rate_factor": self._rate_factor,
            "steps": self.steps,
            "target": self.target,
            "first weights": self._begins,
            "device": self._device.type,
            "torch": str(torch.__version__),
        }

    def state(self) -> dict[str, Any]:
        """All that a run of the same arguments goes on from; randomness is of seed and step."""
        return {
            "identity": self._identity(),
            "model": self._model.state_dict(),
            "average": self._average.state_dict(),
            "tensors": {name: getattr(self, name, None) for name in TENSORS},
            "method": carried_of(self._method),
            "optimizers": [carried_of(optimizer) for optimizer in self._optimizers],
            "step": self._step,
            "bytes": self._bytes,
            "start": self._start_score,
            "curve": self._curve,
            "risks": self._risks,
            "test": self._test,
            "cpu_seconds": time.process_time() - self._cpu,
            "seconds": time.monotonic() - self._wall,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from there. ValueError: it is of another run; says in what."""
        for name, own in self._identity().items():
            if state["identity"].get(name) != own:
                raise ValueError(f"{name} = {state['identity'].get(name)!r}, allowed: {own!r}")
        for name, value in state["tensors"].items():
            setattr(self, name, value)
        self._method = self.row.make(self._setup, self._kept)
        carry(self._method, state["method"])
        for optimizer, values in zip(self._optimizers, state["optimizers"], strict=True):
            carry(optimizer, values)
        self._model.load_state_dict(state["model"])
        self._average.load_state_dict(state["average"])
        self._step, self._bytes = state["step"], state["bytes"]
        self._start_score, self._test = state["start"], state["test"]
        self._curve, self._risks = list(map(tuple, state["curve"])), state["risks"]
        self._cpu = time.process_time() - state["cpu_seconds"]
        self._wall = time.monotonic() - state["seconds"]


def crossing(curve: list[tuple[int, float]], target: float) -> int | None:
    """The step of the first of two evaluations in a row that are at the target."""
    for (step, score), (_, after) in itertools.pairwise(curve):
        if score >= target and after >= target:
            return step
    return None


def soonest(curve: list[tuple[int, float]], target: float, every: int) -> int:
    """The step that crossing() gives at the soonest, however a run goes on from here."""
    last = [(0, -math.inf), *curve][-1]
    return crossing(curve, target) or last[0] + (0 if last[1] >= target else every)
