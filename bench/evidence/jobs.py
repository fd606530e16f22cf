"""Real trainers and agents on a shaped layout: what report-many and report-runs have in common."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.cluster import certificates, start_cluster
from bench.exchange_layout import Layout
from bench.launch import events, start_trainers
from bench.processes import Children
from bench.testbed import NamespaceTestbed, shape

SILENT_SECONDS = 600.0  # So many processes import torch on few cores.


@contextlib.contextmanager
def training(
    layout: Layout, rate_mbps: float, name: str, argv: Sequence[str], **shaping: Any
) -> Iterator[tuple[NamespaceTestbed, Iterator[Mapping[str, Any]]]]:
    """Starts `python argv` for every rank, an agent for each host and a coordinator, over TLS.

    Gives the testbed and what rank 0 prints. `shaping`: more arguments of testbed.shape().
    ProcessError, TestbedError: something failed. Nothing is left behind.
    """
    links = layout.testbed_links(layout.own_mbps or rate_mbps)
    with (
        tempfile.TemporaryDirectory(prefix=f"pactrain-{name}-") as folder,
        NamespaceTestbed(layout.testbed_sites(), links) as bed,
        Children(Path(folder)) as children,
    ):
        for number, rates in enumerate(layout.link_rates(rate_mbps)):
            shape(bed.core, number, *rates, **shaping)
        pki = Path(folder) / "pki"
        certificates(bed, pki)
        cluster = start_cluster(bed, children, Path(folder), bed.hosts[0], risk="exact", pki=pki)
        first = start_trainers(bed, children, name, argv, layout.ranks_per_host, cluster)
        yield bed, events(first, children, SILENT_SECONDS)
        children.check()
