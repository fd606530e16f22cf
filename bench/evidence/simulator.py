"""One step of the exchange, simulated: the way of every frame, over links shared max-min fairly.

As in ARCHITECTURE.md, "A step": chunk c of C belongs to member floor(c k / C) of each site's k
agents; members send it their sums, owners send what they fold up the tree, the root's encoding
goes down and to all members unchanged; two sites swap. Frames are folded and forwarded one by
one, the oldest bucket and chunk first. Encoding and decoding take an agent's core time, one
frame after the other. Buckets come as backward releases them. Not simulated: TCP, votes (a
round trip), what trainers need to compact and expand. Pure.

For comparison a ring of all ranks, as DDP's all-reduce: rounds that wait for one another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from bench.evidence import plan
from bench.evidence.flows import Age, Ends, Flows, Route, fair_rates
from bench.exchange_layout import PAYLOAD_SHARE, Layout

CHUNK, EXACT_FRAME, LEVELS_FRAME = 65_536, 4096, 16_384  # Elements (protocol/limits.h).
HEADER_BYTES = 64  # Of a frame (protocol/frame.h).
RECORD_BYTES, RECORD_OVERHEAD = 16_384, 22  # Of TLS 1.3: 5 + 1 + 16.
EXACT_BITS, BF16_BITS = 32.0, 16.0
SITE_MBPS = 10_000.0  # Of each agent's own network within its site.


def capacity(mbps: float) -> float:
    """Bytes of payload per second."""
    return PAYLOAD_SHARE * mbps * 1e6 / 8


def on_the_wire(payload: float, frames: int) -> float:
    """With frames' headers and TLS."""
    plain = payload + frames * HEADER_BYTES
    return plain + RECORD_OVERHEAD * max(frames, math.ceil(plain / RECORD_BYTES))


@dataclass(frozen=True)
class Bucket:
    """Kept elements, and when backward has them, in seconds of the step."""

    elements: int
    released: float = 0.0


@dataclass(frozen=True)
class Coding:
    """What goes between sites: `bits` of an element.

    `encode`, `decode`: bytes of fp32 per second of an agent's core; 0: costs nothing.
    `merged`: so many frames travel as one, for the simulation's own speed; the tail of a step
    is that much longer.
    """

    bits: float = EXACT_BITS
    encode: float = 0.0
    decode: float = 0.0
    merged: int = 1
    tolerance: float = 0.0  # Seconds: flows.Flows.

    @property
    def frame(self) -> int:
        return EXACT_FRAME if self.bits >= BF16_BITS else LEVELS_FRAME


@dataclass
class Pipes:
    """Capacities and ways of a layout with so many agents in each site."""

    layout: Layout
    rate_mbps: float
    agents: Sequence[int]  # Of each site.
    site_mbps: float = SITE_MBPS
    capacities: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        rates = [rate for both in self.layout.link_rates(self.rate_mbps) for rate in both]
        self._links = len(rates)
        self.site_of = [site for site, count in enumerate(self.agents) for _ in range(count)]
        rates += [self.site_mbps] * (2 * len(self.site_of))
        self.capacities = [capacity(rate) for rate in rates]
        self._ways: dict[tuple[int, int], list[int]] = {}

    def members(self, site: int) -> range:
        first = sum(self.agents[:site])
        return range(first, first + self.agents[site])

    def route(self, ends: Ends) -> Route:
        """The sender's network, the links between both sites, the receiver's network."""
        sender, receiver = ends
        if sender == receiver:
            return ()
        sites = self.site_of[sender], self.site_of[receiver]
        if sites not in self._ways:
            self._ways[sites] = plan.way(self.layout, *sites)
        return (self._links + 2 * sender, *self._ways[sites], self._links + 2 * receiver + 1)


@dataclass(frozen=True)
class Simulated:
    seconds: float  # Until the last agent has the last element.
    link_bytes: list[float]  # Of each link there and back.


def simulate(
    pipes: Pipes, buckets: Sequence[Bucket], coding: Coding = Coding()
) -> Simulated:  # fmt: skip
    """ValueError: nothing is to be exchanged, or only one site is there."""
    if len(pipes.agents) < 2 or min(pipes.agents) < 1:
        raise ValueError(f"agents = {list(pipes.agents)}, allowed: two or more sites of 1 or more")
    if not buckets or min(bucket.elements for bucket in buckets) < 1:
        raise ValueError(f"{len(buckets)} buckets, allowed: one or more, each of 1 element or more")
    step = _Step(pipes, coding)
    for number, bucket in enumerate(buckets):
        step.plan_bucket(number, bucket)
    step.flows.run()
    if step.waiting:
        raise AssertionError(f"{step.waiting} results never came")
    return Simulated(step.last, step.flows.sent[: 2 * len(pipes.layout.links)])


class _Step:
    """Frames under way. Each _Piece is one frame, or a few merged ones, at all sites."""

    def __init__(self, pipes: Pipes, coding: Coding) -> None:
        self.pipes, self.coding = pipes, coding
        self.flows = Flows(pipes.capacities, coding.tolerance)
        self.trees = [] if plan.swaps(pipes.layout) else plan.trees(pipes.layout)
        self.busy_until = [0.0] * len(pipes.site_of)  # Of each agent's core.
        self.waiting = 0  # Results that agents have not got.
        self.last = 0.0
        self._routes: dict[Ends, Route] = {}

    def plan_bucket(self, number: int, bucket: Bucket) -> None:
        sharers = {max(1, len(self.trees)), *self.pipes.agents}
        size = plan.chunk_size(bucket.elements, self.coding.frame, sharers, CHUNK)
        chunks = math.ceil(bucket.elements / size)
        pieces = []
        for chunk in range(chunks):
            owners = [
                self.pipes.members(site)[chunk * count // chunks]
                for site, count in enumerate(self.pipes.agents)
            ]
            parents = self.trees[chunk % len(self.trees)] if self.trees else None
            left = min(size, bucket.elements - chunk * size)
            while left > 0:
                elements = min(left, self.coding.frame * self.coding.merged)
                pieces.append(_Piece(self, (number, chunk), owners, parents, elements))
                left -= elements
        self.waiting += len(pieces) * len(self.pipes.site_of)

        def release() -> None:
            for piece in pieces:
                piece.start()

        self.flows.at(bucket.released, release)

    def send(self, sender: int, receiver: int, age: Age, size: float,
             arrived: Callable[[], None]) -> None:  # fmt: skip
        ends = sender, receiver
        if ends not in self._routes:
            self._routes[ends] = self.pipes.route(ends)
        self.flows.send(ends, self._routes[ends], age, size, arrived)

    def work(self, agent: int, fp32_bytes: float, rate: float, do: Callable[[], None]) -> None:
        """On the agent's core, after what it has to do before."""
        if rate <= 0:
            do()
            return
        self.busy_until[agent] = max(self.busy_until[agent], self.flows.now) + fp32_bytes / rate
        self.flows.at(self.busy_until[agent], do)

    def has_result(self) -> None:
        self.waiting -= 1
        self.last = self.flows.now


class _Piece:
    def __init__(self, step: _Step, age: Age, owners: Sequence[int],
                 parents: plan.Parents | None, elements: int) -> None:  # fmt: skip
        self.step, self.age, self.owners, self.parents = step, age, owners, parents
        coding = step.coding
        self.plain = 4.0 * elements
        self.exact_bytes = on_the_wire(self.plain, math.ceil(elements / EXACT_FRAME))
        frames = math.ceil(elements / coding.frame)
        self.coded_bytes = on_the_wire(elements * coding.bits / 8, frames)
        self.children: list[list[int]] = [[] for _ in owners]
        for site, parent in enumerate(parents or ()):
            if parent != site:
                self.children[parent].append(site)
        # Sums that an owner still waits for: of its site's others, and of the sites below.
        self.missing = [step.pipes.agents[site] - 1 + len(self.children[site])
                        for site in range(len(owners))]  # fmt: skip

    def start(self) -> None:
        for site, owner in enumerate(self.owners):
            for member in self.step.pipes.members(site):
                if member != owner:
                    self.step.send(
                        member, owner, self.age, self.exact_bytes, partial(self._got, site)
                    )
            if self.missing[site] == 0:
                self._fold(site)

    def _got(self, site: int) -> None:
        self.missing[site] -= 1
        if self.missing[site] == 0:
            self._fold(site)

    def _fold(self, site: int) -> None:
        self.step.work(self.owners[site], self.plain, self.step.coding.encode,
                       lambda: self._encoded(site))  # fmt: skip

    def _encoded(self, site: int) -> None:
        if self.parents is None:
            other = 1 - site
            self.step.send(self.owners[site], self.owners[other], self.age, self.coded_bytes,
                           lambda: self._swapped(other))  # fmt: skip
        elif self.parents[site] == site:
            self._down(site)
        else:
            above = self.parents[site]
            owner = self.owners[above]
            got = partial(self._decode, owner, partial(self._got, above))
            self.step.send(self.owners[site], owner, self.age, self.coded_bytes, got)

    def _swapped(self, site: int) -> None:
        """Both sites' sums are decoded; members get their exact sum."""
        owner = self.owners[site]

        def added() -> None:
            self.step.has_result()
            self._fan_out(site, self.exact_bytes, decoded=True)

        self._decode(owner, lambda: self._decode(owner, added))

    def _down(self, site: int) -> None:
        """The total is here: on to the sites below and to this site's members, unchanged."""
        for child in self.children[site]:
            self.step.send(self.owners[site], self.owners[child], self.age, self.coded_bytes,
                           partial(self._down, child))  # fmt: skip
        self._fan_out(site, self.coded_bytes, decoded=False)
        self._decode(self.owners[site], self.step.has_result)

    def _fan_out(self, site: int, size: float, decoded: bool) -> None:
        there = self.step.has_result
        for member in self.step.pipes.members(site):
            if member != self.owners[site]:
                got = there if decoded else partial(self._decode, member, there)
                self.step.send(self.owners[site], member, self.age, size, got)

    def _decode(self, agent: int, do: Callable[[], None]) -> None:
        self.step.work(agent, self.plain, self.step.coding.decode, do)


def ring_seconds(pipes: Pipes, ranks_of_agent: Sequence[int], own_bytes: float) -> float:
    """An all-reduce of `own_bytes` of each rank: 2 (W - 1) rounds, each as long as its slowest."""
    agent_of = [agent for agent, ranks in enumerate(ranks_of_agent) for _ in range(ranks)]
    world = len(agent_of)
    neighbours = [(agent_of[rank], agent_of[(rank + 1) % world]) for rank in range(world)]
    routes = {ends: pipes.route(ends) for ends in neighbours if ends[0] != ends[1]}
    slowest = min(fair_rates(routes, pipes.capacities).values())
    return 2 * (world - 1) * own_bytes / world / slowest
