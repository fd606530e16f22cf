"""At which address daemons listen: loopback, unless the job is on several hosts."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping

from .errors import InvalidArgument

LOOPBACK = "127.0.0.1"
_ANY_PORT = 9  # Nothing is sent there.


def any_port(address: str) -> str:
    """host:port there, with any free port."""
    return f"[{address}]:0" if ":" in address else f"{address}:0"


def own_address(environment: Mapping[str, str]) -> str:
    """This host's address for other hosts; empty if nothing here tells.

    PACTRAIN_HOST_ADDRESS, else that of the interface towards MASTER_ADDR. Rank 0's own
    name often leads to loopback, which tells nothing.

    Raises:
      InvalidArgument: PACTRAIN_HOST_ADDRESS is no IP address.
    """
    text = environment.get("PACTRAIN_HOST_ADDRESS")
    if not text:
        master = environment.get("MASTER_ADDR")
        return address_towards(master) if master else ""
    try:
        if not (address := ipaddress.ip_address(text)).is_unspecified:
            return str(address)
    except ValueError:
        pass
    raise InvalidArgument(
        f"PACTRAIN_HOST_ADDRESS is {text!r}; allowed is the IP address at which the "
        "job's other hosts reach this one.\nSet it to that on each host, or unset it."
    )


def address_towards(target: str) -> str:
    """The address of the interface that routes to `target`; empty: loopback or none."""
    try:
        found = socket.getaddrinfo(target, _ANY_PORT, type=socket.SOCK_DGRAM)
    except OSError:
        return ""
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.connect(address)  # Of a datagram socket: looks up the route.
            except OSError:
                continue
            own = str(probe.getsockname()[0])
        if not ipaddress.ip_address(own.partition("%")[0]).is_loopback:
            return own
    return ""
