"""What `make report-times` measures: rows, what is missing of them, steps of each, and when a
step of the reference accelerator releases its gradients. Pure.

Rows are those of the evidence (times.COSTS), and DDP in torch's own buckets. A method's own
compression either runs on the processors here, or its bytes are ready-made, and what it takes at
the accelerator is slept. Not among the first are those of which there is no real exchange here:
site-hierarchical bf16, DGC and others. Nor among the second what needs a server or own steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from bench.evidence.shapes import Network
from bench.evidence.times import (
    COSTS,
    FORWARD_SHARE,
    PACKED_ABOVE_MBPS,
    Cost,
    compression_seconds,
)

TOPOLOGY = "chain"  # The paper's, on which the goals are.
BUCKETS = "ddp_buckets"
BY_HAND = "hier_bf16"  # As far as the tree goes, but not by agents.
OURS = "levels7-0.5"  # Whose bound is a goal.
# Ours first, then what is soonest over: whoever stops early has the goals' rows. Last is what
# needs most memory: all ranks gather all values and indices.
ROWS = ("levels7-0.5", "levels7-0.2", "levels7", "exact-0.5", "hier_fp32", "fp16", "powersgd1",
        "powersgd2", "powersgd4", "topk0.01ef", "ddp", BUCKETS, "topk0.1ef")  # fmt: skip
IN_BUCKETS = "_buckets"  # Torch's, of what has one bucket otherwise.
READY_ROWS = ("levels7-0.5", "levels7-0.2", "levels7", "levels3-0.5", "exact-0.5", "exact-0.2",
              "hier_fp32", *(f"powersgd{rank}{how}" for rank in (1, 2, 4)
                             for how in ("", IN_BUCKETS)),
              "dgc_cold", "topk0.01", "paper", "terngrad", "hier_bf16", "fp16", "topk0.1", "ddp",
              BUCKETS)  # fmt: skip
BUCKET_BYTES, FIRST_BUCKET_BYTES = 25 * 2**20, 2**20  # Of gradients: DDP's defaults.
LEAST_STEPS, MOST_STEPS = 2, 20  # Measured ones of a row at a rate.
ROW_SECONDS = 4.0  # That they take, if a step is short.
# A step so long has no other before it: that its connections have met a slower link costs less
# than a hundredth of it.
LONG_SECONDS = 20.0
KNOWN_SECONDS = 5.0  # After a change of the rate agents have measured it anew.
MOST_SEGMENTS = 32  # Of backward: a bucket of 25 MiB is more than one of them.
# Of the busiest direction's bytes to those of the formula: frames, TLS and acknowledgements.
LEAST_SHARE, MOST_SHARE = 0.97, 1.1
# By hand: all-reduce among three sites' first ranks is a ring, and sends more than the tree that
# the formula grants it.
BY_HAND_SHARE = 4 / 3
SMALL_SHARE = 1.2  # Of PowerSGD's factors bucket by bucket: so small that packets' heads count.

Entry = Mapping[str, Any]


def formula_of(row: str) -> str:
    """The row whose formula it has: buckets cost DDP nothing."""
    return row.removesuffix(IN_BUCKETS)


def cost_of(row: str) -> Cost:
    return COSTS[formula_of(row)]


def is_ours(row: str) -> bool:
    return cost_of(row).how == "tree" and row != BY_HAND


def pin_of(row: str, has_masks: bool = True) -> str:
    """What an operator would pin for a row of ours; False: its elements are all that is kept."""
    cost = cost_of(row)
    if cost.levels:
        return f"TERNARY {cost.levels}"
    return "COMPACTED" if cost.keep < 1 and has_masks else "FULL"


class Steps(NamedTuple):
    """Of a row at a rate."""

    warm_up: int
    measured: int


def steps_of(seconds: float, quick: bool = False) -> Steps:
    """Of a row whose step is expected to take that. `quick`: a very long one is measured once."""
    least = 1 if quick and seconds > LONG_SECONDS else LEAST_STEPS
    measured = min(MOST_STEPS, max(least, math.ceil(ROW_SECONDS / seconds)))
    return Steps(int(seconds <= LONG_SECONDS), measured)


def known_after(row: str, seconds: float) -> int:
    """Steps until agents know a new rate, by which they choose how levels are coded, and how much
    they keep on the way: exact steps of 0.46 s took 0.39 s after twelve."""
    return math.ceil(KNOWN_SECONDS / seconds) if is_ours(row) else 0


def missing(
    found: Sequence[Entry], rows: Sequence[str], rates: Sequence[float]
) -> dict[str, list[float]]:
    """Rates of each row that have not been measured; rows that have them all are left out."""
    done = {(entry["row"], entry["rate_mbps"]) for entry in found}
    wanted = {row: [rate for rate in rates if (row, rate) not in done] for row in rows}
    return {row: own for row, own in wanted.items() if own}


def merged(found: Sequence[Entry], entry: Entry) -> list[Entry]:
    """With `entry` in the place of an older one; by rate and in the order of rows."""
    key = (entry["row"], entry["rate_mbps"])
    others = [old for old in found if (old["row"], old["rate_mbps"]) != key]
    order = (*READY_ROWS, *ROWS)
    return sorted([*others, entry], key=lambda e: (e["rate_mbps"], order.index(e["row"])))


def segments(sizes: Sequence[int]) -> list[int]:
    """How many of the parameters, from the first on, are released together: whole ones."""
    least = sum(sizes) / MOST_SEGMENTS
    counts, elements, count = [], 0, 0
    for size in sizes:
        elements, count = elements + size, count + 1
        if elements >= least:
            counts.append(count)
            elements, count = 0, 0
    return [*counts, count] if count else counts


def forward_seconds(network: Network) -> float:
    return FORWARD_SHARE * network.compute_seconds


def releases(network: Network, counts: Sequence[int], compression: float = 0.0) -> list[float]:
    """Seconds after a step's start at which each segment has its gradients.

    Backward follows forward and goes from the last segment to the first, each of which takes
    its elements' share of it, and of the seconds of `compression`.
    """
    forward = forward_seconds(network)
    backward = network.compute_seconds - forward + compression
    sizes = [math.prod(shape) for shape in network.shapes]
    ends = [sum(counts[: number + 1]) for number in range(len(counts))]
    done = [sum(sizes[end - count :]) for end, count in zip(ends, counts, strict=True)]
    return [forward + backward * elements / network.elements for elements in done]


def kept_of(network: Network, keep: float) -> Network:
    """What a mask leaves of each parameter, of the same compute: what the exchange is given."""
    sizes = [max(1, round(keep * math.prod(shape))) for shape in network.shapes]
    return replace(network, shapes=[(size,) for size in sizes])


class Bucket(NamedTuple):
    shapes: Sequence[tuple[int, ...]]
    at: float  # Seconds of the step: compressed, so it may go.

    @property
    def elements(self) -> int:
        return sum(map(math.prod, self.shapes))


def ready_buckets(row: str, network: Network) -> list[Bucket]:
    """As torch's DDP fills them, from the last parameter on: one, or each once it is full."""
    one = row == "ddp" or (cost_of(row).powersgd > 0 and not row.endswith(IN_BUCKETS))
    filled: list[list[tuple[int, ...]]] = [[]]
    for shape in reversed(network.shapes):
        filled[-1].append(shape)
        cap = BUCKET_BYTES if len(filled) > 1 else FIRST_BUCKET_BYTES
        if not one and 4 * sum(map(math.prod, filled[-1])) >= cap:
            filled.append([])
    full = [shapes for shapes in filled if shapes]
    # As segments: from the first parameter on, released from the last on.
    counts = [len(shapes) for shapes in reversed(full)]
    at = releases(network, counts, compression_seconds(cost_of(row), network))
    return [Bucket(shapes, when) for shapes, when in zip(full, reversed(at), strict=True)]


def wrong_with(entry: Entry, elements: int, sent: float, counted_seconds: float) -> str | None:
    """Why a measurement cannot be what it says; None: it can.

    `sent`: by formula, bytes of a step on the busiest link; `counted_seconds`: that the counted
    ones take there.
    """
    name = f"{entry['row']} at {entry['rate_mbps']:g} Mbps"
    least, cost = LEAST_SHARE, cost_of(entry["row"])
    if cost.levels:  # Agents that find a link slow do not pack there, whatever its rate.
        bits = cost.element_bits(PACKED_ABOVE_MBPS)
        least *= min(1.0, elements * cost.keep * bits / 8 / sent)
    if entry["row"] == BY_HAND:
        sent *= BY_HAND_SHARE
    share = max(entry["link_bytes"]) / sent
    most = SMALL_SHARE if cost.powersgd and entry["row"].endswith(IN_BUCKETS) else MOST_SHARE
    if not least <= share <= most:
        return (f"{name}: {share:.2f} of its formula's bytes on the busiest link, allowed: "
                f"{least:.2f} to {most}")  # fmt: skip
    if entry["seconds"] < LEAST_SHARE * counted_seconds:
        return f"{name}: {entry['seconds']:.4f} s, allowed: {counted_seconds:.4f}, of its bytes"
    return None
