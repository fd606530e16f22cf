"""Lets a browser on this machine read what is served inside a network namespace.

    python -m bench.page_door NAMESPACE HOST:PORT

A socket belongs to the namespace that it was made in: this one listens outside, goes inside, and
carries bytes between the two. Prints "door HOST:PORT".
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import sys
from pathlib import Path

CLONE_NEWNET = 0x40000000
MAX_CONNECTIONS = 32
NAMESPACES = Path("/run/netns")


def go_inside(namespace: str) -> None:
    """OSError: there is no such namespace, or we are not root."""
    libc = ctypes.CDLL(None, use_errno=True)
    with (NAMESPACES / namespace).open("rb") as inside:
        if libc.setns(inside.fileno(), CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"namespace {namespace}: {os.strerror(number)}")


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # One end has gone; so goes the other.
    finally:
        writer.close()


async def serve(door: socket.socket, host: str, port: int) -> None:
    places = asyncio.Semaphore(MAX_CONNECTIONS)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with places:
            try:
                inner_reader, inner_writer = await asyncio.open_connection(host, port)
            except OSError:
                writer.close()
                return
            await asyncio.gather(carry(reader, inner_writer), carry(inner_reader, writer))

    server = await asyncio.start_server(answer, sock=door)
    await server.serve_forever()


def main(namespace: str, address: str) -> None:
    host, port = address.rsplit(":", 1)
    door = socket.create_server(("127.0.0.1", 0))
    go_inside(namespace)
    print(f"door 127.0.0.1:{door.getsockname()[1]}", flush=True)
    asyncio.run(serve(door, host, int(port)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
