"""The topologies of the evidence: small YAML files that the step-time bench and formulas share.

Fields of a file:

    title: two sites (4 + 4), ...
    sites: [4, 4]           trainers of each
    links: [{between: [0, 1], slow_direction: 0.2}]   from the second site to the first: the whole
                            rate; from the first to the second so much of it (default: 1)
    core: true              instead of links: each site has one to a place without agents
    rate_mbps: 10000        of all links; default: what is asked for
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.exchange_layout import Layout, is_tree, ring_crossings

FOLDER = Path(__file__).resolve().parent / "evidence" / "topologies"
FIELDS = ("title", "sites", "core", "links", "rate_mbps")


@dataclass(frozen=True)
class Topology:
    name: str
    title: str
    layout: Layout

    def rate(self, asked_mbps: float) -> float:
        """Of the slowest link and direction."""
        return self.layout.slowest(asked_mbps)

    @property
    def ring_crossings(self) -> int:
        """Of the busiest link and direction, by a ring of all ranks in order."""
        return ring_crossings(self.layout)


def star_links(sites: int) -> tuple[tuple[int, int], ...]:
    """From each to the core."""
    return tuple((site, sites) for site in range(sites))


def read_topology(path: Path) -> Topology:
    """ValueError: a field is missing or out of range; names it."""
    raw: Mapping[str, Any] = yaml.safe_load(path.read_text())
    unknown = set(raw) - set(FIELDS)
    if unknown:
        raise ValueError(f"{path.name}: field '{sorted(unknown)[0]}', allowed: {', '.join(FIELDS)}")
    sites = tuple(raw.get("sites") or ())
    if not 2 <= len(sites) <= 26 or not all(isinstance(n, int) and n > 0 for n in sites):
        raise ValueError(f"{path.name}: sites = {list(sites)}, allowed: 2 to 26 numbers above 0")
    given = raw.get("links", ())
    links = tuple((int(a), int(b)) for a, b in (link["between"] for link in given))
    core = bool(raw.get("core", False))
    if core == bool(links):
        raise ValueError(f"{path.name}: core = {core} and {len(links)} links, allowed: one of both")
    if links and not is_tree(len(sites), links):
        raise ValueError(f"{path.name}: links = {list(links)}, allowed: one tree of all sites")
    shares = tuple((float(link.get("slow_direction", 1.0)), 1.0) for link in given)
    if not all(0 < there <= 1 for there, _ in shares):
        raise ValueError(f"{path.name}: slow_direction of {shares}, allowed: above 0, at most 1")
    return Topology(path.stem, raw["title"],
                    Layout(sites, star_links(len(sites)) if core else links, (1,) * len(sites),
                           core, shares, float(raw.get("rate_mbps", 0))))  # fmt: skip


def topologies() -> dict[str, Topology]:
    return {path.stem: read_topology(path) for path in sorted(FOLDER.glob("*.yaml"))}
