"""Of files that commands wrote: that they hold what the page reads of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bench.evidence import read_json


class Kind(NamedTuple):
    """What a field may be."""

    holds: Callable[[Any], bool]
    allowed: str


Fields = Mapping[str, Kind]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value)


def _is_curve(value: Any) -> bool:
    """Scores of a run that diverged are not finite."""
    if not isinstance(value, list) or not value:
        return False
    points = [point for point in value if isinstance(point, list) and len(point) == 2]
    if len(points) < len(value) or not all(COUNT.holds(s) and _is_number(y) for s, y in points):
        return False
    return all(a[0] < b[0] for a, b in itertools.pairwise(points))


TEXT = Kind(lambda value: isinstance(value, str), "a text")
COUNT = Kind(lambda value: _is_finite(value) and value == int(value) and value >= 1,
             "a whole number from 1")  # fmt: skip
NUMBER = Kind(_is_finite, "a number")
POSITIVE = Kind(lambda value: _is_finite(value) and value > 0, "a number above 0")
AMOUNT = Kind(lambda value: _is_finite(value) and value >= 0, "a number from 0")
SHARE = Kind(lambda value: _is_finite(value) and 0 < value <= 1, "a number above 0, at most 1")
# Of a run that ended early there is none; of one that diverged it is not finite.
SCORE = Kind(lambda value: value is None or _is_number(value), "a number or null")
CURVE = Kind(_is_curve, "a list of [step, score], steps growing")
NUMBERS = Kind(
    lambda value: isinstance(value, list) and len(value) > 0 and all(map(AMOUNT.holds, value)),
    "a list of numbers from 0",
)
DICT = Kind(lambda value: isinstance(value, dict), "an object")
LIST = Kind(lambda value: isinstance(value, list) and len(value) > 0, "a list that is not empty")


def one_of(values: Iterable[Any]) -> Kind:
    known = list(values)
    return Kind(lambda value: value in known, ", ".join(map(str, known)))


def check(path: Path, value: Any, fields: Fields, what: str = "") -> dict[str, Any]:
    """`what`: the place in the file. ValueError: names file, place, field and what it may be."""
    where = f"{path}: {what}" if what else f"{path}:"
    remove = "Restore it, or remove it and run its command again."
    if not isinstance(value, dict):
        raise ValueError(f"{where} {str(value)[:30]!r}, allowed: an object. {remove}")
    for name, kind in fields.items():
        if name not in value:
            raise ValueError(
                f"{where} field '{name}' is missing, allowed: {kind.allowed}. {remove}"
            )
        if not kind.holds(value[name]):
            raise ValueError(f"{where} field '{name}' = {str(value[name])[:30]!r}, "
                             f"allowed: {kind.allowed}. {remove}")  # fmt: skip
    return value


def read(path: Path, fields: Fields) -> dict[str, Any]:
    """Of a file that holds an object. ValueError: as check()."""
    return check(path, read_json(path), fields)


def check_each(path: Path, values: Any, fields: Fields, what: str) -> list[dict[str, Any]]:
    """Of a list, whose places are counted from 1."""
    if not isinstance(values, list):
        raise ValueError(f"{path}: {what} = {str(values)[:30]!r}, allowed: a list. Restore it.")
    return [check(path, one, fields, f"{what} {number}:") for number, one in enumerate(values, 1)]
