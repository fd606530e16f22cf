"""`pactrain plot RUN`: draws what session.summary(to=RUN) wrote, as an SVG."""

from __future__ import annotations

import html
import itertools
import json
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .errors import InvalidArgument, PacTrainError
from .summary import RECORD_VERSION

USAGE = "usage: pactrain plot RUN [FILE.svg]    RUN: what session.summary(to=RUN) wrote"
_WIDTH, _HEIGHT, _LEFT, _GAP = 860, 110, 90, 34
_COLOURS = {"FULL": "#f4d9d0", "COMPACTED": "#d5e8d4", "TERNARY": "#d4e1f5"}
_RISK = re.compile(r"\br = ([0-9]*\.?[0-9]+)")

_FIELDS = (
    *("steps", "seconds", "exchange_seconds", "sent_bytes", "received_bytes"),
    *("elements", "submitted_elements"),
)

Line = tuple[str, list[float]]


def main(arguments: Sequence[str]) -> int:
    """Writes RUN.svg, or the file that is named; returns the exit code."""
    if not 1 <= len(arguments) <= 2 or arguments[0].startswith("-"):
        print(USAGE, file=sys.stderr)
        return 2
    run = Path(arguments[0])
    try:
        record = read_record(run)
        target = Path(arguments[1]) if len(arguments) == 2 else run.with_suffix(".svg")
        if target.resolve() == run.resolve():
            raise InvalidArgument(
                f"{target} is the run itself, which the drawing would replace.\n"
                "Name another file: pactrain plot RUN FILE.svg"
            )
        target.write_text(draw(record))
    except (PacTrainError, OSError) as error:
        print(f"pactrain plot: {error}", file=sys.stderr)
        return 1
    print(target)
    return 0


def read_record(path: Path) -> dict[str, Any]:
    """What session.summary(to=path) wrote.

    Raises:
      InvalidArgument: it is not there, or something else; says what.
    """
    try:
        record = json.loads(path.read_text())
        _check(record)
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidArgument(
            f"{path} is no course of a run: {error}.\n"
            "Give a file that session.summary(to=...) wrote."
        ) from error
    found: dict[str, Any] = record
    return found


def _check(record: Any) -> None:
    """Raises ValueError, which names the field."""
    if not isinstance(record, dict) or "version" not in record:
        raise ValueError("it has no field version")
    if record["version"] != RECORD_VERSION:
        raise ValueError(f"version is {record['version']!r}, not {RECORD_VERSION}")
    points = record.get("points")
    if not isinstance(points, dict) or not points.get("steps"):
        raise ValueError("points has no steps")
    for name in _FIELDS:
        values = points.get(name)
        if not isinstance(values, list) or not all(map(_is_size, values)):
            raise ValueError(f"points[{name!r}] is no list of numbers")
        if len(values) != len(points["steps"]):
            raise ValueError(f"points[{name!r}] has not one number for each point")
    if not all(points["steps"]):
        raise ValueError("points['steps'] has a point without steps")
    changes = record.get("changes")
    if (
        not changes
        or not isinstance(changes, list)
        or not all(map(_is_change, changes))
    ):
        raise ValueError("changes is no list of steps, what travelled and a reason")
    if not isinstance(record.get("summary"), str):
        raise ValueError("summary is no text")


def _is_size(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and 0 <= value < math.inf


def _is_change(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _is_size(value.get("steps"))
        and all(isinstance(value.get(name), str) for name in ("what", "reason"))
    )


def draw(record: dict[str, Any]) -> str:
    """Panels over the steps of the session: bytes, keep, r and seconds of a step, on
    bands in the colour of what travelled."""
    points, changes = record["points"], record["changes"]
    ends = list(itertools.accumulate(points["steps"]))
    panels = [*_panels(points), ("r, as decisions told it", _risks(changes, ends))]
    summary = record["summary"].splitlines()
    below = len(panels) * (_HEIGHT + _GAP) + 2 * _GAP
    parts = [_bands(changes, ends[-1], len(panels))]
    parts += [
        _panel(number, name, values, ends)
        for number, (name, values) in enumerate(panels)
    ]
    parts += [_text(10, below + 16 * row, line) for row, line in enumerate(summary)]
    height = below + 16 * len(summary) + 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 20}" '
        f'height="{height}" font-family="monospace" font-size="11">\n'
        '<rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _panels(points: dict[str, list[float]]) -> list[Line]:
    steps = points["steps"]
    moved = [
        a + b
        for a, b in zip(points["sent_bytes"], points["received_bytes"], strict=True)
    ]
    times = [b - a for a, b in itertools.pairwise([0.0, *points["seconds"]])]

    def each(values: Sequence[float], by: Sequence[float]) -> list[float]:
        return [value / max(1, other) for value, other in zip(values, by, strict=True)]

    return [
        ("bytes of a step, sent and received", each(moved, steps)),
        (
            "keep: elements submitted of all",
            each(points["submitted_elements"], points["elements"]),
        ),
        ("seconds of a step", each(times, steps)),
        ("seconds of its exchange", each(points["exchange_seconds"], steps)),
    ]


def _risks(changes: list[dict[str, Any]], ends: list[int]) -> list[float]:
    """Zero where no reason names one."""
    known: list[tuple[int, float]] = [
        (change["steps"], float(found[1]))
        for change in changes
        if (found := _RISK.search(change["reason"]))
    ]
    return [
        next((risk for after, risk in reversed(known) if after < end), 0.0)
        for end in ends
    ]


def _x(step: float, last: int) -> float:
    return _LEFT + _WIDTH * step / last


def _bands(changes: list[dict[str, Any]], last: int, panels: int) -> str:
    starts = [min(change["steps"], last) for change in changes]
    height = panels * (_HEIGHT + _GAP)
    parts = []
    for change, start, end in zip(changes, starts, [*starts[1:], last], strict=True):
        mode = change["what"].partition(" ")[0]
        x, width = _x(start, last), _x(end, last) - _x(start, last)
        parts.append(
            f'<rect x="{x:.1f}" y="{_GAP}" width="{max(0.0, width):.1f}" '
            f'height="{height}" fill="{_COLOURS.get(mode, "white")}"/>'
        )
        if width > 70:
            parts.append(_text(x + 3, _GAP - 5, change["what"]))
    return "\n".join(parts)


def _panel(number: int, name: str, values: list[float], ends: list[int]) -> str:
    top = _GAP + number * (_HEIGHT + _GAP) + 18
    most = max(values) or 1.0
    corners = []
    for value, start, end in zip(values, [0, *ends], ends, strict=False):
        y = top + _HEIGHT * (1 - value / most)
        corners += [
            f"{_x(start, ends[-1]):.1f},{y:.1f}",
            f"{_x(end, ends[-1]):.1f},{y:.1f}",
        ]
    return (
        f'<polyline fill="none" stroke="#333" points="{" ".join(corners)}"/>\n'
        + _text(_LEFT + 3, top - 4, name)
        + _text(4, top + 8, f"{most:.4g}")
        + _text(4, top + _HEIGHT, "0")
        + _text(_LEFT + _WIDTH - 60, top + _HEIGHT + 12, f"step {ends[-1]:,}")
    )


def _text(x: float, y: float, text: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" xml:space="preserve">{html.escape(text)}</text>'
    )
