"""Whether a backward pass is a step: the forward pass that it goes through decides."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.nn.parallel.distributed import _find_tensors


class ForwardFlags:
    """For each backward pass the flags of the forward passes that it goes through.

    It goes through one if it brings a gradient to a tensor that this returned, which is
    before any parameter of it has one. Through several: one that asks for a step is
    enough. Where none is seen, since a model returned something that tensors cannot be
    found in, the forward passes since the last backward pass decide if all agree.

    Not thread-safe: used by the threads of one forward or backward pass at a time.
    """

    def __init__(self) -> None:
        self._recent: set[bool] = set()  # Of forward passes.
        self._used = False  # There was a backward pass after the recent ones.
        self._seen: dict[int, bool] = {}  # By backward pass that is under way.

    def begin(self, synchronous: bool, inside_backward: bool) -> None:
        """Before a forward pass, or one that a checkpoint does again."""
        if inside_backward:
            return
        self._seen.clear()  # Of a pass that broke off.
        if self._used:
            self._recent.clear()
            self._used = False
        self._recent.add(synchronous)

    def watch(self, output: object, synchronous: bool) -> None:
        """After it."""
        for tensor in _find_tensors(output):  # type: ignore[no-untyped-call]
            if tensor.grad_fn is not None:
                tensor.register_hook(functools.partial(self._see, synchronous))

    def _see(self, synchronous: bool, _: Tensor) -> None:
        task = torch._C._current_graph_task_id()
        if task not in self._seen:
            Variable._execution_engine.queue_callback(
                functools.partial(self._forget, task)
            )
        self._seen[task] = self._seen.get(task, False) or synchronous

    def _forget(self, task: int) -> None:
        self._seen.pop(task, None)

    def is_step(self) -> bool | None:
        """While a gradient arrives. None: it cannot be told."""
        self._used = True
        task = torch._C._current_graph_task_id()
        if task in self._seen:
            return self._seen[task]
        if self._seen:  # This pass is inside that one, of a reentrant checkpoint.
            return next(reversed(self._seen.values()))
        return next(iter(self._recent)) if len(self._recent) == 1 else None
