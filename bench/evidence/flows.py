"""Flows that share links fairly: max-min rates, and transfers that take their time by them.

A pipe is one direction of a link. A connection goes through some pipes and sends what is
queued on it one transfer after the other, the smallest `age` first; connections share pipes
max-min fairly: no rate can grow without a smaller or equal one's falling. Nothing of TCP is
in here: no slow start, no loss, no round trip. Pure; time is simulated.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Route = tuple[int, ...]  # Numbers of pipes.
Ends = tuple[int, int]  # Of a connection: who sends, who receives.
Age = tuple[int, ...]
SAME = 1e-12  # Of the time: what rounding may part.
MOST_KNOWN = 4096  # Sets of busy connections whose rates are remembered.


def fair_rates(routes: Mapping[Ends, Route], capacity: Sequence[float]) -> dict[Ends, float]:
    """Bytes per second of each connection, by filling pipes up together.

    `capacity`: bytes per second of each pipe. REQUIRES: each route has a pipe.
    """
    through: dict[int, list[Ends]] = {}
    for ends, route in routes.items():
        for pipe in route:
            through.setdefault(pipe, []).append(ends)
    left = {pipe: capacity[pipe] for pipe in through}
    waiting = {pipe: len(users) for pipe, users in through.items()}
    rates: dict[Ends, float] = {}
    while waiting:
        share = min(left[pipe] / count for pipe, count in waiting.items())
        full = [p for p, count in waiting.items() if left[p] / count <= share * (1 + 1e-9)]
        for pipe in full:
            for ends in through[pipe]:
                if ends in rates:
                    continue
                rates[ends] = share
                for other in routes[ends]:
                    left[other] = max(0.0, left[other] - share)
                    waiting[other] -= 1
        waiting = {pipe: count for pipe, count in waiting.items() if count > 0}
    return rates


@dataclass
class _Connection:
    ends: Ends
    route: Route
    queue: list[tuple[Age, int, float, Callable[[], None]]] = field(default_factory=list)
    left: float = 0.0  # Bytes of the transfer under way, at `since`.
    since: float = 0.0
    rate: float = 0.0
    done_at: float = math.inf
    owed: float = 0.0  # Bytes of what counted as done a little early.
    arrived: Callable[[], None] | None = None  # None: it is idle.

    def take(self, now: float) -> float:
        """The size of what is under way now."""
        _, _, size, self.arrived = heapq.heappop(self.queue)
        self.left, self.owed, self.since = size + self.owed, 0.0, now
        return size

    def set_rate(self, rate: float, now: float) -> None:
        self.left = max(0.0, self.left - self.rate * (now - self.since))
        self.since, self.rate = now, rate

    def expect(self) -> None:
        self.done_at = self.since + self.left / self.rate


class Flows:
    """Connections with their queues, and a clock that runs from event to event."""

    def __init__(self, capacity: Sequence[float], tolerance: float = 0.0) -> None:
        """`tolerance`: what ends within so many seconds ends at once, for speed; what is left of
        it goes with the connection's next transfer, so that no pipe carries more than it can.

        ValueError: a pipe carries nothing, or without limit.
        """
        if not all(0 < rate < math.inf for rate in capacity):
            raise ValueError(f"capacity = {list(capacity)}, allowed: more than 0 bytes a second")
        self.now = 0.0
        self.sent = [0.0] * len(capacity)  # Bytes, by pipe.
        self._capacity, self._tolerance = capacity, tolerance
        self._connections: dict[Ends, _Connection] = {}
        self._active: dict[Ends, _Connection] = {}
        self._known: dict[frozenset[Ends], dict[Ends, float]] = {}
        self._changed = False
        self._due: list[tuple[float, int, _Connection]] = []  # Some of them overtaken by events.
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0  # Ties go by order.

    def send(self, ends: Ends, route: Route, age: Age, size: float,
             arrived: Callable[[], None]) -> None:  # fmt: skip
        """Queues `size` bytes; `arrived` is called when the last one is there.

        ValueError: `route` has no pipes.
        """
        if not route:
            raise ValueError(f"route of {ends} is empty, allowed: one pipe or more")
        connection = self._connections.setdefault(ends, _Connection(ends, route))
        heapq.heappush(connection.queue, (age, self._number(), size, arrived))
        if connection.arrived is None:
            self._next(connection)

    def at(self, time: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (time, self._number(), do))

    def run(self) -> float:
        """Until nothing is left to do; the time then."""
        while self._active or self._timers:
            if self._changed:
                self._share_out()
            while self._due and self._due[0][0] != self._due[0][2].done_at:
                heapq.heappop(self._due)
            until = min(queue[0][0] for queue in (self._due, self._timers) if queue)
            self._advance(until)
        return self.now

    def _number(self) -> int:
        self._count += 1
        return self._count

    def _next(self, connection: _Connection) -> None:
        size = connection.take(self.now)
        for pipe in connection.route:
            self.sent[pipe] += size
        if connection.ends in self._active:
            self._expect(connection)
        else:
            connection.rate, connection.done_at = 0.0, math.inf
            self._active[connection.ends] = connection
            self._changed = True

    def _expect(self, connection: _Connection) -> None:
        connection.expect()
        heapq.heappush(self._due, (connection.done_at, self._number(), connection))

    def _advance(self, until: float) -> None:
        self.now = until
        done: list[_Connection] = []
        while self._due and self._due[0][0] <= until * (1 + SAME) + self._tolerance:
            at, _, connection = heapq.heappop(self._due)
            if at == connection.done_at:
                connection.owed = max(0.0, at - until) * connection.rate
                connection.done_at = math.inf
                done.append(connection)
        calls = []
        for connection in done:
            assert connection.arrived is not None
            calls.append(connection.arrived)
            connection.arrived = None
            if connection.queue:
                self._next(connection)
        for call in calls:
            call()
        while self._timers and self._timers[0][0] <= self.now:
            heapq.heappop(self._timers)[2]()
        for connection in done:
            if connection.arrived is None and connection.ends in self._active:
                del self._active[connection.ends]
                self._changed = True

    def _share_out(self) -> None:
        """Pipelines have few sets of busy connections, again and again."""
        self._changed = False
        busy = frozenset(self._active)
        if busy not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            routes = {ends: connection.route for ends, connection in self._active.items()}
            self._known[busy] = fair_rates(routes, self._capacity)
        rates = self._known[busy]
        for ends, connection in self._active.items():
            if connection.rate != rates[ends]:
                connection.set_rate(rates[ends], self.now)
                self._expect(connection)
