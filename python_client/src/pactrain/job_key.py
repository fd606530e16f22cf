"""The key of a job's embedded daemons: where it comes from, and how each node gets it.

Rank 0 takes it from PACTRAIN_JOB_KEY, or makes one. It lies in the private folder of
each node's daemons, which get it by an inherited descriptor. Nodes of rank 0's host
read its file. Those of other hosts are given it by the same variable; where it is not
set it goes through the store where the ranks meet, and a warning says what that means.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import AgentUnresponsiveError, InvalidArgument

VARIABLE = "PACTRAIN_JOB_KEY"
FILE = "job.key"
_BYTES = 32
_MAX_TEXT = 1024  # As daemons read of a file.

THROUGH_STORE = (
    f"{VARIABLE} is not set: the key of this job's daemons goes to its other hosts "
    "through torch's store at MASTER_ADDR:MASTER_PORT, in clear. Whoever listens there "
    "or reaches that port while the job starts can join and operate this job.\nWhere "
    "others can, give the key to all hosts in another way: run `export "
    f"{VARIABLE}=$(openssl rand -hex 32)` before sbatch or mpirun, or set one value on "
    "each host"
)


@dataclass(frozen=True)
class JobKey:
    text: str = field(repr=False)  # 64 hex digits.
    given: bool = False  # By VARIABLE.

    @property
    def id(self) -> str:
        """Equal for equal keys; tells nothing else of them."""
        return hashlib.sha256(b"pactrain embedded " + self.text.encode()).hexdigest()[
            :16
        ]

    def write(self, folder: Path) -> Path:
        """A new file in `folder` that only its owner may use. Raises: OSError."""
        path = folder / FILE
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(path, flags, 0o600), "w") as file:
            file.write(self.text + "\n")
        return path

    def note(self, path: Path, host: str, through_store: bool) -> dict[str, Any]:
        """What other nodes are told: with the key itself only `through_store`."""
        told = {"id": self.id, "given": self.given, "path": str(path), "host": host}
        return told | ({"key": self.text} if through_store else {})


def own_key(environment: Mapping[str, str]) -> JobKey:
    """Rank 0's. Raises: InvalidArgument: VARIABLE is set to something else."""
    return _given(environment) or JobKey(secrets.token_hex(_BYTES))


def told_key(
    note: Mapping[str, Any], host: str, environment: Mapping[str, str]
) -> JobKey:
    """That of a node of `host`, of which rank 0 has written `note`.

    Raises:
      InvalidArgument: VARIABLE is wrong here, or differs from rank 0's.
      AgentUnresponsiveError: rank 0's file cannot be read.
    """
    given = _given(environment)
    if given or (note["given"] and note["host"] != host):
        return _checked(given, note)
    if note["host"] != host:
        return JobKey(note["key"])
    return _checked(JobKey(_read(note["path"])), note)


def _checked(key: JobKey | None, note: Mapping[str, Any]) -> JobKey:
    if key and key.id == note["id"]:
        return key
    here = f"another one here ({key.id})" if key else "not set here"
    there = f"{note['id']}" if note["given"] else "not set"
    raise InvalidArgument(
        f"{VARIABLE} is {there} at rank 0 and {here} (shown are ids, no keys); allowed "
        "is one value for all ranks, or none.\nSet it to the same on each host."
    )


def _given(environment: Mapping[str, str]) -> JobKey | None:
    """As daemons read it: hex digits or base64, with white space around."""
    text = environment.get(VARIABLE, "").strip()
    if not text:
        return None
    with contextlib.suppress(binascii.Error, ValueError):
        hexadecimal = len(text) == 2 * _BYTES
        key = bytes.fromhex(text) if hexadecimal else base64.b64decode(text)
        if len(key) == _BYTES:
            return JobKey(key.hex(), given=True)
    raise InvalidArgument(  # Never quotes it.
        f"{VARIABLE} is no job key; allowed are 64 hex digits, or 32 bytes in base64."
        "\nSet it to what `openssl rand -hex 32` prints, or unset it."
    )


def _read(path: str) -> str:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                raise PermissionError(f"it is no file of user {os.geteuid()}")
            return file.read(_MAX_TEXT).strip()
    except OSError as error:
        raise AgentUnresponsiveError(
            f"The key of this job's daemons cannot be read from {path}: {error}.\n"
            "Run all ranks of a host as one user, set "
            f"{VARIABLE} to one value for all of them, or start daemons by hand and "
            "set PACTRAIN_AGENT."
        ) from error
