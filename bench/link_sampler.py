"""Says when links are in use: a line of JSON each time one of them has sent something.

Run in the namespace of the switches: python -m bench.link_sampler DEVICE...
A line is [seconds since the last look and now (monotonic), bytes of each device since]. Lines
come together, and at least one every PRINT_SECONDS: what is measured shares the processors.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

INTERVAL_SECONDS = 0.002
PRINT_SECONDS = 0.1


@dataclass(frozen=True)
class Sample:
    since: float
    until: float
    sent: tuple[int, ...]  # Per device.


def parse(line: str) -> Sample:
    since, until, *sent = json.loads(line)
    return Sample(since, until, tuple(sent))


def busy_seconds(
    samples: Sequence[Sample], device: int, times: Sequence[float], least_bytes_per_second: float
) -> float:
    """From a step's first traffic to its last, mean over steps; `times`: ends of steps.

    Traffic is what is faster than `least_bytes_per_second`, unlike acknowledgements. Where it
    starts and ends in a sample is not known: on average half of it each is not busy.
    """
    total = 0.0
    for start, end in itertools.pairwise(times):
        busy = [
            sample
            for sample in samples
            if start <= sample.until <= end
            and sample.sent[device] > least_bytes_per_second * (sample.until - sample.since)
        ]
        if busy:
            edges = (busy[0].until - busy[0].since) + (busy[-1].until - busy[-1].since)
            total += busy[-1].until - busy[0].since - edges / 2
    return total / (len(times) - 1)


def main(devices: Sequence[str]) -> int:
    files = [os.open(f"/sys/class/net/{d}/statistics/tx_bytes", os.O_RDONLY) for d in devices]
    last, since = [0] * len(files), time.monotonic()
    lines: list[list[float]] = []
    print_at = since
    while True:
        now = [int(os.pread(file, 32, 0)) for file in files]
        until = time.monotonic()
        if now != last or until >= print_at:
            lines.append([since, until, *(b - a for a, b in zip(last, now, strict=True))])
        if until >= print_at:
            print("\n".join(map(json.dumps, lines)), flush=True)
            lines.clear()
            print_at = until + PRINT_SECONDS
        last, since = now, until
        time.sleep(INTERVAL_SECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
