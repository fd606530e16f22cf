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

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.exchange_layout import (
    LEAST_MBPS,
    MOST_MBPS,
    MOST_SITES,
    MOST_TRAINERS,
    Layout,
    is_tree,
    ring_crossings,
)

FOLDER = Path(__file__).resolve().parent / "evidence" / "topologies"
FIELDS = ("title", "sites", "core", "links", "rate_mbps")
LEAST_SHARE = 0.01  # Of slow_direction.


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


def _number(name: str, value: Any, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"{name} = {str(value)[:40]}, allowed: {least:g} to {most:g}")
    return float(value)


def _whole(name: str, value: Any, least: int, most: int) -> int:
    if not isinstance(value, int):
        raise ValueError(f"{name} = {str(value)[:40]}, allowed: a whole number")
    return int(_number(name, value, least, most))


def _fields(name: str, value: Any, allowed: Sequence[str], needed: Sequence[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} = {str(value)[:40]}, allowed: fields {', '.join(allowed)}")
    for field in value:
        if field not in allowed:
            raise ValueError(f"{name} has field '{str(field)[:40]}', allowed: {', '.join(allowed)}")
    for field in needed:
        if field not in value:
            raise ValueError(f"{name} has no field '{field}', which it needs")
    return value


def read_topology(path: Path) -> Topology:
    """ValueError: the file is no YAML, or a field is missing, unknown or out of range; names it."""
    try:
        return _parse(path.stem, yaml.safe_load(path.read_text()))
    except yaml.YAMLError as error:
        raise ValueError(f"{path.name} is no YAML: {error}") from error
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error


def _parse(name: str, content: Any) -> Topology:
    raw = _fields("the file", content, FIELDS, ("title", "sites"))
    sites = raw["sites"]
    if not isinstance(sites, list) or not 2 <= len(sites) <= MOST_SITES:
        raise ValueError(f"sites = {str(sites)[:40]}, allowed: a list of 2 to {MOST_SITES}")
    ranks = tuple(_whole("one of sites", n, 1, MOST_TRAINERS) for n in sites)
    if sum(ranks) > MOST_TRAINERS:
        raise ValueError(f"sites = {str(sites)[:40]}, allowed: {MOST_TRAINERS} trainers in all")
    core = raw.get("core", False)
    if not isinstance(core, bool):
        raise ValueError(f"core = {str(core)[:40]}, allowed: true, false")
    links, shares = [], []
    listed = raw.get("links") or []
    if not isinstance(listed, list):
        raise ValueError(f"links = {str(listed)[:40]}, allowed: a list of links")
    for number, link in enumerate(listed):
        own = f"link {number}"
        _fields(own, link, ("between", "slow_direction"), ("between",))
        ends = link["between"]
        if not isinstance(ends, list) or len(ends) != 2:
            raise ValueError(f"{own}: between = {str(ends)[:40]}, allowed: two sites")
        a, b = (_whole(f"{own}: between", end, 0, len(sites) - 1) for end in ends)
        links.append((a, b))
        share = _number(f"{own}: slow_direction", link.get("slow_direction", 1.0), LEAST_SHARE, 1)
        shares.append((share, 1.0))
    if core == bool(links):
        raise ValueError(f"core = {core} and {len(links)} links, allowed: one of both")
    if links and not is_tree(len(sites), links):
        raise ValueError(f"links = {links}, allowed: one tree of all sites")
    rate = raw.get("rate_mbps")
    own_mbps = 0.0 if rate is None else _number("rate_mbps", rate, LEAST_MBPS, MOST_MBPS)
    return Topology(name, str(raw["title"]),
                    Layout(ranks, star_links(len(sites)) if core else tuple(links),
                           (1,) * len(sites), core, tuple(shares), own_mbps))  # fmt: skip


def topologies() -> dict[str, Topology]:
    return {path.stem: read_topology(path) for path in sorted(FOLDER.glob("*.yaml"))}
