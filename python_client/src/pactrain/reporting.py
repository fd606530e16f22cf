"""report(): a run's course in the tools that people look at."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from .alone import AloneSession
from .errors import InvalidArgument
from .null_session import NullSession
from .session import Session

Sink: TypeAlias = "Callable[[Mapping[str, float], int], object]"

logger = logging.getLogger("pactrain")


def report(session: Session | NullSession, to: str | Sink, every: int = 10) -> None:
    """Hands session.stats() on after every so many steps, and after the last one.

    It is done on the thread that trains, before the next step and at close(); in one
    process without a wrapper, after a step of an optimizer.

    Args:
      to: "tensorboard" (a SummaryWriter of its own), "wandb" (the run that is active)
        or "mlflow" (the same): at rank 0 only, so that all ranks may call it. Or a
        function of (values, step), at every rank that gives one.
      every: steps.

    Raises:
      InvalidArgument: no session or a closed one, another `to`, a tool that is not
        installed, or `every` below 1.
    """
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise InvalidArgument(
            f"every is {every!r}; allowed is a number of steps of at least 1.\n"
            "Give 10, the default, or another."
        )
    if not callable(to) and to not in _TOOLS:
        raise InvalidArgument(
            f"to is {to!r}; allowed are {', '.join(map(repr, _TOOLS))} and a function "
            "of (values, step).\nGive one of them."
        )
    if isinstance(session, NullSession) and not isinstance(session, AloneSession):
        logger.warning("report() has nothing to report: no model is attached yet")
        return
    if not isinstance(session, (Session, AloneSession)):
        raise InvalidArgument(
            f"session is of type {type(session).__name__}; allowed is what attach() "
            "returned.\nGive that session; of pactrain.DistributedDataParallel it is "
            "model.session."
        )
    if session.closed:
        raise InvalidArgument(
            "session is closed, so there is nothing to report; allowed is one that is "
            "open.\nCall report() after attach() and before close()."
        )
    if callable(to):
        _Reporter(session, to, every)
    elif isinstance(session, AloneSession) or session.membership.world.rank == 0:
        _Reporter(session, _tool(to), every)


class _Reporter:
    def __init__(self, session: Session | AloneSession, sink: Sink, every: int) -> None:
        self._session = session
        self._sink = sink
        self._every = every
        self._reported = 0
        if isinstance(session, AloneSession):
            session.reporters.append(self.before_step)
        else:
            session.engine.reporters.append(self.before_step)
        session.at_close(lambda: self._report(1))

    def before_step(self) -> None:
        self._report(self._every)

    def _report(self, every: int) -> None:
        session = self._session
        steps = (
            session.steps
            if isinstance(session, AloneSession)
            else session.engine.course.total.steps
        )
        if steps - self._reported < every:
            return
        self._reported = steps
        try:
            self._sink(self._session.stats(), steps)
        except Exception as error:  # No reason to end a training.
            logger.warning("report() at step %d failed: %r", steps, error)


def _tool(name: str) -> Sink:
    try:
        sink: Sink = _TOOLS[name]()
        return sink
    except ImportError as error:
        raise InvalidArgument(
            f"to is {name!r}, and {error.name or name} is not installed.\n"
            f"Run: pip install {name}"
        ) from error


def _tensorboard() -> Sink:
    writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter()

    def write(values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return write


def _wandb() -> Sink:
    wandb = importlib.import_module("wandb")
    if wandb.run is None:
        raise InvalidArgument(
            "to is 'wandb', and no run is active.\nCall wandb.init() before report()."
        )
    # An axis of its own, so that the script's own steps stay as they are.
    wandb.define_metric("pactrain/*", step_metric="pactrain/steps")
    return lambda values, step: wandb.log(dict(values))


def _mlflow() -> Sink:
    mlflow = importlib.import_module("mlflow")
    return lambda values, step: mlflow.log_metrics(dict(values), step=step)


_TOOLS: dict[str, Callable[[], Any]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
}
