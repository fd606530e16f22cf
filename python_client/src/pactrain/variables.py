"""Variables that look like PacTrain's and are not: a misspelt one has no effect."""

from __future__ import annotations

import difflib
import functools
import logging
import re
from collections.abc import Mapping

_PREFIX = "PACTRAIN_"
# Those of `pactrain doctor` (coordinator/admin/variables.cc), which also knows the
# settings of daemons, PACTRAIN_AGENT_* and PACTRAIN_COORDINATOR_*.
KNOWN = frozenset(
    _PREFIX + name
    for name in (
        *("ADMIN_JOB_KEY_FILE", "ADMIN_TLS_CA", "ADMIN_TLS_CERT", "ADMIN_TLS_KEY"),
        *("AGENT", "ATTACH_TIMEOUT", "CODEC", "COORDINATOR", "DAEMON_DIR", "EMBEDDED"),
        *("EPOCH_STEPS", "HOST_ADDRESS", "JOB_ID", "JOB_KEY", "LAUNCH", "LISTEN_PAGE"),
        "LOG_DIR",
        *("MIN_EXCHANGE_SHARE", "ON_SHRINK", "RENICE", "REPLACE", "RISK"),
        *("SITE", "SITES"),
        *("STEP_DEADLINE", "STRAGGLER_TIMEOUT", "TRAINER_LIBRARY"),
    )
)
# PACTRAIN_DATA is read by the examples.
_NOT_OURS = re.compile("PACTRAIN_(DATA|(AGENT|COORDINATOR|TEST)_.*)")

logger = logging.getLogger("pactrain")


def unknown(environment: Mapping[str, str]) -> dict[str, str]:
    """Names that have no effect, each with the nearest that has, or ""."""
    names = sorted(
        name
        for name in environment
        if name.startswith(_PREFIX)
        and name not in KNOWN
        and not _NOT_OURS.fullmatch(name)
    )
    return {name: _nearest(name) for name in names}


def warn_of_unknown(environment: Mapping[str, str]) -> None:
    """Once per name, by the first rank of each node."""
    if environment.get("LOCAL_RANK", "0") == "0":
        for name, nearest in unknown(environment).items():
            _warn(name, nearest)


@functools.cache
def _warn(name: str, nearest: str) -> None:
    logger.warning(
        "%s is no variable of PacTrain and has no effect: %s",
        name,
        f"did you mean {nearest}?" if nearest else "unset it",
    )


def _nearest(name: str) -> str:
    # What all have in common says nothing.
    words = [known.removeprefix(_PREFIX) for known in KNOWN]
    close = difflib.get_close_matches(name.removeprefix(_PREFIX), sorted(words), 1)
    return _PREFIX + close[0] if close else ""
