"""The trainer library (trainer/pactrain.h) through ctypes.

`NativeSession` is the one user of the C functions; every code but PT_OK becomes the
typed error of `pactrain.errors`. ctypes releases the GIL during each call.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import errors
from .types import (
    AttachOptions,
    Bytes,
    Codec,
    Decision,
    Digest,
    DType,
    Mode,
    Op,
    StepResult,
)

ABI_VERSION = 1
LIBRARY_NAME = "libpactrain_trainer.so"

_PT_OK = 0
_ERRORS: dict[int, type[errors.PacTrainError]] = {
    1: errors.InvalidArgument,
    2: errors.StepNotAppliedError,
    3: errors.ResyncRequiredError,
    4: errors.AgentUnresponsiveError,
    5: errors.CoordinatorUnavailableError,
    6: errors.RefusedError,
}


class _Digest(ctypes.Structure):
    _fields_ = (("hi", ctypes.c_uint64), ("lo", ctypes.c_uint64))


class _AttachOptions(ctypes.Structure):
    _fields_ = (
        ("agent", ctypes.c_char_p),
        ("job", ctypes.c_char_p),
        ("site", ctypes.c_char_p),
        ("launch", ctypes.c_char_p),
        ("rank", ctypes.c_uint32),
        ("world_size", ctypes.c_uint32),
        ("model", ctypes.c_uint32),
        ("model_digest", _Digest),
        ("model_summary", ctypes.c_char_p),
        ("elements", ctypes.c_uint64),
        ("slot_bytes", ctypes.c_uint64),
        ("resume_step", ctypes.c_uint64),
        ("attach_timeout_ms", ctypes.c_uint32),
        ("gse", ctypes.c_int),
    )


class _Decision(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint64),
        ("mode", ctypes.c_int32),
        ("codec", ctypes.c_int32),
        ("mask_digest", _Digest),
        ("layout_digest", _Digest),
        ("reason", ctypes.c_char * 256),
    )


class _Step(ctypes.Structure):
    _fields_ = (
        ("step", ctypes.c_uint64),
        ("attempts", ctypes.c_uint32),
        ("world_size", ctypes.c_uint32),
        ("dense", ctypes.c_int32),
        ("mode", ctypes.c_int32),
        ("codec", ctypes.c_int32),
        ("sent_bytes", ctypes.c_uint64),
        ("received_bytes", ctypes.c_uint64),
        ("elements", ctypes.c_uint64),
        ("submitted_elements", ctypes.c_uint64),
        ("wait_seconds", ctypes.c_double),
        ("next", _Decision),
    )


_OnWaiting = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p)
_DigestPointer = ctypes.POINTER(_Digest)
_Uint64Pointer = ctypes.POINTER(ctypes.c_uint64)


def find_library() -> Path:
    """The file of the trainer library.

    Raises:
      InvalidArgument: PACTRAIN_TRAINER_LIBRARY names no file.
      PacTrainError: there is none in any of the known places.
    """
    named = os.environ.get("PACTRAIN_TRAINER_LIBRARY")
    if named:
        if not Path(named).is_file():
            raise errors.InvalidArgument(
                f"PACTRAIN_TRAINER_LIBRARY is {named!r}, and there is no such file.\n"
                f"Set it to the path of {LIBRARY_NAME}, or unset it."
            )
        return Path(named)
    package = Path(__file__).resolve().parent
    places = [package / "_native" / LIBRARY_NAME]
    if len(package.parents) > 2:  # .../python_client/src/pactrain of a checkout
        places.append(package.parents[2] / "bazel-bin" / "trainer" / LIBRARY_NAME)
    for place in places:
        if place.is_file():
            return place
    raise errors.PacTrainError(
        f"The trainer library {LIBRARY_NAME} was not found; looked at "
        + ", ".join(str(place) for place in places)
        + ".\nBuild it with `make build`, or set PACTRAIN_TRAINER_LIBRARY to its path."
    )


@functools.cache
def load_library() -> ctypes.CDLL:
    """The loaded library with typed functions; loaded once.

    Raises:
      PacTrainError: not found, cannot be loaded, or of another ABI version.
    """
    path = find_library()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise errors.PacTrainError(
            f"{path} cannot be loaded: {error}.\n"
            "Build it again for this machine with `make build`."
        ) from error
    _declare(library)
    version = library.pt_abi_version()
    if version != ABI_VERSION:
        raise errors.PacTrainError(
            f"{path} has ABI version {version}, this package needs {ABI_VERSION}.\n"
            "Install the package and the library of one release."
        )
    return library


def _declare(library: ctypes.CDLL) -> None:
    session = ctypes.c_void_p
    functions: dict[str, tuple[Any, list[Any]]] = {
        "pt_abi_version": (ctypes.c_uint32, []),
        "pt_version": (ctypes.c_char_p, []),
        "pt_digest_of": (_Digest, [ctypes.c_void_p, ctypes.c_uint64]),
        "pt_last_error": (ctypes.c_char_p, []),
        "pt_attach": (
            ctypes.c_int,
            [
                ctypes.POINTER(_AttachOptions),
                ctypes.POINTER(session),
                _OnWaiting,
                ctypes.c_void_p,
            ],
        ),
        "pt_close": (None, [session]),
        "pt_generation": (ctypes.c_uint64, [session]),
        "pt_next_step": (ctypes.c_uint64, [session]),
        "pt_world_size": (ctypes.c_uint32, [session]),
        "pt_site": (ctypes.c_char_p, [session]),
        "pt_agent_name": (ctypes.c_char_p, [session]),
        "pt_step_deadline_ms": (ctypes.c_uint64, [session]),
        "pt_current_decision": (None, [session, ctypes.POINTER(_Decision)]),
        "pt_error_text": (ctypes.c_char_p, [session]),
        "pt_set_masks": (
            ctypes.c_int,
            [
                session,
                _Digest,
                _Digest,
                ctypes.c_uint32,
                _DigestPointer,
                _Uint64Pointer,
                ctypes.POINTER(ctypes.c_void_p),
            ],
        ),
        "pt_vote": (
            ctypes.c_int,
            [
                session,
                _Digest,
                _Digest,
                ctypes.c_uint32,
                ctypes.c_uint32,
                ctypes.c_int,
                ctypes.c_uint64,
                ctypes.c_uint64,
            ],
        ),
        "pt_submit": (
            ctypes.c_int,
            [
                session,
                ctypes.c_uint32,
                ctypes.c_void_p,
                ctypes.c_uint64,
                ctypes.c_int,
                ctypes.c_int,
                _Digest,
                ctypes.c_int,
                _DigestPointer,
            ],
        ),
        "pt_wait": (ctypes.c_int, [session, ctypes.POINTER(_Step)]),
        "pt_is_final": (ctypes.c_int, [session]),
        "pt_fetch": (ctypes.c_int, [session, ctypes.c_uint32, ctypes.c_void_p]),
    }
    for name, (result, arguments) in functions.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments


def _to_c(digest: Digest) -> _Digest:
    return _Digest(digest.hi, digest.lo)


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def _to_options(options: AttachOptions) -> _AttachOptions:
    return _AttachOptions(
        agent=options.agent.encode(),
        job=options.job.encode(),
        site=options.site.encode(),
        launch=options.launch.encode(),
        rank=options.rank,
        world_size=options.world_size,
        model=options.model,
        model_digest=_to_c(options.model_digest),
        model_summary=options.model_summary.encode(),
        elements=options.elements,
        slot_bytes=options.slot_bytes,
        resume_step=options.resume_step,
        attach_timeout_ms=options.attach_timeout_ms,
        gse=int(options.gse),
    )


def _to_decision(decision: _Decision) -> Decision:
    return Decision(
        version=decision.version,
        mode=Mode(decision.mode),
        codec=Codec(decision.codec),
        mask_digest=Digest(decision.mask_digest.hi, decision.mask_digest.lo),
        layout_digest=Digest(decision.layout_digest.hi, decision.layout_digest.lo),
        reason=_text(decision.reason),
    )


def _error(code: int, text: str) -> errors.PacTrainError:
    return _ERRORS.get(code, errors.PacTrainError)(
        text or f"The trainer library failed with code {code}.\nPlease report this."
    )


def digest_of(data: Bytes) -> Digest:
    """XXH3-128 of a byte range."""
    view = np.frombuffer(data, dtype=np.uint8) if isinstance(data, bytes) else data
    result = load_library().pt_digest_of(view.ctypes.data, view.nbytes)
    return Digest(result.hi, result.lo)


class NativeSession:
    """One attach of one model; see trainer/pactrain.h for the rules of each call.

    Thread safety: submit() and wait() may overlap; all other calls one at a time.
    """

    def __init__(self, library: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
        self._library = library
        self._handle: ctypes.c_void_p | None = handle
        self._pid = os.getpid()

    @staticmethod
    def attach(
        options: AttachOptions, on_waiting: Callable[[str], None]
    ) -> NativeSession:
        """Connects and waits for all ranks.

        Runs in a helper thread so that Ctrl-C interrupts the wait.

        Raises: the typed error of the code of pt_attach().
        """
        library = load_library()
        outcome: list[NativeSession | errors.PacTrainError] = []
        done = threading.Event()

        def run() -> None:
            handle = ctypes.c_void_p()
            callback = _OnWaiting(lambda text, _: on_waiting(_text(text)))
            fields = _to_options(options)
            code = library.pt_attach(
                ctypes.byref(fields), ctypes.byref(handle), callback, None
            )
            if code == _PT_OK:
                outcome.append(NativeSession(library, handle))
            else:
                outcome.append(_error(code, _text(library.pt_last_error())))
            done.set()

        threading.Thread(target=run, name="pactrain-attach", daemon=True).start()
        done.wait()
        if isinstance(outcome[0], errors.PacTrainError):
            raise outcome[0]
        return outcome[0]

    def _open(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise errors.PacTrainError(
                "The session is closed.\nAttach the model again to train on."
            )
        if os.getpid() != self._pid:
            raise errors.PacTrainError(
                "A session cannot be used in a forked process.\n"
                "Attach in the process that trains."
            )
        return self._handle

    def _check(self, code: int) -> None:
        if code != _PT_OK:
            raise _error(code, _text(self._library.pt_error_text(self._handle)))

    def digest_of(self, data: Bytes) -> Digest:
        return digest_of(data)

    @property
    def generation(self) -> int:
        return int(self._library.pt_generation(self._open()))

    @property
    def next_step(self) -> int:
        return int(self._library.pt_next_step(self._open()))

    @property
    def world_size(self) -> int:
        return int(self._library.pt_world_size(self._open()))

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
        out = _Decision()
        self._library.pt_current_decision(self._open(), ctypes.byref(out))
        return _to_decision(out)

    @property
    def is_final(self) -> bool:
        return bool(self._library.pt_is_final(self._open()))

    def set_masks(
        self,
        mask_digest: Digest,
        layout_digest: Digest,
        bucket_layouts: Sequence[Digest],
        elements: Sequence[int],
        bitmaps: Sequence[npt.NDArray[np.uint8]],
    ) -> None:
        count = len(bitmaps)
        self._check(
            self._library.pt_set_masks(
                self._open(),
                _to_c(mask_digest),
                _to_c(layout_digest),
                count,
                (_Digest * count)(*(_to_c(digest) for digest in bucket_layouts)),
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
            )
        )

    def submit(
        self,
        bucket: int,
        data: int,
        elements: int,
        dtype: DType,
        op: Op,
        layout: Digest,
        last: bool,
        parameters: Digest | None,
    ) -> None:
        """`data` is an address that stays valid until wait() returns."""
        digest = None if parameters is None else ctypes.byref(_to_c(parameters))
        self._check(
            self._library.pt_submit(
                self._open(),
                bucket,
                data,
                elements,
                dtype,
                op,
                _to_c(layout),
                int(last),
                digest,
            )
        )

    def wait(self) -> StepResult:
        out = _Step()
        self._check(self._library.pt_wait(self._open(), ctypes.byref(out)))
        return StepResult(
            step=out.step,
            attempts=out.attempts,
            dense=bool(out.dense),
            mode=Mode(out.mode),
            codec=Codec(out.codec),
            sent_bytes=out.sent_bytes,
            received_bytes=out.received_bytes,
            elements=out.elements,
            submitted_elements=out.submitted_elements,
            wait_seconds=out.wait_seconds,
            next=_to_decision(out.next),
        )

    def fetch(self, bucket: int, out: int) -> None:
        """`out` is the address of as many elements as were submitted."""
        self._check(self._library.pt_fetch(self._open(), bucket, out))

    def close(self) -> None:
        """Frees the session; a forked child leaves its parent's alone."""
        handle, self._handle = self._handle, None
        if handle is not None and os.getpid() == self._pid:
            self._library.pt_close(handle)
