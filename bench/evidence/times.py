"""Seconds per step by formula: bytes on the busiest link, the accelerator's compute, and each
method's own compression. Pure.

A step is max(compute, forward + communication), forward being a third of the compute: the
exchange goes on while backward does, in all rows that have one in each step. What workers do after
own steps waits for all of them. Compression is charged where it would
run: peers' at the accelerator's memory bandwidth, by the bytes that an element's passes touch;
PacTrain's at an agent's core, as `make bench-kernels` measured it, while the link is busy, and what
gathers and scatters kept elements at the accelerator.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.evidence.methods import Dgc
from bench.evidence.plan import coded_sums
from bench.evidence.shapes import Network
from bench.exchange_layout import (
    LEVELS_BITS,
    bound_seconds,
    most_behind_a_link,
    powersgd_bytes,
)
from bench.topologies import Topology

RATES_MBPS = (100.0, 500.0, 1000.0)
FORWARD_SHARE = 1 / 3
ACCELERATOR_BYTES = 0.7 * 696e9  # Per second: A40, of which 70 % are reached.
PACKED_BITS = {3: 1.6, 7: 32 / 11, 15: 4.0}  # And 16 bits of scale for 256 elements.
PACKED_ABOVE_MBPS = 400.0  # Agents pack there: less work, more bytes.
SCALE_BITS = 16 / 256
LEVELS3_BITS = 1.384  # `make bench-kernels`: bits3.


@dataclass(frozen=True)
class Cost:
    """`how`: ring, gather, gather by sites, tree, or server (a fixed number of bytes per element of
    a rank).

    `bits` of an element that is sent, of which there are `keep`; `touched` bytes per element
    that compressing and decompressing move at the accelerator.
    """

    how: str
    bits: float = 32.0
    keep: float = 1.0
    touched: float = 0.0
    powersgd: int = 0
    period: int = 1
    levels: int = 0
    warms_up: bool = False  # As DGC does: `keep` is what it sends after that.
    highest: int = 0  # Of what a worker sends, its lowest being 0; 0: sums need no more bits.

    def element_bits(self, rate_mbps: float, world: int = 1) -> float:
        """`world`: how many workers are summed, which may need wider integers."""
        if not self.levels:
            bits = self.bits
            while self.highest * world >= 2**bits:
                bits *= 2
            return bits
        if rate_mbps > PACKED_ABOVE_MBPS:
            return PACKED_BITS[self.levels] + SCALE_BITS
        return LEVELS_BITS.get(self.levels, LEVELS3_BITS)


# `touched`: halves are read and written twice; top-k and DGC need several passes to select
# (radix select), and read and write what is left; PowerSGD multiplies twice and back. A mask
# reads all and writes what is kept, and back.
COSTS: dict[str, Cost] = {
    "ddp": Cost("ring"),
    "fp16": Cost("ring", 16, touched=12),
    "hier_fp32": Cost("tree"),
    "hier_bf16": Cost("tree", 16, touched=12),
    "topk0.1": Cost("gather", 64, 0.1, touched=32),
    "topk0.1ef": Cost("gather", 64, 0.1, touched=44),
    "topk0.01": Cost("gather", 64, 0.01, touched=32),
    "topk0.01ef": Cost("gather", 64, 0.01, touched=44),
    "dgc": Cost("gather", 64, Dgc.LAST, touched=60, warms_up=True),
    "dgc_cold": Cost("gather", 64, Dgc.LAST, touched=60),
    "powersgd1": Cost("ring", powersgd=1, touched=36),
    "powersgd2": Cost("ring", powersgd=2, touched=36),
    "powersgd4": Cost("ring", powersgd=4, touched=36),
    "terngrad": Cost("ring", 8, touched=14, highest=2),
    "paper": Cost("ring", 8, 0.5, touched=14, highest=2),
    "thc": Cost("server", 8, touched=40, highest=15),
    "local8": Cost("ring", period=8),
    "local30": Cost("ring", period=30),
    "diloco8": Cost("ring", period=8, touched=24 / 8),
    "diloco30": Cost("ring", period=30, touched=24 / 30),
    "levels7": Cost("tree", levels=7),
    "exact-0.5": Cost("tree", keep=0.5, touched=12),
    "levels7-0.5": Cost("tree", keep=0.5, levels=7, touched=12),
    "levels3-0.5": Cost("tree", keep=0.5, levels=3, touched=12),
    "exact-0.2": Cost("tree", keep=0.2, touched=9.6),
    "levels7-0.2": Cost("tree", keep=0.2, levels=7, touched=9.6),
}


def compression_seconds(cost: Cost, network: Network) -> float:
    """Of a step, at the accelerator."""
    return cost.touched * network.elements / ACCELERATOR_BYTES


def link_bytes(cost: Cost, network: Network, topology: Topology, rate_mbps: float) -> float:
    """Of a step, on the busiest link and direction; without headers."""
    layout = topology.layout
    if cost.powersgd:
        own = float(powersgd_bytes(network.shapes, cost.powersgd))
    else:
        bits = cost.element_bits(rate_mbps, layout.world)
        own = network.elements * cost.keep * bits / 8
    if cost.how == "tree":
        return layout.tree_crossings * own / cost.period
    if cost.how == "server":
        return max(layout.sites) * own
    if cost.how == "gather by sites":
        return most_behind_a_link(layout) * own
    crossings = topology.ring_crossings * (layout.world - 1)
    return crossings * (own if cost.how == "gather" else 2 * own / layout.world) / cost.period


@dataclass(frozen=True)
class StepTime:
    seconds: float
    bound: float  # Bytes over what the link carries of payload.
    bytes_per_element: float


def step_time(
    name: str, network: Network, topology: Topology, asked_mbps: float, codec_gb_per_s: float
) -> StepTime:
    """`codec_gb_per_s`: fp32 that one core encodes; 0: not measured here, then not charged."""
    return _step_time(COSTS[name], network, topology, asked_mbps, codec_gb_per_s)


def by_sites_time(name: str, network: Network, topology: Topology, asked_mbps: float) -> StepTime:
    """Of a peer with a ring, if it went site by site instead, as an expert would have it: weights
    after own steps are summed in bf16, PowerSGD's factors in fp32, and what each worker alone has
    goes over each link once. REQUIRES: for those last, a topology without a core."""
    cost = COSTS[name]
    if cost.how == "gather":
        return _step_time(replace(cost, how="gather by sites"), network, topology, asked_mbps, 0.0)
    bits = 16.0 if cost.period > 1 else cost.bits
    return _step_time(replace(cost, how="tree", bits=bits), network, topology, asked_mbps, 0.0)


def mean_step_seconds(
    name: str, network: Network, topology: Topology, asked_mbps: float, codec_gb_per_s: float,
    steps: int, planned: int, kept: float = 1.0,
) -> float:  # fmt: skip
    """Of the first `steps` of a run of `planned`: what warms up sends more at first, and all of
    it where that is less.

    `kept`: the share that the run's mask left, with dense layers more than was asked for; 1: none.
    """
    where = network, topology, asked_mbps, codec_gb_per_s
    cost = COSTS[name] if kept == 1 else replace(COSTS[name], keep=kept)
    if not cost.warms_up:
        return _step_time(cost, *where).seconds
    dense = _step_time(replace(cost, how="ring", bits=32.0, keep=1.0), *where).seconds
    counts = Counter(Dgc.warming_density(step, planned) for step in range(steps))
    whole = sum(count * min(dense, _step_time(replace(cost, keep=density), *where).seconds)
                for density, count in counts.items())  # fmt: skip
    return whole / steps


def _step_time(
    cost: Cost, network: Network, topology: Topology, asked_mbps: float, codec_gb_per_s: float
) -> StepTime:
    rate = topology.rate(asked_mbps)
    sent = link_bytes(cost, network, topology, rate)
    bound = bound_seconds(sent, rate)
    exchange = bound + compression_seconds(cost, network)
    if cost.levels and codec_gb_per_s:
        # Frame by frame beside the link, shared out over a site's agents.
        layout = topology.layout
        coded = coded_sums(layout) * 4 * cost.keep * network.elements / min(layout.hosts)
        exchange = max(exchange, coded / (codec_gb_per_s * 1e9))
    before = FORWARD_SHARE if cost.period == 1 else 1.0
    seconds = max(network.compute_seconds, before * network.compute_seconds + exchange)
    return StepTime(seconds, bound, sent / network.elements)


# --- Systems that cannot be run here: bytes per element and direction in the paper's chain ---


@dataclass(frozen=True)
class Formula:
    title: str
    bytes_of: Any  # Of keep.
    formula: str
    needs: str
    source: str
    by_blocks: bool = False  # Sends the share of blocks that hold a kept element.


def _coo_bitmap(keep: float) -> float:
    return 1.875 * (12 * keep + 1 / 8)


SYSTEMS: Sequence[Formula] = (
    Formula("OmniReduce", lambda keep: 3 * 4.016, "3 b x 4.016, b: share of blocks of 256 in use",
            "an aggregator in the middle; whole blocks of zeros", "SIGCOMM 2021", by_blocks=True),
    Formula("Zen", _coo_bitmap, "1.875 (12 k + 1/8): indices up, bitmap down",
            "sparse gradients that differ little", "arXiv 2309.13254"),
    Formula("EmbRace", lambda keep: 7.0, "7 dense + 15 per touched row (vision: none)",
            "embeddings", "arXiv 2110.09132"),
    Formula("Espresso", lambda keep: 56 * 0.001, "the best of its codecs: DGC, 56 d",
            "GPUs, a profile of the job", "EuroSys 2023"),
    Formula("GRACE", lambda keep: 56 * 0.001, "the best of its codecs: DGC, 56 d; of one bit: 7/8",
            "a choice by hand", "ICDCS 2021"),
    Formula("MCCS", lambda keep: 7.0, "7: it moves DDP's bytes at better times",
            "control of the cloud's network", "SIGCOMM 2024"),
    Formula("StellaTrain", lambda keep: 56 * 0.01, "56 d at its d of 0.01",
            "optimizer on the CPU, stale gradients", "SIGCOMM 2024"),
)  # fmt: skip


def mean_log(values: Sequence[float]) -> float:
    """The geometric mean: ratios of times are averaged so."""
    return math.exp(sum(map(math.log, values)) / len(values))
