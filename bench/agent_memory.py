"""What memory agents use, as the kernel counts it, and what a run of bench/exchange.py needs.

An agent's memory in some steps is the most that it had of its own (VmHWM without shared
memory) and the part of the shared memory that the steps touched (Referenced): slots and
results are as large as FULL needs, and of COMPACTED only their starts are used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.exchange_layout import gradients

REGION = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+ *(.*)$")
SHARED = "/memfd:pactrain-"
MIB = 1 << 20
OWN_BYTES = 64 * MIB  # That an agent may have beside the trainers' gradients.
OTHER_PARTS = 3  # Beside the slots: the result, the sum, and frames under way.

# What one rank holds for a row, in gradients of a model.
OURS = 4.0  # Parameters, gradients, masks and their making, the slot.
NODE = 3.0  # Result, sum, frames under way.
PEERS = 2.0  # The parameters and gradients of all of them.
PEER = 3.0  # What a hook keeps, and what it needs while it works.
RANK_BYTES = 300 * MIB  # Python and torch.
USABLE = 0.75  # Of what the machine has.


@dataclass(frozen=True)
class Memory:
    private_bytes: int
    shared_bytes: int

    @property
    def total(self) -> int:
        return self.private_bytes + self.shared_bytes


def start(pid: int) -> None:
    """From here on read() measures. Needs root, or the user of the process."""
    for what in ("5", "1"):  # The peak; which pages were touched.
        Path(f"/proc/{pid}/clear_refs").write_text(what)


def read(pid: int) -> Memory:
    """Since start()."""
    status = Path(f"/proc/{pid}/status").read_text()
    return parse(status, Path(f"/proc/{pid}/smaps").read_text())


def parse(status: str, smaps: str) -> Memory:
    """Of the texts of /proc/PID/status and smaps."""
    fields = dict(_kilobytes(status.splitlines()))
    private = fields["VmHWM"] - fields["RssShmem"] - fields["RssFile"]
    touched = 0
    shared = False
    for line in smaps.splitlines():
        if (match := REGION.match(line)) is not None:
            shared = match[1].startswith(SHARED)
        elif shared:
            touched += dict(_kilobytes([line])).get("Referenced", 0)
    return Memory(private, touched)


def _kilobytes(lines: Sequence[str]) -> Iterator[tuple[str, int]]:
    """As bytes."""
    for line in lines:
        if (match := re.match(r"(\w+):\s+(\d+) kB$", line)) is not None:
            yield match[1], int(match[2]) << 10


def bound_bytes(trainers: int, kept_elements: float) -> int:
    """What an agent with so many trainers may use in COMPACTED fp32 steps."""
    return round((trainers + OTHER_PARTS) * 4 * kept_elements) + OWN_BYTES


def available_bytes() -> int:
    """What this machine can still give."""
    meminfo = Path("/proc/meminfo").read_text().splitlines()
    return dict(_kilobytes(meminfo))["MemAvailable"]


def needed_bytes(elements: int, world: int, nodes: int, ours: bool, gathered: float = 0.0) -> float:
    """For a row alone. `gathered`: gradients of a model that each rank gets from the others."""
    row = world * OURS + nodes * NODE if ours else world * (PEER + PEERS + gathered)
    return world * RANK_BYTES + 4 * elements * (world * gradients(elements) + row)


def batches(
    rows: Mapping[str, bool], elements: int, world: int, nodes: int, available: int
) -> list[tuple[str, ...]]:
    """Rows that fit into memory together, in their order.

    `rows`: whether a row is one of ours. ValueError: a row does not fit even alone.
    """
    needed = max(needed_bytes(elements, world, nodes, ours) for ours in rows.values())
    if needed > available:
        raise ValueError(
            f"ELEMENTS = '{elements}' needs about {needed / 1e9:.0f} GB of memory for {world} "
            f"trainers, of which {available / 1e9:.0f} GB are available"
        )
    room = (USABLE * available - world * RANK_BYTES) / (4 * elements)
    room -= world * gradients(elements)
    done: list[tuple[str, ...]] = []
    batch: list[str] = []
    used, has_peers = 0.0, False
    for name, ours in rows.items():
        wanted = world * OURS + nodes * NODE if ours else world * PEER
        more = 0.0 if ours or has_peers else world * PEERS
        if batch and used + wanted + more > room:
            done.append(tuple(batch))
            batch, used, has_peers = [], 0.0, False
            more = 0.0 if ours else world * PEERS
        batch.append(name)
        used += wanted + more
        has_peers = has_peers or not ours
    return [*done, tuple(batch)]
