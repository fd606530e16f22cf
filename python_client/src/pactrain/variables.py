"""Variables that look like PacTrain's and are not: a misspelt one has no effect."""

from __future__ import annotations

import difflib
import functools
import logging
import re
from collections.abc import Mapping

_PREFIX = "PACTRAIN_"
# Those of `pactrain doctor` (coordinator/admin/variables.cc).
KNOWN = frozenset(
    _PREFIX + name
    for name in (
        *("ADMIN_JOB_KEY_FILE", "ADMIN_TLS_CA", "ADMIN_TLS_CERT", "ADMIN_TLS_KEY"),
        *("AGENT", "ATTACH_TIMEOUT", "CODEC", "COORDINATOR", "DAEMON_DIR"),
        *("DEVICE_PATH", "EMBEDDED"),
        *("EPOCH_STEPS", "HOST_ADDRESS", "JOB_ID", "JOB_KEY", "LAUNCH", "LISTEN_PAGE"),
        "LOG_DIR",
        *("MIN_EXCHANGE_SHARE", "ON_SHRINK", "RENICE", "REPLACE", "RISK"),
        *("SITE", "SITES"),
        *("STEP_DEADLINE", "STRAGGLER_TIMEOUT", "TRAINER_LIBRARY"),
    )
)
# Settings of daemons (proto/pactrain/v1/config.proto): of no effect here, and right.
_BOTH = (
    *("CONFIG", "CONNECTIONS_PER_SOURCE", "INSECURE_LOCAL", "INSECURE_NETWORK"),
    *("JOB_KEY_FILE", "LISTEN", "LISTEN_METRICS", "LOG_LEVEL", "METRICS_TOKEN_FILE"),
    *("TLS_CA", "TLS_CERT", "TLS_KEY"),
)
_AGENT = (
    *("ADVERTISE_ADDRESS", "CONNECTIONS_PER_LINK", "CONNECT_TIMEOUT", "COORDINATOR"),
    *("EGRESS_LIMIT", "NAME", "RENICE", "SITE", "SOCKET", "SOCKET_GROUP"),
    *("SOCKET_USERS", "STEP_DEADLINE", "STRAGGLER_TIMEOUT", "SUM_THREADS"),
)
_COORDINATOR = (
    *("CLUSTER", "CODEC", "CRL_FILE", "EPOCH_STEPS", "LINKS", "LISTEN_PAGE"),
    *("MIN_EXCHANGE_SHARE", "NORM_ALARM", "PAGE_TOKEN_FILE", "POLICY_FILE"),
    *("PRESUME_DEAD_AFTER", "PRICE_PER_GB", "RISK", "SITE_RATES", "STATE_DIR"),
)
OF_DAEMONS = frozenset(
    f"{_PREFIX}{daemon}_{name}"
    for daemon, own in (("AGENT", _AGENT), ("COORDINATOR", _COORDINATOR))
    for name in (*_BOTH, *own)
)
# PACTRAIN_DATA is read by the examples.
_NOT_OURS = re.compile(r"PACTRAIN_(DATA|TEST_\w*)")
# As Kubernetes makes them for services (config/environment.cc).
_OF_KUBERNETES = re.compile(
    r"PACTRAIN(_\w+)?_"
    r"(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_PORT_OF_KUBERNETES = re.compile(r"PACTRAIN(_\w+)?_PORT")
_TYPO = 0.85  # Of difflib's ratio: so near is hardly another word.
_NEAR = 0.6

logger = logging.getLogger("pactrain")


def unknown(environment: Mapping[str, str]) -> dict[str, str]:
    """Names that have no effect, each with the nearest that has, or ""."""
    names = sorted(
        name
        for name, value in environment.items()
        if name.startswith(_PREFIX)
        and name not in KNOWN | OF_DAEMONS
        and not _is_foreign(name, value)
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


def _is_foreign(name: str, value: str) -> bool:
    if _PORT_OF_KUBERNETES.fullmatch(name) and "://" in value:
        return True
    return bool(_OF_KUBERNETES.fullmatch(name) or _NOT_OURS.fullmatch(name))


def _nearest(name: str) -> str:
    """Of those that trainers read, unless another one is meant for certain."""
    for known, cutoff in ((KNOWN | OF_DAEMONS, _TYPO), (KNOWN, _NEAR)):
        # What all have in common says nothing.
        words = sorted(word.removeprefix(_PREFIX) for word in known)
        typed = name.removeprefix(_PREFIX)
        close = difflib.get_close_matches(typed, words, 1, cutoff)
        if close:
            return _PREFIX + close[0]
    return ""
