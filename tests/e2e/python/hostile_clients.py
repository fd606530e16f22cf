"""A client that nobody asked for: hostile_clients.py KIND SOURCE ADDRESS PORT PKI.

Attacks again and again until it is killed, and prints "round N" after each attack that
was refused as it should be; it ends with a message if one was not. SOURCE: the address
of this machine that it comes from; of the kind "flood" several, with commas between
them. PKI: a folder with ca.pem, the CA of those attacked, and stranger.{pem,key} and
expired.{pem,key}; "flood" needs none.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from patience import PATIENCE_SECONDS

IDLE = 1000
FLOOD_KEEPS = 200
FLOOD_PAUSE_SECONDS = 0.002
SCANNED = [*range(1, 50), 22, 80, 443, 5000, 7000, *range(7060, 7090), 8080, 29500]
OPEN = {7070, 7072}
SCAN_SECONDS = 2.0
# What a client of HTTP/2 sends first, with an empty SETTINGS frame.
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
TLS_ALERT = 0x15


@dataclass(frozen=True)
class Target:
    """Whom to attack, and from where."""

    source: str
    address: str
    port: int


def connect(target: Target) -> socket.socket:
    return socket.create_connection(
        (target.address, target.port), PATIENCE_SECONDS, source_address=(target.source, 0)
    )


def answer(connection: socket.socket) -> bytes:
    """All that comes until the other side closes; TimeoutError if it does not."""
    got = b""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while part := connection.recv(4096):
            got += part
    return got


def by_tls(target: Target, pki: Path, certificate: str | None) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(pki / "ca.pem")
    context.set_alpn_protocols(["h2"])
    if certificate is not None:
        context.load_cert_chain(pki / f"{certificate}.pem", pki / f"{certificate}.key")
    with (
        contextlib.suppress(ConnectionError, ssl.SSLError),
        connect(target) as plain,
        context.wrap_socket(plain) as connection,
    ):
        # In TLS 1.3 a client is done before the server has seen its certificate.
        got = answer(connection)
        assert not got, f"came through, and got {got!r}"


def no_certificate(target: Target, pki: Path) -> None:
    by_tls(target, pki, None)


def other_ca(target: Target, pki: Path) -> None:
    by_tls(target, pki, "stranger")


def expired(target: Target, pki: Path) -> None:
    by_tls(target, pki, "expired")


def plain_http2(target: Target, pki: Path) -> None:
    got = b""
    with contextlib.suppress(ConnectionError), connect(target) as connection:
        connection.sendall(HTTP2)
        got = answer(connection)
    assert not got or got[0] == TLS_ALERT, f"was answered {got!r}"


def scan(target: Target, pki: Path) -> None:
    """Connects to many ports at once and asks those that are open who they are."""
    waiting = {}
    for port in SCANNED:
        probe = socket.socket()
        probe.setblocking(False)
        probe.bind((target.source, 0))
        probe.connect_ex((target.address, port))
        waiting[probe] = port
    found = set()
    end = time.monotonic() + SCAN_SECONDS
    while time.monotonic() < end:
        _, done, _ = select.select([], list(waiting), [], max(0.0, end - time.monotonic()))
        for probe in done:
            found.add(waiting.pop(probe))
            with contextlib.suppress(ConnectionError):
                probe.sendall(b"HELP\r\n\r\n")
            probe.close()
    for probe in waiting:
        probe.close()
    assert found <= OPEN, f"ports {found} answer"


def idle(target: Target, pki: Path) -> None:
    """The handshake limit closes each of them, or a cap at once."""
    connections = [connect(target) for _ in range(IDLE)]
    for connection in connections:
        assert not answer(connection)
        connection.close()


ATTACKS: dict[str, Callable[[Target, Path], None]] = {
    "no-certificate": no_certificate,
    "other-ca": other_ca,
    "expired": expired,
    "plain-http2": plain_http2,
    "scan": scan,
    "idle": idle,
}


def flood(targets: list[Target]) -> None:
    """Idle connections from all of them, always new ones, and few that it ends itself."""
    first: list[socket.socket] = []
    later: deque[socket.socket] = deque(maxlen=FLOOD_KEEPS)
    rounds = 0
    turns = cycle(targets)
    while True:
        for target in islice(turns, FLOOD_KEEPS):
            (first if len(first) < FLOOD_KEEPS else later).append(connect(target))
            time.sleep(FLOOD_PAUSE_SECONDS)
        rounds += 1
        print(f"round {rounds}", flush=True)


def main() -> None:
    kind, source, address, port, pki = sys.argv[1:]
    if kind == "flood":
        flood([Target(each, address, int(port)) for each in source.split(",")])
    number = 0
    while True:
        ATTACKS[kind](Target(source, address, int(port)), Path(pki))
        number += 1
        print(f"round {number}", flush=True)
        time.sleep(0.2)


if __name__ == "__main__":
    main()
