"""Which ranks of a job share a node: pure, from what each rank says of itself."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .warden import start_ticks

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACES = ("mnt", "net", "pid")


@dataclass(frozen=True)
class Place:
    """Where one rank runs."""

    host: str  # Equal if the ranks see the same processes, files and loopback.
    host_name: str  # For messages.
    node: str  # The launcher's number of the node; empty: it has none.
    pid: int
    start_ticks: int


@dataclass(frozen=True)
class Node:
    """Ranks that share an agent; the first of them starts it."""

    name: str
    ranks: tuple[int, ...]  # Ascending.
    host: str = ""  # As Place has them.
    host_name: str = ""

    @property
    def first(self) -> int:
        return self.ranks[0]


def place_of_this_process(environment: Mapping[str, str]) -> Place:
    """torchrun's nodes are told apart by GROUP_RANK, Slurm's by SLURM_NODEID."""
    name = socket.gethostname()
    boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else name
    namespaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in _NAMESPACES]
    return Place(
        host=" ".join([boot, *namespaces]),
        host_name=name,
        node=environment.get("GROUP_RANK") or environment.get("SLURM_NODEID", ""),
        pid=os.getpid(),
        start_ticks=start_ticks(os.getpid()),
    )


def nodes_of(places: Sequence[Place]) -> list[Node]:
    """The nodes of a job in the order of their first ranks; `places` is by rank."""
    by_node: dict[tuple[str, str], list[int]] = {}
    for rank, place in enumerate(places):
        by_node.setdefault((place.host, place.node), []).append(rank)
    return [
        Node(f"node-{number}", tuple(ranks), host, places[ranks[0]].host_name)
        for number, ((host, _), ranks) in enumerate(by_node.items())
    ]
