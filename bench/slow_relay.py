"""Passes TCP connections on, as fast as it is told for each direction."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import dataclass

BUFFER_BYTES = 64 * 1024  # Small: what kernels hold back hides a slow link.
PIECE_BYTES = 16 * 1024


@dataclass
class Rates:
    """Bytes per second; None: no limit."""

    to_target: float | None = None
    from_target: float | None = None


class SlowRelay:
    """Listens on loopback and passes on to `target`, "address:port". Thread-safe."""

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._lock = threading.Lock()
        self._rates = Rates()  # Guarded by _lock, as is:
        self._free_at = {"to_target": 0.0, "from_target": 0.0}
        self._listener = socket.socket()
        _shrink(self._listener)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def limit(self, rates: Rates) -> None:
        with self._lock:
            self._rates = rates

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.socket()
            _shrink(far)
            try:
                far.connect(self._target)
            except OSError:
                far.close()
                near.close()
                continue
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for source, sink, way in ((near, far, "to_target"), (far, near, "from_target")):
                pump = threading.Thread(target=self._pump, args=(source, sink, way), daemon=True)
                pump.start()

    def _pump(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE_BYTES):
                time.sleep(self.pause(way, len(data), time.monotonic()))
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def pause(self, way: str, size: int, now: float) -> float:
        """How long `size` more bytes wait that way, behind those of all connections."""
        with self._lock:
            rate = getattr(self._rates, way)
            if rate is None:
                return 0
            begin = max(now, self._free_at[way])
            self._free_at[way] = begin + size / rate
            return float(self._free_at[way] - now)


def _shrink(end: socket.socket) -> None:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
