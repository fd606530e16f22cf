"""One line of live progress: step, mode, accuracy, and what each link carries now."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

PLAIN_SECONDS = 5.0  # Without a terminal: a line this often.
LIVE_SECONDS = 0.5


class Progress:
    def __init__(self, title: str, steps: int, links: list[str]) -> None:
        self._title = title
        self._steps = steps
        self._links = links
        self._live = sys.stdout.isatty()
        self._shown = time.monotonic()
        self._bytes: list[tuple[int, int]] | None = None
        self._bytes_at = 0.0
        self._step = ""
        self._mode = ""
        self._accuracy = ""
        print(f"{title}: starting {steps} steps", flush=True)

    def show(self, event: Mapping[str, Any], link_bytes: list[tuple[int, int]] | None) -> None:
        """Takes an event of the run; prints when it is time to."""
        kind = event["event"]
        if kind == "step":
            self._step = f"step {event['step']}/{self._steps}  {event['seconds']:.1f} s"
        elif kind == "accuracy":
            self._accuracy = f"  accuracy {event['accuracy']:.3f}"
        elif kind == "mode":
            self._mode = f"  {event['mode']} {event['codec']}"
            self._line(f"from step {event['step']}: {event['mode']} {event['codec']}"
                       f" ({event['reason']})", stays=True)  # fmt: skip
        now = time.monotonic()
        due = now - self._shown >= (LIVE_SECONDS if self._live else PLAIN_SECONDS)
        if due and self._step:
            rates = self._rates(link_bytes, now)
            self._line(self._step + self._mode + self._accuracy + rates, stays=False)
            self._shown = now

    def end(self) -> None:
        self._line(self._step + self._mode + self._accuracy, stays=True)

    def _rates(self, link_bytes: list[tuple[int, int]] | None, now: float) -> str:
        text = ""
        if link_bytes is not None:
            if self._bytes is not None and now > self._bytes_at:
                scale = 8e-6 / (now - self._bytes_at)
                rates = [
                    f"{name} {(new[0] - old[0]) * scale:.0f}/{(new[1] - old[1]) * scale:.0f}"
                    for name, new, old in zip(self._links, link_bytes, self._bytes, strict=True)
                ]
                text = "  Mbps " + "  ".join(rates)
            self._bytes, self._bytes_at = link_bytes, now
        return text

    def _line(self, text: str, stays: bool) -> None:
        line = f"{self._title}: {text}"
        if self._live:
            print("\r\x1b[K" + line, end="\n" if stays else "", flush=True)
        else:
            print(line, flush=True)
