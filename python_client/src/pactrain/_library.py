"""A session of the trainer library (trainer/pactrain.h).

`NativeSession` is the one user of the C functions; every code but PT_OK becomes the
typed error of `pactrain.errors`.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _abi, errors
from .types import (
    AttachOptions,
    Bytes,
    Codec,
    Decision,
    Digest,
    DType,
    HeldState,
    Mode,
    NodePath,
    NodeReport,
    Op,
    PackedBucket,
    Part,
    Plan,
    StepResult,
)

PATIENCE_SECONDS = 5.0  # For a start that needs no words.
_PT_OK = 0
_ERRORS: dict[int, type[errors.PacTrainError]] = {
    1: errors.InvalidArgument,
    2: errors.StepNotAppliedError,
    3: errors.ResyncRequiredError,
    4: errors.AgentUnresponsiveError,
    5: errors.CoordinatorUnavailableError,
    6: errors.RefusedError,
    8: errors.ReplacedError,
}


def _to_c(digest: Digest) -> _abi.Digest:
    return _abi.Digest(digest.hi, digest.lo)


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def _printable(text: str) -> bytes:
    """As much as pt_vote() takes; what is not ASCII becomes an escape."""
    return ascii(text)[1:-1].encode()[: _abi.MOVED_BYTES]


def _to_options(options: AttachOptions) -> _abi.AttachOptions:
    fields = vars(options).items()
    return _abi.AttachOptions(
        **{n: v.encode() if isinstance(v, str) else v for n, v in fields}
    )


def _to_decision(decision: _abi.Decision) -> Decision:
    return Decision(
        version=decision.version,
        mode=Mode(decision.mode),
        codec=Codec(decision.codec),
        mask_digest=Digest(decision.mask_digest.hi, decision.mask_digest.lo),
        layout_digest=Digest(decision.layout_digest.hi, decision.layout_digest.lo),
        reason=_text(decision.reason),
    )


def _error(code: int, text: str, advice: str = "") -> errors.PacTrainError:
    if advice and _ERRORS.get(code) is errors.AgentUnresponsiveError:
        text = "\n".join([*text.splitlines()[:-1], advice])
    return _ERRORS.get(code, errors.PacTrainError)(
        text or f"The trainer library failed with code {code}.\nPlease report this."
    )


def code_of(error: errors.PacTrainError) -> int:
    return next((code for code, kind in _ERRORS.items() if type(error) is kind), 7)


def error_of(code: int, text: bytes) -> errors.PacTrainError:
    return _error(code, _text(text))


def settings_difference(settings: str, rank: int, other: str, other_rank: int) -> str:
    """What differs between two ranks' settings, with both values and what to do; empty:
    nothing does."""
    sides = (settings.encode(), rank, other.encode(), other_rank)
    text: bytes = _abi.load_library().pt_settings_difference(*sides)
    return text.decode("utf-8", "replace")


def may_go_on(
    error: errors.PacTrainError, final: bool, may_rejoin: bool, agent_returns: bool
) -> bool:
    """True if attaching again may follow a session that is over with this error."""
    flags = (int(final), int(may_rejoin), int(agent_returns))
    return bool(_abi.load_library().pt_may_go_on(code_of(error), *flags))


class MembershipCore:
    """pt_membership; see trainer/membership_abi.h."""

    def __init__(
        self, agent_returns: bool, piece_bytes: int, attach_timeout_ms: int
    ) -> None:
        self._library = _abi.load_library()
        options = _abi.MembershipOptions(
            _abi.PYTHON, int(agent_returns), piece_bytes, attach_timeout_ms
        )
        self._handle = ctypes.c_void_p(
            self._library.pt_membership_new(ctypes.byref(options))
        )
        weakref.finalize(self, self._library.pt_membership_free, self._handle)

    def begin(self, mine: _abi.Mine, there: _abi.Result, now: float) -> _abi.Todo:
        return self._ask(self._library.pt_membership_begin, now, mine, there)

    def next(self, result: _abi.Result, now: float) -> _abi.Todo:
        return self._ask(self._library.pt_membership_next, now, result)

    def forget(self) -> None:
        self._library.pt_membership_forget(self._handle)

    def _ask(self, call: Any, now: float, *structs: ctypes.Structure) -> _abi.Todo:
        todo = _abi.Todo()
        given = map(ctypes.byref, structs)
        call(self._handle, *given, round(now * 1000), ctypes.byref(todo))
        return todo


def digest_of(data: Bytes) -> Digest:
    """XXH3-128 of a byte range."""
    view = np.frombuffer(data, dtype=np.uint8) if isinstance(data, bytes) else data
    result = _abi.load_library().pt_digest_of(view.ctypes.data, view.nbytes)
    return Digest(result.hi, result.lo)


def code_levels(
    levels: int, key: int, first_element: int, values: npt.NDArray[np.float32]
) -> tuple[npt.NDArray[np.float32], int]:
    """What all ranks use of `values`, up to 65,536, in TERNARY steps, and its bytes.

    Raises:
      InvalidArgument: a number is out of range; says which.
    """
    library = _abi.load_library()
    values = np.ascontiguousarray(values, np.float32)
    decoded = np.empty_like(values)
    sent = ctypes.c_uint32()
    code = library.pt_code_levels(
        levels,
        key,
        first_element,
        values.ctypes.data,
        values.size,
        decoded.ctypes.data,
        ctypes.byref(sent),
    )
    if code != _PT_OK:
        raise _error(code, _text(library.pt_last_error()))
    return decoded, sent.value


class Waits:
    """What attaching waits for. Nothing is said of it before speak()."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._speaks = False
        self._last = ""
        self._lock = threading.Lock()

    def hear(self, text: str) -> None:
        with self._lock:
            self._last = text
            speaks = self._speaks
        if speaks:
            self._say(text)

    def speak(self) -> None:
        """A healthy start is over by now: from here on every change is said."""
        with self._lock:
            self._speaks = True
            last = self._last
        if last:
            self._say(last)


OnDevice = Callable[[], contextlib.AbstractContextManager[object]]


def _attach(
    options: AttachOptions,
    on_waiting: Callable[[str], None],
    advice: str,
    previous: ctypes.c_void_p | None,
    within: OnDevice,
) -> ctypes.c_void_p:
    """pt_attach() in a helper thread, so that Ctrl-C interrupts the wait."""
    library = _abi.load_library()
    fields = _to_options(options)
    fields.previous = previous
    outcome: list[ctypes.c_void_p | BaseException] = []
    done = threading.Event()
    waits = Waits(on_waiting)

    def ask() -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        callback = _abi.OnWaiting(lambda text, _: waits.hear(_text(text)))
        code = library.pt_attach(
            ctypes.byref(fields), ctypes.byref(handle), callback, None
        )
        if code == _PT_OK:
            return handle
        error = _error(code, _text(library.pt_last_error()), advice)
        error.may_rejoin = bool(library.pt_last_may_rejoin())
        raise error

    def run() -> None:
        try:
            with within():
                outcome.append(ask())
        except BaseException as error:  # The caller waits for an outcome.
            outcome.append(error)
        done.set()

    threading.Thread(target=run, name="pactrain-attach", daemon=True).start()
    if not done.wait(PATIENCE_SECONDS):
        waits.speak()
        done.wait()
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


class NativeSession:
    """One attach of one model; see trainer/pactrain.h for the rules of each call.

    reattach() puts another attach in its place, for all who hold this object.

    Thread safety: submit() and wait() may overlap; all other calls one at a time.
    """

    def __init__(
        self,
        options: AttachOptions,
        on_waiting: Callable[[str], None],
        advice: str,
        within: OnDevice = contextlib.nullcontext,
    ) -> None:
        self._options = options
        self._within = within
        self._on_waiting = on_waiting
        self._advice = advice
        self._pid = os.getpid()
        self._library = _abi.load_library()
        self._handle: ctypes.c_void_p | None = None
        # Of the open step's packed buckets: kept alive, and what one has raised.
        self._fills: list[object] = []
        self._fill_error: errors.PacTrainError | None = None
        self._enter(options)

    @staticmethod
    def attach(
        options: AttachOptions,
        on_waiting: Callable[[str], None],
        advice: str = "",
        within: OnDevice = contextlib.nullcontext,
    ) -> NativeSession:
        """Connects and waits for all ranks.

        `advice` says what to do when the agent is gone, in the place of the library's
        own last line. `within()` gives a thread the model's device.

        Raises: the typed error of the code of pt_attach().
        """
        return NativeSession(options, on_waiting, advice, within)

    def reattach(self, held: HeldState, timeout_seconds: float) -> None:
        """Attaches again in the place of what is over; says how far this rank has come.

        What is over stays open so long: by that the agent knows that this rank lives.

        Raises: as attach(); it may be attached again.
        """
        options = dataclasses.replace(
            self._options,
            lineage=held.lineage,
            committed=held.committed,
            parameters=held.parameters,
            resume_step=held.next_step,
            attach_timeout_ms=round(timeout_seconds * 1000),
            kept_elements=0,
            declared_elements=0,  # Masks have changed, or come with a state.
        )
        self._enter(options)

    def forgo_nccl(self) -> None:
        """From the next attach on."""
        self._options = dataclasses.replace(self._options, nccl=False)

    def _enter(self, options: AttachOptions) -> None:
        previous = self._handle
        handle = _attach(
            options, self._on_waiting, self._advice, previous, self._within
        )
        self._resume_step = int(self._library.pt_next_step(handle))
        self._handle = handle
        if previous is not None:
            self._library.pt_close(previous)

    def _open(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise errors.PacTrainError(errors.CLOSED)
        if os.getpid() != self._pid:
            raise errors.PacTrainError(
                f"The session belongs to process {self._pid}; this is {os.getpid()}, "
                "forked from it.\nAttach in the process that trains."
            )
        return self._handle

    def _check(self, code: int) -> None:
        if code != _PT_OK:
            if self._fill_error is not None:
                raise self._fill_error
            text = _text(self._library.pt_error_text(self._handle))
            raise _error(code, text, self._advice)

    def digest_of(self, data: Bytes) -> Digest:
        return digest_of(data)

    @property
    def generation(self) -> int:
        return int(self._library.pt_generation(self._open()))

    @property
    def lineage(self) -> Digest:
        """Of the generation's state."""
        digest = self._library.pt_lineage(self._open())
        return Digest(digest.hi, digest.lo)

    @property
    def next_step(self) -> int:
        return int(self._library.pt_next_step(self._open()))

    @property
    def resume_step(self) -> int:
        """After the last step that was committed here: what reattach() is to be told.

        next_step also goes beyond a step that failed.
        """
        return self._resume_step

    @property
    def world_size(self) -> int:
        return int(self._library.pt_world_size(self._open()))

    @property
    def rank(self) -> int:
        """Assigned by the coordinator."""
        return int(self._library.pt_rank(self._open()))

    @property
    def donor(self) -> int | None:
        """The rank whose state those take that need it; None: a new job."""
        rank = int(self._library.pt_donor(self._open()))
        return None if rank == _abi.NO_RANK else rank

    @property
    def needs_state(self) -> bool:
        return bool(self._library.pt_needs_state(self._open()))

    @property
    def may_rejoin(self) -> bool:
        """It is over, and attaching again is the way to go on."""
        return bool(self._library.pt_may_rejoin(self._open()))

    @property
    def closed(self) -> bool:
        return self._handle is None

    @property
    def site(self) -> str:
        return _text(self._library.pt_site(self._open()))

    @property
    def agent_name(self) -> str:
        return _text(self._library.pt_agent_name(self._open()))

    @property
    def step_deadline_seconds(self) -> float:
        return float(self._library.pt_step_deadline_ms(self._open())) / 1000

    @property
    def decision(self) -> Decision:
        out = _abi.Decision()
        self._library.pt_current_decision(self._open(), ctypes.byref(out))
        return _to_decision(out)

    @property
    def is_final(self) -> bool:
        return bool(self._library.pt_is_final(self._open()))

    def set_masks(
        self,
        mask_digest: Digest,
        first_bucket: int,
        bucket_layouts: Sequence[Digest],
        elements: Sequence[int],
        bitmaps: Sequence[npt.NDArray[np.uint8]],
    ) -> None:
        count = len(bitmaps)
        self._check(
            self._library.pt_set_masks(
                self._open(),
                _to_c(mask_digest),
                first_bucket,
                count,
                (_abi.Digest * count)(*(_to_c(digest) for digest in bucket_layouts)),
                (ctypes.c_uint64 * count)(*elements),
                (ctypes.c_void_p * count)(*(bits.ctypes.data for bits in bitmaps)),
            )
        )

    def vote(
        self,
        layout_digest: Digest,
        mask_digest: Digest,
        steps_unchanged: int,
        settle_steps: int,
        inside_decision: bool,
        kept_elements: int,
        elements: int,
        moved: str = "",
    ) -> None:
        self._check(
            self._library.pt_vote(
                self._open(),
                _to_c(layout_digest),
                _to_c(mask_digest),
                steps_unchanged,
                settle_steps,
                int(inside_decision),
                kept_elements,
                elements,
                _printable(moved),
            )
        )

    def keep(
        self, mask_digest: Digest, parameters: Sequence[tuple[str, int, int]]
    ) -> None:
        """(name, kept, elements) of each, for people; see pt_keep()."""
        count = len(parameters)
        names = (name.encode("utf-8", "replace") for name, _, _ in parameters)
        self._check(
            self._library.pt_keep(
                self._open(),
                _to_c(mask_digest),
                count,
                (ctypes.c_char_p * count)(*names),
                (ctypes.c_uint64 * count)(*(kept for _, kept, _ in parameters)),
                (ctypes.c_uint64 * count)(*(total for _, _, total in parameters)),
            )
        )

    def tell_path(self, number: int, reason: str) -> None:
        """For people; see pt_device_path()."""
        words = _printable(reason)
        self._check(self._library.pt_device_path(self._open(), number, words))

    def submit(
        self,
        bucket: int,
        parts: Sequence[Part],
        out: int,
        dtype: DType,
        op: Op,
        layout: Digest,
        last: bool,
        parameters: Digest | None,
    ) -> None:
        """`out` is the address for the mean, of as many elements as the parts.

        All memory stays valid until wait() returns; see pt_submit().
        """
        digest = None if parameters is None else ctypes.byref(_to_c(parameters))
        self._check(
            self._library.pt_submit(
                self._open(),
                bucket,
                (_abi.Part * len(parts))(*(_abi.Part(*part) for part in parts)),
                len(parts),
                out,
                dtype,
                op,
                _to_c(layout),
                int(last),
                digest,
            )
        )

    def plan_bucket(self, bucket: int, elements: int, layout: Digest) -> Plan:
        """What of the bucket is to be submitted next; see pt_plan_bucket()."""
        out = _abi.Plan()
        self._check(
            self._library.pt_plan_bucket(
                self._open(), bucket, elements, _to_c(layout), ctypes.byref(out)
            )
        )
        return Plan(
            packed=bool(out.packed),
            count_outside=bool(out.count_outside),
            kept=out.kept,
            image_bytes=out.image_bytes,
            mask_digest=Digest(out.mask_digest.hi, out.mask_digest.lo),
        )

    def mask_image(
        self, bucket: int, elements: int, layout: Digest, plan: Plan
    ) -> npt.NDArray[np.uint8]:
        """The mask of a bucket as kernels read it."""
        image = np.empty(plan.image_bytes, dtype=np.uint8)
        self._check(
            self._library.pt_mask_image(
                self._open(),
                bucket,
                elements,
                _to_c(layout),
                ctypes.byref(_abi.Plan(**vars(plan))),
                image.ctypes.data,
            )
        )
        return image

    def reduce(
        self,
        bucket: int,
        elements: int,
        plan: Plan,
        dtype: DType,
        layout: Digest,
        source: int,
        target: int,
        stream: int,
    ) -> NodePath:
        """See pt_reduce()."""
        path = ctypes.c_int32()
        self._check(
            self._library.pt_reduce(
                self._open(),
                bucket,
                elements,
                ctypes.byref(_abi.Plan(**vars(plan))),
                dtype,
                _to_c(layout),
                source,
                target,
                stream,
                ctypes.byref(path),
            )
        )
        return NodePath(path.value)

    @property
    def node_report(self) -> NodeReport:
        out = _abi.Node()
        self._check(self._library.pt_node_report(self._open(), ctypes.byref(out)))
        return NodeReport(
            open=bool(out.open),
            pending=bool(out.pending),
            taken=out.taken,
            by_host=out.by_host,
            nccl_seconds=out.nccl_seconds,
            staged_seconds=out.staged_seconds,
            reason=_text(out.reason),
        )

    def submit_packed(
        self,
        bucket: PackedBucket,
        layout: Digest,
        last: bool,
        parameters: Digest | None,
    ) -> None:
        """See pt_submit_packed(); its memory stays valid until wait() returns."""
        digest = None if parameters is None else ctypes.byref(_to_c(parameters))
        fill = _abi.Fill(lambda index, _: self._fill(bucket))
        self._fills.append(fill)
        self._check(
            self._library.pt_submit_packed(
                self._open(),
                bucket.index,
                bucket.elements,
                ctypes.byref(_abi.Plan(**vars(bucket.plan))),
                ctypes.byref(
                    _abi.Packed(bucket.outside, bucket.squares, int(bucket.path))
                ),
                bucket.memory,
                bucket.dtype,
                _to_c(layout),
                int(last),
                digest,
                fill,
                None,
            )
        )

    def _fill(self, bucket: PackedBucket) -> int:
        """0, or 1 after an error; nothing may be raised into C."""
        try:
            bucket.fill()
        except errors.PacTrainError as error:
            self._fill_error = error
            return 1
        except Exception as error:
            self._fill_error = errors.PacTrainError(
                f"Internal error: {error!r}.\nPlease report this."
            )
            return 1
        return 0

    def wait(self) -> StepResult:
        out = _abi.Step()
        try:
            self._check(self._library.pt_wait(self._open(), ctypes.byref(out)))
        finally:
            self._fills.clear()
            self._fill_error = None
        self._resume_step = out.step + 1
        return StepResult(
            step=out.step,
            attempts=out.attempts,
            dense=bool(out.dense),
            mode=Mode(out.mode),
            codec=Codec(out.codec),
            sent_bytes=out.sent_bytes,
            received_bytes=out.received_bytes,
            dense_bytes=out.dense_bytes,
            link_rate=out.link_rate,
            elements=out.elements,
            submitted_elements=out.submitted_elements,
            wait_seconds=out.wait_seconds,
            next=_to_decision(out.next),
        )

    def detach(self) -> None:
        """Leaves the job for good: the others need not wait for this rank."""
        self._library.pt_detach(self._open())

    def close(self) -> None:
        """Leaves the job and frees the session; not in a forked child."""
        handle = self._give_up()
        if handle is not None:
            self._library.pt_detach(handle)
            self._library.pt_close(handle)

    def close_at_exit(self) -> None:
        """As close(), if and when this process exits with status 0."""
        handle = self._give_up()
        if handle is not None:
            self._library.pt_close_at_exit(handle)

    def _give_up(self) -> ctypes.c_void_p | None:
        handle, self._handle = self._handle, None
        return handle if os.getpid() == self._pid else None
