"""What bench/exchange.py measures on: sites, links and rates, and what must cross a link.

Pure. Sites are numbered from 0; ranks are numbered site by site.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass

from bench.testbed import Link

PAYLOAD_SHARE = 1448 / 1514  # Of what tbf counts: Ethernet, IPv4 and TCP headers are the rest.
LEAST_MBPS, MOST_MBPS = 0.1, 10_000.0  # Of RATE.
MOST_SITES, MOST_TRAINERS = 26, 64
MOST_STEPS = 20  # Of a round, if it says nothing of them.
# What the codec takes for a Gaussian element (`make bench-kernels`: bits7, bits15).
LEVELS_BITS = {7: 2.346, 15: 3.400}


@dataclass(frozen=True)
class Layout:
    """Trainers per site, pairs of sites that are joined, and hosts per site.

    `core`: each site hangs on a place without hosts, whose number is after those of all sites.
    `shares`: of the rate, of each link from its first site to its second, and back; (): all of it.
    """

    sites: tuple[int, ...]
    links: tuple[tuple[int, int], ...]
    hosts: tuple[int, ...]
    core: bool = False
    shares: tuple[tuple[float, float], ...] = ()
    own_mbps: float = 0.0  # The rate of all links, whatever is asked for; 0: what is asked for.

    @property
    def world(self) -> int:
        return sum(self.sites)

    @property
    def places(self) -> int:
        """Sites, and the core."""
        return len(self.sites) + self.core

    @property
    def site_names(self) -> tuple[str, ...]:
        names = string.ascii_lowercase[: len(self.sites)]
        return (*names, "core") if self.core else tuple(names)

    def link_rates(self, asked_mbps: float) -> list[tuple[float, float]]:
        """Of each link, from its first site to its second, and back."""
        rate = self.own_mbps or asked_mbps
        shares = self.shares or ((1.0, 1.0),) * len(self.links)
        return [(there * rate, back * rate) for there, back in shares]

    def slowest(self, asked_mbps: float) -> float:
        return min(min(rates) for rates in self.link_rates(asked_mbps))

    @property
    def tree_crossings(self) -> float:
        """How often one sum crosses the busiest link where sites are added up once.

        On a core the root turns: its link carries the sums of all others then.
        """
        many = len(self.sites)
        return 1 + (many - 2) / many if self.core and many > 2 else 1.0

    @property
    def ranks_per_host(self) -> list[int]:
        """In the order of the testbed's hosts."""
        return [
            ranks // hosts
            for ranks, hosts in zip(self.sites, self.hosts, strict=True)
            for _ in range(hosts)
        ]

    def testbed_sites(self) -> dict[str, int]:
        hosts = (*self.hosts, 0) if self.core else self.hosts
        return dict(zip(self.site_names, hosts, strict=True))

    def testbed_links(self, rate_mbps: float) -> list[Link]:
        names = self.site_names
        return [Link(names[a], names[b], rate_mbps) for a, b in self.links]


def parse_rate(text: str) -> float:
    """ "100mbit" as 10^6 bits per second. ValueError: not a rate, or out of range."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(kbit|mbit|gbit)", text)
    mbps = float(match[1]) * {"kbit": 1e-3, "mbit": 1, "gbit": 1e3}[match[2]] if match else 0
    if not LEAST_MBPS <= mbps <= MOST_MBPS:
        raise ValueError(f"RATE = '{text}', allowed: 100kbit to 10gbit, in kbit, mbit or gbit")
    return mbps


def parse_rtt(text: str) -> float:
    """ "20ms" as milliseconds; "" is 0. ValueError: not a time, or over a second."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)ms", text or "0ms")
    if match is None or float(match[1]) > 1000:
        raise ValueError(f"RTT = '{text[:20]}', allowed: 0ms to 1000ms, as 20ms")
    return float(match[1])


def parse_loss(text: str) -> float:
    """ "0.2%" as a share; "" is 0. ValueError: not a percentage, or over 10 %."""
    match = re.fullmatch(r"([0-9]{1,2}(?:\.[0-9]{1,9})?)%", text or "0%")
    if match is None or float(match[1]) > 10:
        raise ValueError(f"LOSS = '{text[:20]}', allowed: 0% to 10%, as 0.2%")
    return float(match[1]) / 100


def parse_layout(sites: str, links: str, nodes: str) -> Layout:
    """`sites`: "3,2,3"; `nodes`: as many as sites or trainers, or "".

    `links`: "0-1,1-2", or "": each site is joined with the next one.

    ValueError: no tree of all sites, or a number is out of range.
    """
    if re.fullmatch(r"[0-9]{1,3}(,[0-9]{1,3})+", sites) is None:
        raise ValueError(f"SITES = '{sites}', allowed: trainers of two or more sites, as 3,2,3")
    counts = tuple(int(count) for count in sites.split(","))
    if min(counts) < 1 or sum(counts) > MOST_TRAINERS or len(counts) > MOST_SITES:
        raise ValueError(f"SITES = '{sites}', allowed: 2 to {MOST_SITES} sites, "
                         f"1 to {MOST_TRAINERS} trainers")  # fmt: skip
    links = links or ",".join(f"{site}-{site + 1}" for site in range(len(counts) - 1))
    if re.fullmatch(r"[0-9]{1,3}-[0-9]{1,3}(,[0-9]{1,3}-[0-9]{1,3})*", links) is None:
        raise ValueError(f"LINKS = '{links}', allowed: pairs of sites, as 0-1,1-2")
    pairs = tuple((int(a), int(b)) for a, b in (pair.split("-") for pair in links.split(",")))
    if not is_tree(len(counts), pairs):
        raise ValueError(f"LINKS = '{links}', allowed: one tree of sites 0 to {len(counts) - 1}")
    if nodes not in ("", str(len(counts)), str(sum(counts))):
        raise ValueError(f"NODES = '{nodes}', allowed: {len(counts)} (one per site) or "
                         f"{sum(counts)} (one per trainer)")  # fmt: skip
    per_trainer = nodes == str(sum(counts))
    return Layout(counts, pairs, counts if per_trainer else (1,) * len(counts))


def is_tree(sites: int, links: Sequence[tuple[int, int]]) -> bool:
    """Whether the links join all sites without a cycle."""
    if any(not 0 <= site < sites for link in links for site in link):
        return False
    return len(links) == sites - 1 and len(_reached(0, links)) == sites


def _reached(start: int, links: Sequence[tuple[int, int]]) -> set[int]:
    reached = {start}
    for _ in links:
        for a, b in links:
            if a in reached or b in reached:
                reached |= {a, b}
    return reached


def diameter(layout: Layout) -> int:
    """Links between the sites that are farthest from each other."""
    most = 0
    for start in range(len(layout.sites)):
        reached, hops = {start}, 0
        while len(reached) < layout.places:
            reached |= {x for a, b in layout.links if a in reached or b in reached for x in (a, b)}
            hops += 1
        most = max(most, hops)
    return most


def one_way_ms(layout: Layout, rtt_ms: float) -> float:
    """The delay of each link where the farthest sites have that round trip."""
    return rtt_ms / 2 / diameter(layout)


def ring_crossings(layout: Layout) -> int:
    """How often a ring of all ranks, in their order, crosses the busiest link one way.

    Ranks of a site lie side by side, so each site is entered from the one before it.
    """
    return max(
        sum(inside[i - 1] and not inside[i] for i in range(len(inside)))
        for inside in _sides(layout)
    )


def most_behind_a_link(layout: Layout) -> int:
    """Ranks whose data one direction of a link carries where all sites get those of all, each
    once. REQUIRES: no core, which hands nothing on."""
    assert not layout.core, layout
    behind = [
        sum(ranks for ranks, there in zip(layout.sites, inside, strict=True) if there)
        for inside in _sides(layout)
    ]
    return max(max(ranks, layout.world - ranks) for ranks in behind)


def _sides(layout: Layout) -> list[list[bool]]:
    """Of each link, which sites are on its first end's side."""
    sides = []
    for number, (a, _) in enumerate(layout.links):
        rest = [link for other, link in enumerate(layout.links) if other != number]
        reached = _reached(a, rest)
        sides.append([site in reached for site in range(len(layout.sites))])
    return sides


def bound_seconds(link_bytes: float, rate_mbps: float) -> float:
    """What `link_bytes` of payload take on a link that is never idle."""
    return link_bytes * 8 / (PAYLOAD_SHARE * rate_mbps * 1e6)


def all_reduce_bytes(layout: Layout, own_bytes: float) -> float:
    """On the busiest link and direction, by a ring."""
    return ring_crossings(layout) * 2 * (layout.world - 1) / layout.world * own_bytes


def all_gather_bytes(layout: Layout, own_bytes: float) -> float:
    """On the busiest link and direction, by a ring, if every rank has `own_bytes`."""
    return ring_crossings(layout) * (layout.world - 1) * own_bytes


def gradients(elements: int) -> int:
    """Different ones of each rank, used in turn; of a large model one, for memory's sake."""
    return 2 if elements <= 16_000_000 else 1


def model_shapes(elements: int) -> list[tuple[int, ...]]:
    """The weights of ResNet-18, as wide as fits; what is left is one more matrix and vector.

    PowerSGD needs matrices of some layers' sizes; the others do not look at shapes.
    """
    width = 64
    width = max(1, int(width * math.sqrt(elements / sum(map(math.prod, _resnet18(width))))))
    while width > 1 and sum(map(math.prod, _resnet18(width))) > elements:
        width -= 1
    shapes = _resnet18(width)
    left = elements - sum(map(math.prod, shapes))
    if left < 0:
        shapes, left = [], elements
    if (side := math.isqrt(left)) > 0:
        shapes.append((side, left // side))
        left %= side
    if left:
        shapes.append((left,))
    return shapes


def _resnet18(width: int) -> list[tuple[int, ...]]:
    shapes: list[tuple[int, ...]] = [(width, 3, 3, 3)]
    inner = width
    for stage in range(4):
        outer = width << stage
        for block in range(2):
            shapes += [(outer, inner, 3, 3), (outer, outer, 3, 3)]
            if stage > 0 and block == 0:
                shapes.append((outer, inner, 1, 1))
            inner = outer
    return [*shapes, (10, inner)]


def powersgd_factors(shapes: Sequence[tuple[int, ...]], rank: int) -> tuple[int, int, int]:
    """Elements of torch's PowerSGD hook's all-reduces: what it leaves as it is, P and Q."""
    whole = left = right = 0
    for shape in shapes:
        rows, columns = shape[0], math.prod(shape[1:])
        if len(shape) > 1 and (rows + columns) * rank * 2 < rows * columns:
            left, right = left + rows * rank, right + columns * rank
        else:
            whole += rows * columns
    return whole, left, right


def powersgd_bytes(shapes: Sequence[tuple[int, ...]], rank: int) -> int:
    """What one rank puts into torch's PowerSGD hook's all-reduces, in fp32."""
    return 4 * sum(powersgd_factors(shapes, rank))
