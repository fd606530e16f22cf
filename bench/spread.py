"""Figures in words: medians and how far apart what they are of was, sizes of buckets."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median


def spread(values: Sequence[float]) -> dict[str, float]:
    """Of what was measured more than once. REQUIRES: there is some."""
    return {"median": median(values), "min": min(values), "max": max(values), "n": len(values)}


def bucket_text(sizes: Sequence[int]) -> str:
    """Buckets of DDP, which plain DDP's figures go with."""
    return " + ".join(f"{size / 2**20:.1f}" for size in sizes) + " MiB"
