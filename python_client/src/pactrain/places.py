"""Which ranks of a job share a node: pure, from what each rank says of itself."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import RefusedError
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
    """The nodes of a job in the order of their first ranks; `places` is by rank.

    Raises:
      RefusedError: the ranks are on several hosts.
    """
    first = places[0]
    for rank, place in enumerate(places):
        if place.host != first.host:
            raise RefusedError(
                f"Ranks 0 and {rank} run on different hosts or in different containers "
                f"({first.host_name}, {place.host_name}), and the daemons that "
                "attach() starts serve one host only.\n"
                "Start agents and a coordinator by hand (docs/operations.md) and set "
                "PACTRAIN_AGENT on all ranks."
            )
    by_node: dict[str, list[int]] = {}
    for rank, place in enumerate(places):
        by_node.setdefault(place.node, []).append(rank)
    return [
        Node(f"node-{number}", tuple(ranks))
        for number, ranks in enumerate(by_node.values())
    ]
