"""Fills buckets with gradients while backward() computes them, and ends its steps."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.futures import Future
from torch.utils.hooks import RemovableHandle

from . import storage
from .buckets import Piece, plan_buckets
from .engine import DTYPES, StepEngine
from .errors import PacTrainError, RefusedError
from .forward_flags import ForwardFlags, inside_backward
from .membership import Membership
from .parameters import MOVE_BACK, ParameterTable

_TWICE = (
    "Parameter {name} got its gradient twice in one backward pass: it is used in "
    "several reentrant checkpoints.\nGive checkpoint() use_reentrant=False."
)
_INSIDE = (
    "A backward pass inside another one, of a reentrant checkpoint, came before any "
    "gradient of the outer pass, whose end cannot be seen then.\n"
    "Give checkpoint() use_reentrant=False."
)
_MOVED = (
    "{moved}: the model was moved after it was wrapped, so that each rank would train "
    "alone.\n" + MOVE_BACK
)
_WHOSE = (
    "A backward pass does not go through what a forward pass returned, and of the "
    "forward passes before it some were under no_sync() and some were not, so that "
    "nobody can tell whether it is a step.\nReturn tensors, or lists, tuples, dicts "
    "or dataclasses of them, from the model's forward(); or run backward() before the "
    "next forward pass."
)
_NEVER = (
    "%s got no gradient at any rank in the first %d steps. It counts as zeros here, "
    "not as None, so that weight decay and momentum move it.\n"
    "If it is not to be trained, call requires_grad_(False) before wrapping."
)
_BROKEN_OFF = (
    "A backward pass broke off in the middle of its step, and the other ranks wait for "
    "the rest.\nLook for the first exception, and start the job again."
)

_LOOKS = 5  # Steps after which it is said what none has reached.

logger = logging.getLogger("pactrain")


class FlatBucket:
    """A bucket with memory of its own; after a step its gradients are views of that.

    What autograd hands over is sent from where it lies. It stays there until the step
    has ended, since a step may have to be sent again while results come in.
    """

    def __init__(
        self, number: int, indices: list[int], table: ParameterTable, is_last: bool
    ) -> None:
        entries = list(table)
        self.names = [entries[index][0] for index in indices]
        self._parameters = [entries[index][1] for index in indices]
        self._number = number
        self._is_last = is_last
        first = self._parameters[0]
        elements = sum(p.numel() for p in self._parameters)
        self._place(torch.zeros(elements, dtype=first.dtype, device=first.device))

    def _place(self, buffer: Tensor) -> None:
        self._buffer = buffer
        self._views = _views(buffer, self._parameters)
        self._gradients = list(self._views)  # What is sent.
        self._users = _users(buffer)

    def begin(self) -> None:
        """Before a step writes. What the script has kept of the last one's gradients,
        in a list, say, stays as it is, as with torch's wrapper."""
        kept = _users(self._buffer) - self._users
        if kept:
            grads = [p.grad for p in self._parameters if p.grad is not None]
            kept -= sum(_shares(grad, self._buffer) for grad in grads)
        if kept:
            self._place(torch.zeros_like(self._buffer))

    def index(self) -> int:
        return self._number

    def parts(self) -> Sequence[Tensor]:
        return self._gradients

    def buffer(self) -> Tensor:
        return self._buffer

    def parameters(self) -> Sequence[nn.Parameter]:
        return self._parameters

    def is_last(self) -> bool:
        return self._is_last

    def take(self, position: int) -> None:
        """Takes a parameter's gradient; zeros where it has none.

        Raises:
          RefusedError: it is sparse, or of another dtype than the parameter was.
        """
        parameter, view = self._parameters[position], self._views[position]
        gradient = parameter.grad
        self._gradients[position] = view
        if gradient is None:
            view.zero_()
        elif gradient.layout != torch.strided or gradient.dtype != view.dtype:
            raise RefusedError(
                f"The gradient of {self.names[position]} is {gradient.dtype}, "
                f"{gradient.layout}; allowed is dense {view.dtype}.\n"
                "Convert the model before it is wrapped; make embeddings with "
                "sparse=False."
            )
        elif storage.same_order(gradient, view) and not gradient.is_neg():
            self._gradients[position] = gradient
        else:
            with torch.no_grad():  # A pass that creates a graph has it enabled.
                view.copy_(gradient)
            parameter.grad = view.detach()

    def moved(self, position: int) -> bool:
        """Whether the last step brought it anything but zeros; it needs a gradient."""
        needs_one = self._parameters[position].requires_grad
        return not needs_one or bool(self._views[position].any())

    def hand_out(self, applied: bool) -> None:
        """Makes the bucket's content everybody's gradient, or zeros.

        Not None: scripts look at gradients after a pass, and a GradScaler needs some.
        A tensor of its own each time: a script may give its `.data` other memory.
        """
        self._gradients = list(self._views)
        if not applied:
            self._buffer.zero_()
        for parameter, view in zip(self._parameters, self._views, strict=True):
            if parameter.requires_grad or parameter.grad is not None:
                parameter.grad = view.detach()


class GradientBuckets:
    """All buckets of one model.

    A backward pass is a step, from the first gradient that it brings to its end, if a
    forward pass that it goes through was to be followed by one (ForwardFlags). Buckets
    are submitted in order as soon as they are complete; at the end of the pass the rest
    follows, with zeros for parameters that it did not reach, and the pass waits for the
    commit.

    Not thread-safe: used by the thread that runs backward().
    """

    _engine: StepEngine  # Set by start().
    _membership: Membership  # Set by start().

    def __init__(self, table: ParameterTable, cap_bytes: int) -> None:
        pieces = [Piece(p.numel(), DTYPES[p.dtype]) for _, p in table]
        plan = plan_buckets(pieces, cap_bytes)
        self.buckets = [
            FlatBucket(number, indices, table, number == len(plan) - 1)
            for number, indices in enumerate(plan)
        ]
        self._forward = ForwardFlags()
        self._missing: list[set[int]] = []  # By bucket; empty: no pass is under way.
        self._next = 0  # The first bucket that is not submitted yet.
        self._last: Future[Tensor] | None = None  # Of the bucket submitted last.
        self._table = table
        self._nodes: list[torch.autograd.graph.Node] = []  # Their hooks live with them.
        self._handles: list[RemovableHandle] = []
        self._looks = 0
        self._unreached = [set(range(len(b.names))) for b in self.buckets]  # As yet.

    def start(self, engine: StepEngine, membership: Membership) -> None:
        """From now on gradients go to `engine`, until remove()."""
        self._engine = engine
        self._membership = membership
        self._hear()

    def _hear(self) -> None:
        """As in DDP at the node that adds gradients up: a script's hooks at the
        parameter run before, whenever they were registered."""
        self.remove()
        for bucket in self.buckets:
            for position, parameter in enumerate(bucket.parameters()):
                node = _accumulator(parameter)
                self._nodes.append(node)
                self._handles.append(node.register_hook(self._hook(bucket, position)))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._nodes, self._handles = [], []

    def follow(self, training: bool) -> None:
        """Before a pass that may bring gradients. A model that was moved and came back
        has lost its hooks: torch adds gradients up at other nodes on each device.

        Raises:
          RefusedError: it is elsewhere still, and would train alone.
        """
        parameters = (p for bucket in self.buckets for p in bucket.parameters())
        for node, parameter in zip(self._nodes, parameters, strict=False):
            if parameter.requires_grad:
                if _accumulator(parameter) is not node:
                    self._was_moved(training)
                return

    def _was_moved(self, training: bool) -> None:
        moved = self._table.moved()
        if not moved:
            self._hear()
        elif training and self._membership.world.world_size > 1:
            raise RefusedError(_MOVED.format(moved=moved))

    def begin(self) -> None:
        """Before a forward pass."""
        self._forward.begin()
        if self._missing and not inside_backward():
            self._missing = []
            self._engine.finish()
            if self._engine.busy:
                self._engine.abandon(PacTrainError(_BROKEN_OFF))

    def returned(self, output: object, synchronous: bool) -> None:
        """After it: what it returned, and whether the backward pass through that is a
        step."""
        self._forward.watch(output, synchronous)

    def _hook(self, bucket: FlatBucket, position: int) -> Callable[..., None]:
        def on_gradient(*_: object) -> None:
            is_step = self._forward.is_step()
            if is_step is None and not self._missing:
                self._refuse(RefusedError(_WHOSE))
            if is_step or self._missing:
                self._on_gradient(bucket, position)

        return on_gradient

    def _on_gradient(self, bucket: FlatBucket, position: int) -> None:
        if not self._missing:
            self._missing = [set(range(len(b.names))) for b in self.buckets]
            self._next = 0
            for each in self.buckets:
                each.begin()
            Variable._execution_engine.queue_callback(self._on_end)
        if position not in self._missing[bucket.index()]:
            self._refuse(RefusedError(_TWICE.format(name=bucket.names[position])))
        self._fill(bucket, position)
        self._submit_complete()

    def _fill(self, bucket: FlatBucket, position: int) -> None:
        try:
            bucket.take(position)
        except RefusedError as error:
            self._refuse(error)
        self._engine.note_stream()
        self._missing[bucket.index()].discard(position)

    def _submit_complete(self) -> None:
        while self._next < len(self.buckets) and not self._missing[self._next]:
            self._last = self._engine.on_bucket(self.buckets[self._next])
            self._next += 1

    def _on_end(self) -> None:
        """At the end of the backward pass that brought the first gradient.

        Raises: the typed error of the step.
        """
        if torch._C._current_autograd_node() is not None:  # It is inside another one.
            self._refuse(RefusedError(_INSIDE))
        for bucket, missing in zip(self.buckets, self._missing, strict=True):
            self._unreached[bucket.index()] &= missing
            for position in sorted(missing):
                self._fill(bucket, position)
        self._submit_complete()
        self._missing = []
        applied = self._commit()
        for bucket in self.buckets:
            bucket.hand_out(applied)
        self._looks += 1
        if self._looks == _LOOKS:
            self._say_unreached()

    def _say_unreached(self) -> None:
        """Of those that no rank reaches: others may reach what this one does not."""
        names = [
            bucket.names[position]
            for bucket, unreached in zip(self.buckets, self._unreached, strict=True)
            for position in sorted(unreached)
            if not bucket.moved(position)
        ]
        if names and self._membership.world.rank == 0:
            logger.warning(_NEVER, ", ".join(names), _LOOKS)

    def _commit(self) -> bool:
        """Waits for the commit, in another generation if this one ends; False if the
        others have done without this pass, or have had it."""
        while True:
            assert self._last is not None
            try:
                self._engine.finish()
                self._engine.wait(self._last)
                return True
            except PacTrainError as error:
                if not self._membership.may_go_on(error):
                    raise
                if not self._membership.go_on(error):
                    return False
            # A failed step leaves the gradients as they were.
            for bucket in self.buckets:
                self._last = self._engine.on_bucket(bucket)

    def _refuse(self, error: RefusedError) -> NoReturn:
        if self._next == len(self.buckets) and self._last is not None:
            with contextlib.suppress(PacTrainError):
                self._engine.finish()  # The step is on its way: all have it or nobody.
                self._engine.wait(self._last)
        self._missing = []
        self._engine.abandon(error)
        raise error


def _accumulator(parameter: Tensor) -> torch.autograd.graph.Node:
    """The node that adds the parameter's gradients up, now or once it needs some."""
    needs_gradient = parameter.requires_grad
    with torch.enable_grad():
        made = parameter.requires_grad_().expand_as(parameter).grad_fn
    parameter.requires_grad_(needs_gradient)
    assert made is not None
    node = made.next_functions[0][0]
    assert node is not None
    return node


def _users(tensor: Tensor) -> int:
    """How many tensors share its memory."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


def _shares(gradient: Tensor, buffer: Tensor) -> bool:
    start = buffer.untyped_storage().data_ptr()
    dense = gradient.layout == torch.strided
    return dense and gradient.untyped_storage().data_ptr() == start


def _views(buffer: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """The pieces of a bucket, in the shapes of their parameters."""
    views = []
    offset = 0
    for parameter in parameters:
        strides = storage.bucket_strides(parameter)
        views.append(buffer.as_strided(parameter.shape, strides, offset))
        offset += parameter.numel()
    return views
