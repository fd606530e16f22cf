"""The steps of one attached model: submit buckets, wait for the commit, hand back.

The hook submits each bucket and returns a future at once. When the last bucket of a
step is submitted, somebody waits until the step is committed and the means are in the
buckets, and completes all futures of the step together: either all or none. Under DDP,
which itself waits for the futures, that is a thread of the engine; buckets of our own
have backward() call finish(), which saves each step two changes of threads. Where the
model is on an accelerator (devices.py), all that comes after the hook is that thread's.

Hook and waiter never work on a session at the same time: the next step's first bucket
comes after backward() returned, that is after the futures completed.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.futures import Future

from . import _abi, storage
from ._library import NativeSession
from .broadcast import broadcast
from .buffers import synced_buffers
from .config import AttachConfig
from .course import Change, Course
from .devices import Bucket, DeviceCopies, StagedBucket
from .errors import PacTrainError, RefusedError, StepNotAppliedError
from .layout import BucketLayout, LayoutCache
from .mask_keeper import MaskKeeper
from .mask_source import MaskSource
from .parameters import ParameterTable
from .types import Decision, Digest, DType, Mode, Op, Part, StepResult
from .waiter import Caller, DeviceThread, Waiter, WaiterThread
from .wrapped import WrappedModel

DTYPES = {torch.float32: DType.FLOAT32, torch.bfloat16: DType.BFLOAT16}

logger = logging.getLogger("pactrain")

_LATE = (
    "the coordinator took too long, or ranks want different masks. It does so later, "
    "so this run may not be equal to another one"
)
_NO_MASKS = "no mask leaves elements out. It does so once one does"
_INTERRUPTED = (
    "An interrupt came while this rank waited for the end of a step: the others may "
    "have applied it.\nStart this rank anew."
)


@dataclass
class _Step:
    """A step between its first bucket and the completion of its futures."""

    buffers: list[Tensor] = field(default_factory=list)
    parts: list[Tensor] = field(default_factory=list)  # Kept alive.
    layouts: list[BucketLayout] = field(default_factory=list)
    futures: list[Future[Tensor]] = field(default_factory=list)
    staged: list[StagedBucket] = field(default_factory=list)  # Of an accelerator.
    error: PacTrainError | None = None


@dataclass(frozen=True)
class Parts:
    """What a session is made of."""

    model: WrappedModel
    table: ParameterTable
    native: NativeSession
    config: AttachConfig
    keeper: MaskKeeper
    source: MaskSource
    model_index: int
    copies: DeviceCopies | None  # None: the model is on the CPU.


class StepEngine:
    """Called by the hook, on the thread that runs backward()."""

    def __init__(
        self,
        parts: Parts,
        slot_bytes: int,
        clear_gradients: Callable[[PacTrainError], None],
        explain: Callable[[PacTrainError], PacTrainError],
    ) -> None:
        """`clear_gradients` is called with the error of each failed step, and `explain`
        says more of one that ends the session."""
        native = parts.native
        self.course = Course(native.decision)
        self.reporters: list[Callable[[], None]] = []  # Called before each step.
        self.last_error: PacTrainError | None = None
        self.check_parameters_next = True
        self._native = native
        self._table = parts.table
        self._keeper = parts.keeper
        self._model = parts.model
        self._config = parts.config
        self._slot_bytes = slot_bytes
        self._clear_gradients = clear_gradients
        self._explain = explain
        self._layouts = LayoutCache(parts.table, native.digest_of)
        self._fatal: PacTrainError | None = None
        self._step: _Step | None = None
        self._submitted = 0  # Buckets of the open step.
        self._committed = 0
        self._joining: object | None = None
        self._all_equal = True
        self._last_buffer_sync = native.next_step
        self._last_parameter_check = native.next_step
        self._copies = parts.copies
        self._waiter = _waiter_for(parts)

    @property
    def busy(self) -> bool:
        """True between the first bucket of a step and its end."""
        return self._step is not None

    @property
    def committed(self) -> int:
        """Gradient steps of the job, also those before this rank came."""
        return self._committed

    @property
    def progress(self) -> _abi.Progress:
        """How far this rank is, in what is counted in steps. Ages are in steps, too.

        REQUIRES: the native session is open, maybe over.
        """
        step = self._native.next_step
        return _abi.Progress(
            self._committed,
            max(0, step - self._last_buffer_sync),
            max(0, step - self._last_parameter_check),
        )

    def renew(self, progress: _abi.Progress) -> None:
        """Goes on in another generation, where all ranks are as far as the donor.

        REQUIRES: no step is open.
        """
        step = self._native.next_step
        self._committed = progress.committed
        self._last_buffer_sync = step - progress.buffer_sync_age
        self._last_parameter_check = step - progress.parameter_check_age
        self.check_parameters_next = True
        self.last_error = self._fatal = None
        self._keeper.renew()

    def on_bucket(self, bucket: Bucket) -> Future[Tensor]:
        """Submits one bucket; never raises: errors go into the future."""
        if self._copies is None:
            return self._take(bucket, Future())
        future, staged = self._copies.new_future(), self._copies.stage(bucket)
        self._waiter.run(lambda: self._take(staged, future))
        return future

    @property
    def on_device(self) -> bool:
        return self._copies is not None

    def note_stream(self) -> None:
        """A gradient was accumulated in the stream of now."""
        if self._copies is not None:
            self._copies.note()

    def _take(self, bucket: Bucket, future: Future[Tensor]) -> Future[Tensor]:
        step = self._step_of(bucket)
        step.futures.append(future)
        if step.error is None:
            try:
                self._submit(step, bucket)
            except PacTrainError as error:
                step.error = error
            except Exception as error:
                step.error = _internal(error)
        if bucket.is_last():
            if step.error is None:
                self._waiter.run(lambda: self._finish(step))
            else:
                self._judge(step.error)
                self._fail(step, step.error)
        return future

    def wait(self, future: Future[Tensor]) -> Tensor:
        """The mean of a bucket that was submitted.

        Raises: the typed error of the step.
        """
        return future.wait() if self._copies is None else self._copies.wait(future)

    def finish(self) -> None:
        """Waits for the end of the step whose last bucket was submitted, if any.

        An interrupt (Ctrl-C) ends the session: others may have applied the step.
        """
        try:
            self._waiter.finish()
        except BaseException:
            self._fatal = PacTrainError(_INTERRUPTED)
            if self._copies is not None:  # The thread ends the step all the same.
                self._clear_gradients(self._fatal)
            elif self._step is not None:
                self._fail(self._step, self._fatal)
            raise

    def _judge(self, error: PacTrainError) -> None:
        """Ends the session if the open step cannot be left as it is.

        With no bucket submitted, or if the step failed at all ranks, the next backward
        pass may try again.
        """
        if self._fatal is not None:
            return
        failed_everywhere = isinstance(error, StepNotAppliedError)
        if self._native.is_final or (self._submitted and not failed_everywhere):
            self._fatal = error
        elif failed_everywhere:
            with contextlib.suppress(PacTrainError):
                self._native.wait()  # Ends the step; it has failed already.

    def _step_of(self, bucket: Bucket) -> _Step:
        if bucket.index() != 0 and self._step is not None:
            return self._step
        self._step = _Step()
        self._submitted = 0
        self._step.error = self._fatal
        return self._step

    def _submit(self, step: _Step, bucket: Bucket) -> None:
        if isinstance(bucket, StagedBucket):
            bucket.check()
            step.staged.append(bucket)
        if bucket.index() == 0:
            self._begin()
        buffer = bucket.buffer()
        layout = self._layouts.bucket(bucket.parameters(), buffer)
        dtype = DTYPES.get(buffer.dtype)
        if dtype is None or buffer.layout != torch.strided:
            raise RefusedError(
                f"A bucket has gradients of {buffer.dtype}, {buffer.layout}; "
                "allowed are dense float32 and bfloat16.\n"
                "Convert the model to one of them."
            )
        step.buffers.append(buffer)
        step.layouts.append(layout)
        self._keeper.before_submit(bucket.index(), layout)
        packed = None
        if isinstance(bucket, StagedBucket):
            packed = bucket.pack(self._native, layout.digest, dtype)
        parts = bucket.parts() if packed is None else []
        last = bucket.is_last()
        parameters = self._parameter_digest() if last else None
        if packed is not None:
            self._native.submit_packed(packed, layout.digest, last, parameters)
        else:
            step.parts.extend(parts)
            self._native.submit(
                bucket.index(),
                [Part(part.data_ptr(), part.numel()) for part in parts],
                buffer.data_ptr(),
                dtype,
                Op.SUM,
                layout.digest,
                last,
                parameters,
            )
        self._submitted += 1

    def _log_change(self, change: Change | None) -> None:
        if change is None:
            return
        storage.give_back_memory()  # FULL steps and new masks needed more.
        name = self._table.summary.partition(":")[0]
        logger.log(
            logging.INFO if self._native.rank == 0 else logging.DEBUG,
            "%s: %s after %d steps: %s",
            *(name, change.what, change.steps, change.reason),
        )

    def _begin(self) -> None:
        for report in self.reporters:
            report()
        self.course.begin()
        # Ranks that have ended submit zeros and keep the weights that they had, until
        # all leave join() and take those of the last one. At its first step all are
        # equal, and at the first one after it.
        before, self._joining = self._joining, self._model.joins()
        self._all_equal = self._joining is None or self._joining is not before
        if self._joining is not before:
            self.check_parameters_next = True
            self._keeper.look_anew()
        if self._keeper.begin_step():
            self.check_parameters_next = True

    def _parameter_digest(self) -> Digest | None:
        if not self._all_equal:
            return None
        step = self._native.next_step
        interval = self._config.parameter_check_interval
        due = step - self._last_parameter_check >= interval
        due = due or self.check_parameters_next
        masks = self._keeper.news(always=due)
        if not due:
            return masks
        self._last_parameter_check = step
        self.check_parameters_next = False
        values = self._table.value_digest(self._native.digest_of)
        if masks is None:
            return values
        return self._native.digest_of(values.to_bytes() + masks.to_bytes())

    def _finish(self, step: _Step) -> None:
        """On the waiter's thread, or in finish()."""
        try:
            result = self._native.wait()
        except PacTrainError as error:
            if self._native.is_final:
                error = self._fatal = self._explain(error)
            self._fail(step, error)
            return
        except Exception as error:  # Or backward() would wait for ever.
            self._fatal = _internal(error)
            self._fail(step, self._fatal)
            return
        try:
            for staged in step.staged:
                staged.bring_back(result.dense, self._native.world_size)
        except PacTrainError as error:
            self._fatal = error
            self._fail(step, error)
            return
        if step.staged:
            step.buffers = [staged.target for staged in step.staged]
        self._after_commit(step, result)
        self._step = None
        for future, buffer in zip(step.futures, step.buffers, strict=True):
            future.set_result(buffer)

    def _after_commit(self, step: _Step, result: StepResult) -> None:
        """The step is committed: what fails from here on fails the next one."""
        self._log_change(self.course.add(result))
        self._committed += 1
        try:
            # FULL, and TERNARY without a mask set.
            whole = result.submitted_elements == result.elements
            if (whole or result.mode == Mode.FULL) and not result.dense:
                self._keeper.mask_gradients(step.layouts, step.buffers)
            self._keeper.note_dense(result.dense, step.layouts, step.buffers)
            self._keeper.committed(result.next)
            self._say_if_missed(result.next)
            interval = self._config.buffer_sync_interval
            if self._joining is not None:
                interval = 0  # Rank 0 may have ended; join() gives all equal buffers.
            if interval and result.step + 1 - self._last_buffer_sync >= interval:
                self.sync_buffers()
        except PacTrainError as error:
            logger.warning("after step %d: %s", result.step, error)
            if self._native.is_final:
                self._fatal = error
        except Exception as error:
            logger.exception("after step %d", result.step)
            self._fatal = _internal(error)

    def _say_if_missed(self, decision: Decision) -> None:
        step = self._committed + 1
        onset = self._config.onset
        missed = onset.missed(step, decision, self._keeper.settled)
        compacts = step == onset.pin_from and onset.pin_mode == Mode.COMPACTED
        why = "" if self._keeper.current or not compacts else _NO_MASKS
        if missed:
            logger.warning(
                "%s did not come in force with step %d, as was asked for: %s. In force "
                "is %s",
                missed,
                step,
                why or self._keeper.unsettled or _LATE,
                decision,
            )

    def sync_buffers(self, also_masks: bool = False) -> None:
        """Gives all ranks the buffers of rank 0. All ranks call it at the same step.

        One piece where no masks are among them: the slot was made large enough.

        REQUIRES: no step is open, and no forward or backward pass is running.
        Raises: the typed error of the step, on all ranks; buffers are as before.
        """
        self._last_buffer_sync = self._native.next_step
        buffers = synced_buffers(self._model.module, self._model.ignored, also_masks)
        broadcast(
            self._native,
            self._native.rank,
            "pactrain buffers",
            buffers,
            self._slot_bytes,
        )
        self._last_buffer_sync = self._native.next_step
        self.course.buffer_syncs += 1

    def _fail(self, step: _Step, error: PacTrainError) -> None:
        error.final = self._fatal is not None
        if self._copies is not None:
            self._copies.settle()
        self.course.failed_steps += 1
        self.last_error = error
        self._clear_gradients(error)
        self._step = None
        self._submitted = 0
        for future in step.futures:
            future.set_exception(error)  # type: ignore[arg-type]

    def abandon(self, error: PacTrainError) -> None:
        """Gives up the step that was filled, some of whose buckets will never come.

        The session ends if one has been submitted: the other ranks wait for the rest.
        """
        if self._copies is not None:
            self._waiter.finish()  # With what was filled before.
        if self._step is not None and self._submitted:
            self._fatal = self._fatal or error
        self._fail(self._step or _Step(), error)

    def take_error(self) -> PacTrainError | None:
        """The error of the last failed step, once."""
        error, self.last_error = self.last_error, None
        return error

    def end(self, error: PacTrainError) -> None:
        """Every later step fails with `error`."""
        self._fatal = error

    def stop(self, timeout_seconds: float) -> bool:
        """Ends the waiter. False: it is still in a step after the timeout."""
        return self._waiter.stop(timeout_seconds)


def _waiter_for(parts: Parts) -> Waiter:
    if parts.copies is not None:
        return DeviceThread(parts.copies.begin_thread)
    return Caller() if parts.model.finishes_steps else WaiterThread()


def _internal(error: Exception) -> PacTrainError:
    wrapped = PacTrainError(f"Internal error: {error!r}.\nPlease report this.")
    wrapped.__cause__ = error
    return wrapped
