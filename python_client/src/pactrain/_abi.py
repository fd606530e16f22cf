"""The C functions and structs of trainer/pactrain.h, and where the library is.

ctypes releases the GIL during each call.
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path
from typing import Any

from . import errors

ABI_VERSION = 13
NO_RANK = 0xFFFFFFFF
MOVED_BYTES = 200
# The package's own programs and library.
NATIVE = Path(__file__).resolve().parent / "_native"
ADMIN = NATIVE / "pactrain-admin"
LIBRARY_NAME = "libpactrain_trainer.so"


class Digest(ctypes.Structure):
    _fields_ = (("hi", ctypes.c_uint64), ("lo", ctypes.c_uint64))


class Part(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("elements", ctypes.c_uint64))


class AttachOptions(ctypes.Structure):
    _fields_ = (
        ("agent", ctypes.c_char_p),
        ("job", ctypes.c_char_p),
        ("site", ctypes.c_char_p),
        ("launch", ctypes.c_char_p),
        ("rank", ctypes.c_uint32),
        ("world_size", ctypes.c_uint32),
        ("model", ctypes.c_uint32),
        ("model_digest", Digest),
        ("model_summary", ctypes.c_char_p),
        ("elements", ctypes.c_uint64),
        ("slot_bytes", ctypes.c_uint64),
        ("resume_step", ctypes.c_uint64),
        ("attach_timeout_ms", ctypes.c_uint32),
        ("gse", ctypes.c_int),
        ("on_shrink", ctypes.c_int32),
        ("lineage", Digest),
        ("committed", ctypes.c_uint64),
        ("parameters", Digest),
        ("replace", ctypes.c_int32),
        ("previous", ctypes.c_void_p),
        ("mask_digest", Digest),
        ("layout_digest", Digest),
        ("kept_elements", ctypes.c_uint64),
        ("declared_elements", ctypes.c_uint64),
        ("activate_every", ctypes.c_uint32),
        ("pin_mode", ctypes.c_int32),
        ("pin_codec", ctypes.c_int32),
        ("pin_from", ctypes.c_uint64),
        ("nccl", ctypes.c_int32),
    )


class Decision(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint64),
        ("mode", ctypes.c_int32),
        ("codec", ctypes.c_int32),
        ("mask_digest", Digest),
        ("layout_digest", Digest),
        ("reason", ctypes.c_char * 256),
    )


class Step(ctypes.Structure):
    _fields_ = (
        ("step", ctypes.c_uint64),
        ("attempts", ctypes.c_uint32),
        ("world_size", ctypes.c_uint32),
        ("dense", ctypes.c_int32),
        ("mode", ctypes.c_int32),
        ("codec", ctypes.c_int32),
        ("sent_bytes", ctypes.c_uint64),
        ("received_bytes", ctypes.c_uint64),
        ("dense_bytes", ctypes.c_uint64),
        ("link_rate", ctypes.c_double),
        ("elements", ctypes.c_uint64),
        ("submitted_elements", ctypes.c_uint64),
        ("wait_seconds", ctypes.c_double),
        ("next", Decision),
    )


# trainer/device_abi.h
class Plan(ctypes.Structure):
    _fields_ = (
        ("packed", ctypes.c_int32),
        ("count_outside", ctypes.c_int32),
        ("kept", ctypes.c_uint64),
        ("image_bytes", ctypes.c_uint64),
        ("mask_digest", Digest),
    )


class Node(ctypes.Structure):
    _fields_ = (
        ("open", ctypes.c_int32),
        ("pending", ctypes.c_int32),
        ("taken", ctypes.c_uint64),
        ("by_host", ctypes.c_uint64),
        ("nccl_seconds", ctypes.c_double),
        ("staged_seconds", ctypes.c_double),
        ("reason", ctypes.c_char * 512),
    )


class Packed(ctypes.Structure):
    _fields_ = (
        ("outside", ctypes.c_uint64),
        ("squares", ctypes.c_double),
        ("path", ctypes.c_int32),
    )


# trainer/membership_abi.h
ATTACH, SLEEP, EXCHANGE, GIVE, DONE, FAIL = range(1, 7)
PYTHON = 0
STATE_MESSAGE_BYTES = 1088


class MembershipOptions(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32),
        ("agent_returns", ctypes.c_int32),
        ("piece_bytes", ctypes.c_uint64),
        ("attach_timeout_ms", ctypes.c_uint32),
    )


class Progress(ctypes.Structure):
    _fields_ = (
        ("committed", ctypes.c_uint64),
        ("buffer_sync_age", ctypes.c_uint64),
        ("parameter_check_age", ctypes.c_uint64),
    )


class Mine(ctypes.Structure):
    _fields_ = (
        ("newcomer", ctypes.c_int32),
        ("progress", Progress),
        ("parameters", Digest),
        ("settings", ctypes.c_char_p),
        ("shared", ctypes.c_char_p),
        ("unshared_optimizers", ctypes.c_uint32),
    )


_STATE = (
    ("common", ctypes.c_void_p),
    ("own", ctypes.c_void_p),
    ("common_bytes", ctypes.c_uint64),
    ("own_bytes", ctypes.c_uint64),
)


class Todo(ctypes.Structure):
    _fields_ = (
        ("action", ctypes.c_int32),
        ("tell", ctypes.c_char_p),
        ("warn", ctypes.c_int32),
        ("lineage", Digest),
        ("parameters", Digest),
        ("committed", ctypes.c_uint64),
        ("step", ctypes.c_uint64),
        ("ms", ctypes.c_uint32),
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("words", ctypes.c_uint64),
        ("layout", Digest),
        ("progress", Progress),
        ("kept", ctypes.c_int32),
        *_STATE,
        ("code", ctypes.c_int32),
        ("leaves", ctypes.c_int32),
        ("text", ctypes.c_char_p),
    )


class Result(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_int32),
        ("final", ctypes.c_int32),
        ("may_rejoin", ctypes.c_int32),
        ("text", ctypes.c_char_p),
        ("generation", ctypes.c_uint64),
        ("resume_step", ctypes.c_uint64),
        ("lineage", Digest),
        ("rank", ctypes.c_uint32),
        ("world_size", ctypes.c_uint32),
        ("donor", ctypes.c_uint32),
        ("needs_state", ctypes.c_int32),
        *_STATE,
    )


class Range(ctypes.Structure):
    _fields_ = (
        ("parameter", ctypes.c_uint32),
        ("first", ctypes.c_uint64),
        ("elements", ctypes.c_uint64),
    )


class Tracked(ctypes.Structure):
    _fields_ = (
        ("steps", ctypes.c_uint64),
        ("steps_unchanged", ctypes.c_uint64),
        ("settle_steps", ctypes.c_uint64),
        ("last_change", ctypes.c_uint64),
    )


Fill = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)
OnWaiting = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p)
DigestPointer = ctypes.POINTER(Digest)
Uint64Pointer = ctypes.POINTER(ctypes.c_uint64)


def find_library() -> Path:
    """The file of the trainer library.

    Raises:
      InvalidArgument: PACTRAIN_TRAINER_LIBRARY names no file.
      PacTrainError: there is none in the package.
    """
    named = os.environ.get("PACTRAIN_TRAINER_LIBRARY")
    if named:
        if not Path(named).is_file():
            raise errors.InvalidArgument(
                f"PACTRAIN_TRAINER_LIBRARY is {named!r}, and there is no such file.\n"
                f"Set it to the path of {LIBRARY_NAME}, or unset it."
            )
        return Path(named)
    place = NATIVE / LIBRARY_NAME
    if place.is_file():
        return place
    raise errors.PacTrainError(
        f"The trainer library {LIBRARY_NAME} was not found; looked at {place}.\n"
        "Build it with `make build`, or set PACTRAIN_TRAINER_LIBRARY to its path."
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
    session = tracker = ctypes.c_void_p
    asked = [ctypes.POINTER(Result), ctypes.c_uint64, ctypes.POINTER(Todo)]
    functions: dict[str, tuple[Any, list[Any]]] = {
        "pt_abi_version": (ctypes.c_uint32, []),
        "pt_version": (ctypes.c_char_p, []),
        "pt_digest_of": (Digest, [ctypes.c_void_p, ctypes.c_uint64]),
        "pt_code_levels": (
            ctypes.c_int,
            [
                ctypes.c_uint32,
                ctypes.c_uint64,
                ctypes.c_uint32,
                ctypes.c_void_p,
                ctypes.c_uint32,
                ctypes.c_void_p,
                ctypes.POINTER(ctypes.c_uint32),
            ],
        ),
        "pt_last_error": (ctypes.c_char_p, []),
        "pt_attach": (
            ctypes.c_int,
            [
                ctypes.POINTER(AttachOptions),
                ctypes.POINTER(session),
                OnWaiting,
                ctypes.c_void_p,
            ],
        ),
        "pt_last_may_rejoin": (ctypes.c_int, []),
        "pt_close": (None, [session]),
        "pt_close_at_exit": (None, [session]),
        "pt_detach": (None, [session]),
        "pt_generation": (ctypes.c_uint64, [session]),
        "pt_lineage": (Digest, [session]),
        "pt_lineage_committed": (ctypes.c_uint64, [session]),
        "pt_next_step": (ctypes.c_uint64, [session]),
        "pt_world_size": (ctypes.c_uint32, [session]),
        "pt_rank": (ctypes.c_uint32, [session]),
        "pt_donor": (ctypes.c_uint32, [session]),
        "pt_needs_state": (ctypes.c_int, [session]),
        "pt_may_rejoin": (ctypes.c_int, [session]),
        "pt_site": (ctypes.c_char_p, [session]),
        "pt_agent_name": (ctypes.c_char_p, [session]),
        "pt_step_deadline_ms": (ctypes.c_uint64, [session]),
        "pt_current_decision": (None, [session, ctypes.POINTER(Decision)]),
        "pt_error_text": (ctypes.c_char_p, [session]),
        "pt_set_masks": (
            ctypes.c_int,
            [
                session,
                Digest,
                ctypes.c_uint32,
                ctypes.c_uint32,
                DigestPointer,
                Uint64Pointer,
                ctypes.POINTER(ctypes.c_void_p),
            ],
        ),
        "pt_vote": (
            ctypes.c_int,
            [
                session,
                Digest,
                Digest,
                ctypes.c_uint32,
                ctypes.c_uint32,
                ctypes.c_int,
                ctypes.c_uint64,
                ctypes.c_uint64,
                ctypes.c_char_p,
            ],
        ),
        "pt_keep": (
            ctypes.c_int,
            [
                session,
                Digest,
                ctypes.c_uint32,
                ctypes.POINTER(ctypes.c_char_p),
                Uint64Pointer,
                Uint64Pointer,
            ],
        ),
        "pt_submit": (
            ctypes.c_int,
            [
                session,
                ctypes.c_uint32,
                ctypes.POINTER(Part),
                ctypes.c_uint32,
                ctypes.c_void_p,
                ctypes.c_int,
                ctypes.c_int,
                Digest,
                ctypes.c_int,
                DigestPointer,
            ],
        ),
        "pt_plan_bucket": (
            ctypes.c_int,
            [session, ctypes.c_uint32, ctypes.c_uint64, Digest, ctypes.POINTER(Plan)],
        ),
        "pt_mask_image": (
            ctypes.c_int,
            [
                session,
                ctypes.c_uint32,
                ctypes.c_uint64,
                Digest,
                ctypes.POINTER(Plan),
                ctypes.c_void_p,
            ],
        ),
        "pt_reduce": (
            ctypes.c_int,
            [
                session,
                ctypes.c_uint32,
                ctypes.c_uint64,
                ctypes.POINTER(Plan),
                ctypes.c_int,
                Digest,
                ctypes.c_uint64,
                ctypes.c_uint64,
                ctypes.c_void_p,
                ctypes.POINTER(ctypes.c_int32),
            ],
        ),
        "pt_node_report": (ctypes.c_int, [session, ctypes.POINTER(Node)]),
        "pt_device_path": (
            ctypes.c_int,
            [session, ctypes.c_int32, ctypes.c_char_p],
        ),
        "pt_nccl_status": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_uint64]),
        "pt_cuda_status": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_uint64]),
        "pt_submit_packed": (
            ctypes.c_int,
            [
                session,
                ctypes.c_uint32,
                ctypes.c_uint64,
                ctypes.POINTER(Plan),
                ctypes.POINTER(Packed),
                ctypes.c_void_p,
                ctypes.c_int,
                Digest,
                ctypes.c_int,
                DigestPointer,
                Fill,
                ctypes.c_void_p,
            ],
        ),
        "pt_cuda_open": (ctypes.c_int, [ctypes.POINTER(ctypes.c_void_p)]),
        "pt_cuda_totals_bytes": (ctypes.c_uint64, [ctypes.c_uint64]),
        "pt_cuda_compact": (
            ctypes.c_int,
            [
                ctypes.c_void_p,
                ctypes.c_uint64,
                ctypes.c_uint64,
                ctypes.c_int,
                ctypes.c_uint64,
                ctypes.c_int,
                ctypes.c_uint64,
                ctypes.c_uint64,
                ctypes.c_void_p,
            ],
        ),
        "pt_cuda_expand_divide": (
            ctypes.c_int,
            [
                ctypes.c_void_p,
                ctypes.c_uint64,
                ctypes.c_uint64,
                ctypes.c_int,
                ctypes.c_uint64,
                ctypes.c_uint32,
                ctypes.c_uint64,
                ctypes.c_void_p,
            ],
        ),
        "pt_wait": (ctypes.c_int, [session, ctypes.POINTER(Step)]),
        "pt_is_final": (ctypes.c_int, [session]),
        "pt_membership_new": (session, [ctypes.POINTER(MembershipOptions)]),
        "pt_membership_free": (None, [session]),
        "pt_membership_forget": (None, [session]),
        "pt_membership_begin": (None, [session, ctypes.POINTER(Mine), *asked]),
        "pt_membership_next": (None, [session, *asked]),
        "pt_may_go_on": (ctypes.c_int, [ctypes.c_int] * 4),
        "pt_settings_difference": (
            ctypes.c_char_p,
            [ctypes.c_char_p, ctypes.c_uint32] * 2,
        ),
        "pt_tracker_new": (
            tracker,
            [
                ctypes.c_uint32,
                ctypes.POINTER(ctypes.c_char_p),
                Uint64Pointer,
                ctypes.c_uint32,
            ],
        ),
        "pt_tracker_free": (None, [tracker]),
        "pt_tracker_due": (ctypes.c_uint32, [tracker]),
        "pt_tracker_range": (Range, [tracker, ctypes.c_uint32]),
        "pt_tracker_look": (
            ctypes.c_uint64,
            [tracker, ctypes.c_uint32, ctypes.c_void_p],
        ),
        "pt_tracker_end_step": (None, [tracker]),
        "pt_tracker_restart": (None, [tracker]),
        "pt_tracker_state": (Tracked, [tracker]),
        "pt_tracker_bits": (None, [tracker, ctypes.c_uint32, ctypes.c_void_p]),
        "pt_tracker_moves": (ctypes.c_uint64, [tracker, ctypes.c_uint32]),
        "pt_tracker_moved": (ctypes.c_char_p, [tracker]),
    }
    for name, (result, arguments) in functions.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
