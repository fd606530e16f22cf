"""The evidence: what each method's steps are worth and cost, side by side (make report)."""

from __future__ import annotations

from collections.abc import Iterable


def chosen(option: str, text: str, allowed: Iterable[str]) -> list[str]:
    """Words of a list with commas. ValueError: names the first that is not allowed."""
    allowed, words = list(allowed), text.split(",")
    for word in words:
        if word not in allowed:
            raise ValueError(f"{option} has '{word[:20]}', allowed: {', '.join(allowed)}")
    return words
