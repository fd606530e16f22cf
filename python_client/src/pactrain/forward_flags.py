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
    enough. Where none is seen, the model returned something that tensors cannot be
    found in, or left elsewhere what the pass begins with, or was not called through the
    wrapper at all. Then, as in torch, the forward passes decide that no step has
    followed yet, if all agree; without any it is no step.

    Not thread-safe: used by the threads of one forward or backward pass at a time.
    """

    def __init__(self) -> None:
        self._pending: set[bool] = set()  # Of forward passes that wait for a backward.
        self._seen: dict[int, bool] = {}  # By backward pass that is under way.
        self._unseen: tuple[int, bool] | None = None  # The last such pass, its answer.

    def begin(self) -> None:
        """Before a forward pass."""
        if not inside_backward():  # A checkpoint does one again there.
            self._seen.clear()  # Of a pass that broke off.

    def watch(self, output: object, synchronous: bool) -> None:
        """After it."""
        if not inside_backward():
            self._pending.add(synchronous)
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
        task = torch._C._current_graph_task_id()
        if task in self._seen:
            answer = self._seen[task]
        elif self._seen:  # This pass is inside that one, of a reentrant checkpoint.
            answer = next(reversed(self._seen.values()))
        elif self._unseen is not None and self._unseen[0] == task:
            return self._unseen[1]
        elif len(self._pending) > 1:
            return None
        else:
            answer = True in self._pending
            self._unseen = (task, answer)
        # A step is that of all forward passes before it, as in torch.
        self._pending -= {True, False} if answer else {False}
        return answer


def inside_backward() -> bool:
    return torch._C._current_graph_task_id() != -1
