"""Starts one trainer process per rank over the hosts of a testbed, as torchrun would."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from bench.cluster import Cluster, port_on
from bench.processes import Child, Children
from bench.testbed import LoopbackTestbed

SILENT_SECONDS = 120.0  # Trainers that print nothing for so long have failed.


def start_trainers(
    bed: LoopbackTestbed,
    children: Children,
    name: str,
    argv: Sequence[str],
    per_host: Sequence[int],
    cluster: Cluster | None,
) -> Child:
    """Starts `python argv` for every rank, so many on each host; returns rank 0's process."""
    first = bed.hosts[0]
    port = port_on(bed, first.address, 29500)
    started: list[Child] = []
    places = [(node, local) for node, ranks in enumerate(per_host) for local in range(ranks)]
    for rank, (node, local) in enumerate(places):
        host = bed.hosts[node]
        env = {
            "RANK": str(rank),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": str(len(places)),
            "LOCAL_WORLD_SIZE": str(per_host[node]),
            "MASTER_ADDR": first.address,
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": host.interface,
            "OMP_NUM_THREADS": "1",
            "PACTRAIN_JOB_ID": name,
        }
        if cluster is not None:
            env |= cluster.agents[node].trainer_env
        command = bed.command(host, [sys.executable, *argv])
        started.append(children.start(f"{name}-trainer-{rank}", command, env))
    return started[0]


def events(
    first: Child, children: Children, silent_seconds: float = SILENT_SECONDS
) -> Iterator[dict[str, Any]]:
    """What rank 0 prints, until it ends. ProcessError if a trainer fails or is silent."""
    silent_since = time.monotonic()
    while True:
        line = first.line(0.5)
        if line is not None:
            silent_since = time.monotonic()
            yield json.loads(line)
            continue
        children.check()
        if first.process.poll() is not None:
            return
        if time.monotonic() - silent_since > silent_seconds:
            raise first.error(f"was silent for {silent_seconds:.0f} s")


def difference(
    before: list[tuple[int, int]] | None, after: list[tuple[int, int]] | None
) -> list[tuple[int, int]] | None:
    """Bytes per link and direction between two calls of link_bytes()."""
    if before is None or after is None:
        return None
    return [(c - a, d - b) for (a, b), (c, d) in zip(before, after, strict=True)]
