"""The C functions and structs of trainer/pactrain.h, and where the library is.

They are read from the headers that lie beside the package's library, when the first one
is used. ctypes releases the GIL during each call.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import errors
from ._c_header import Header

# The package's own programs, library and headers.
NATIVE = Path(__file__).resolve().parent / "_native"
ADMIN = NATIVE / "pactrain-admin"
LIBRARY_NAME = "libpactrain_trainer.so"

# PT_ATTACH, pt_attach_options and so on of the headers, which mypy does not read: to
# it a struct is Any, as its fields are to it in any case.
ATTACH: int
DONE: int
FAIL: int
GIVE: int
MOVED_BYTES: int
NO_RANK: int
PYTHON: int
SLEEP: int
STATE_MESSAGE_BYTES: int
AttachOptions: Any
Decision: Any
Digest: Any
Fill: Any
MembershipOptions: Any
Mine: Any
Node: Any
OnWaiting: Any
Packed: Any
Part: Any
Plan: Any
Progress: Any
Result: Any
Step: Any
Todo: Any

_reading = threading.Lock()  # Structs read twice would be other ones.

if not TYPE_CHECKING:  # To mypy any name would be right.

    def __getattr__(name: str) -> Any:
        if not name.startswith("_"):
            header = _header()
            words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
            found = header.numbers.get(f"PT_{name}", header.types.get(f"pt_{words}"))
            if found is not None:
                globals()[name] = found
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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


def _header() -> Header:
    with _reading:
        return _read_header()


@functools.cache
def _read_header() -> Header:
    path = NATIVE / "pactrain.h"
    if not path.is_file():
        find_library()  # Says so if that is missing, too.
        raise errors.PacTrainError(
            f"The trainer library's header {path} was not found.\n"
            "Build it with `make build`, or install the package again."
        )
    return Header(path)


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
    header = _header()
    version, needed = library.pt_abi_version(), header.numbers["PT_ABI_VERSION"]
    if version != needed:
        raise errors.PacTrainError(
            f"{path} has ABI version {version}, this package needs {needed}.\n"
            "Install the package and the library of one release."
        )
    for name, (result, parameters) in header.functions.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, parameters
    return library
