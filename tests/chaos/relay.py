"""A relay of TCP connections that can be cut: what stands between an agent and its coordinator."""

from __future__ import annotations

import contextlib
import socket
import threading


class Relay:
    """Listens on `address` and passes on to `target`. Thread-safe."""

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()  # Guarded by _lock, as is:
        self._cut = False
        self._ended = 0  # Connections, by the cut of now.
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """All connections end, and none is made until heal()."""
        with self._lock:
            self._cut = True
            self._ended += len(self._open) // 2
            for end in self._open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def heal(self) -> int:
        """How many connections the cut has ended."""
        with self._lock:
            self._cut = False
            ended, self._ended = self._ended, 0
            return ended

    def close(self) -> None:
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                cut = self._cut
            try:
                far = None if cut else socket.create_connection(self._target, timeout=5)
            except OSError:
                far = None
            if far is None:
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                self._open |= {near, far}
                if self._cut:  # Since we looked.
                    near.shutdown(socket.SHUT_RDWR)
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open -= {source, sink}
