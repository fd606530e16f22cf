"""Who sums for whom between sites: the coordinator's plan (coordinator/core/planner), and how
agents cut buckets by it (agent/exchange/schedule). Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

from bench.exchange_layout import Layout

Parents = tuple[int, ...]  # The site above each; of the root itself.


def swaps(layout: Layout) -> bool:
    return len(layout.sites) == 2


def trees(layout: Layout) -> list[Parents]:
    """That chunks take in turn: one in the links' middle, or on a core a star for each site."""
    sites = len(layout.sites)
    if layout.core:
        return [(root,) * sites for root in range(sites)]
    distances = [_walk(layout, site) for site in range(sites)]
    root = min(
        range(sites),
        key=lambda site: (
            max(hops for hops, _ in distances[site].values()),
            sum(hops for hops, _ in distances[site].values()),
            site,
        ),
    )
    return [tuple(distances[root][site][1] for site in range(sites))]


def chunk_size(elements: int, frame: int, sharers: Iterable[int], most: int) -> int:
    """Elements of a chunk: whole frames, at most `most`, as many as share out evenly over each of
    `sharers` (how many trees, and how many members of each site)."""
    frames = math.ceil(elements / frame)

    def is_even(size: int, among: int) -> bool:
        if among == 1:
            return True
        of_one = math.ceil(math.ceil(frames / size) / among) * size
        return 64 * of_one <= 65 * math.ceil(frames / among)

    among = set(sharers)
    return frame * next(size for size in range(most // frame, 0, -1)
                        if size == 1 or all(is_even(size, count) for count in among))  # fmt: skip


def way(layout: Layout, start: int, end: int) -> list[int]:
    """Numbers of the directions that data takes: 2 n of link n there, 2 n + 1 back."""
    above = _walk(layout, start)
    found = []
    while end != start:
        before = above[end][1]
        for number, link in enumerate(layout.links):
            if link in ((before, end), (end, before)):
                found.append(2 * number + (link == (end, before)))
        end = before
    return found[::-1]


def _walk(layout: Layout, start: int) -> dict[int, tuple[int, int]]:
    """Of each place its links from `start`, and the place before it on the way."""
    found = {start: (0, start)}
    order = [start]
    for place in order:  # Grows meanwhile.
        for link in layout.links:
            if place in link:
                other = link[0] + link[1] - place
                if other not in found:
                    found[other] = (found[place][0] + 1, place)
                    order.append(other)
    return found


def coded_sums(layout: Layout) -> float:
    """How many whole sums a site at most encodes and decodes in one step in levels."""
    sites = len(layout.sites)
    if swaps(layout):
        return 3.0  # Its own, and both.
    if layout.core:
        # Its own or, as a root, the total; of (sites - 1) each as a root, else the total.
        return 1 + 2 * (sites - 1) / sites
    (parents,) = trees(layout)
    children = [sum(p == site != child for child, p in enumerate(parents)) for site in range(sites)]
    below_root = [parents[site] != site for site in range(sites)]
    return float(max(n + 1 + below for n, below in zip(children, below_root, strict=True)))
