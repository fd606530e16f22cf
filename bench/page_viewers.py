"""Many who look at the coordinator's page at once.

    python -m bench.page_viewers HOST:PORT JOB VIEWERS TOKEN_FILE

Each reads a stream of events over TLS, as a browser does: by turns that of all jobs, of JOB, and
of the links. Prints "watching" when all have got something. Ends with an error if a stream does.
"""

from __future__ import annotations

import argparse
import asyncio
import ssl
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

READY_SECONDS = 60
AT_ONCE = 4  # Come in: the page bounds handshakes of one source.


def views(job: str) -> list[str]:
    return ["view=overview", f"view=job&job={quote(job)}", "view=links"]


# Its CA is the benchmark's own. One for all: making it takes longer than a handshake.
TRUSTING = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
TRUSTING.check_hostname = False
TRUSTING.verify_mode = ssl.CERT_NONE


async def come_in(
    address: str, token: str, query: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A stream that has shown something. ConnectionError: it was refused."""
    host, port = address.rsplit(":", 1)
    while True:
        reader, writer = await asyncio.open_connection(host, int(port), ssl=TRUSTING)
        writer.write(
            f"GET /events?{query} HTTP/1.1\r\nHost: {address}\r\n"
            f"Authorization: Bearer {token}\r\n\r\n".encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " in head.splitlines()[0]:
            await reader.readuntil(b"\ndata: ")
            return reader, writer
        writer.close()
        if b" 503 " not in head.splitlines()[0]:
            raise ConnectionError(f"a viewer was refused: {head.splitlines()[0].decode()}")
        await asyncio.sleep(1)  # Those of before have not been missed yet.


async def view(
    address: str, token: str, query: str, shown: asyncio.Event, door: asyncio.Semaphore
) -> None:
    """ConnectionError: the stream has ended or was refused."""
    async with door:
        reader, writer = await come_in(address, token, query)
    shown.set()
    while await reader.read(65536):
        assert not writer.is_closing()  # Forgotten, it would close the stream.
    raise ConnectionError(f"the stream {query} has ended")


async def watch(address: str, job: str, viewers: int, token: str) -> None:
    shown = [asyncio.Event() for _ in range(viewers)]
    queries = views(job)
    door = asyncio.Semaphore(AT_ONCE)
    streams = [
        asyncio.create_task(view(address, token, queries[number % len(queries)], event, door))
        for number, event in enumerate(shown)
    ]
    everybody = asyncio.ensure_future(asyncio.gather(*streams))
    ready = asyncio.ensure_future(asyncio.gather(*(event.wait() for event in shown)))
    both: set[asyncio.Future[Any]] = {everybody, ready}
    done, _ = await asyncio.wait(both, timeout=READY_SECONDS, return_when="FIRST_COMPLETED")
    if not done:
        raise TimeoutError(f"not all viewers got something within {READY_SECONDS} s")
    if ready in done:
        print("watching", flush=True)
    await everybody


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.page_viewers", description=__doc__)
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument("job")
    parser.add_argument("viewers", type=int)
    parser.add_argument("token", type=Path, metavar="TOKEN_FILE")
    options = parser.parse_args(argv)
    token = options.token.read_text().strip()
    asyncio.run(watch(options.address, options.job, options.viewers, token))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
