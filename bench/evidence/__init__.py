"""The evidence: what each method's steps are worth and cost, side by side (make report)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def chosen(option: str, text: str, allowed: Iterable[str]) -> list[str]:
    """Words of a list with commas. ValueError: names the first that is not allowed."""
    allowed, words = list(allowed), text.split(",")
    for word in words:
        if word not in allowed:
            raise ValueError(f"{option} has '{word[:20]}', allowed: {', '.join(allowed)}")
    return words


def numbers(option: str, text: str) -> list[int]:
    """Of a list with commas, each from 1. ValueError: names what is none."""
    for word in text.split(","):
        if not word.isdecimal() or int(word) < 1:
            raise ValueError(f"{option} has '{word[:20]}', allowed: numbers from 1, such as 1,2,3")
    return [int(word) for word in text.split(",")]


def read_json(path: Path) -> Any:
    """What a command wrote. ValueError: it is damaged; names it."""
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(
            f"{path} is no JSON ({error}), allowed: what a command wrote. Restore it, or "
            "remove it and run that command again."
        ) from error
