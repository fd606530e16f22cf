"""Which factor of the workload's rate a method takes: the best of three, the same three for all.

Chosen on the first seed by held-out scores: the fewest steps to the target, which is of DDP at
factor 1; else the best score at the end. Never by the test set. A run that cannot win any more
ends there. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from bench.evidence.train import crossing

Piece = Mapping[str, Any]
Key = tuple[str, str, int]  # Workload, method, seed.
Factors = Mapping[tuple[str, str], float]  # By workload and method; none: not tuned.
FACTORS = (1.0, 0.5, 2.0)  # In the order in which they run.
FIRST_SEED = 1


def merit(piece: Piece, target: float) -> tuple[float, float]:
    """The greater the better: steps to the target, then the score after DDP's steps."""
    curve = [(step, score if math.isfinite(score) else -math.inf) for step, score in piece["curve"]]
    steps = crossing(curve, target)
    if steps is None:
        return -math.inf, curve[-1][1]
    return -steps, [score for step, score in curve if step <= piece["steps"]][-1]


def steps_to_beat(pieces: Iterable[Piece], target: float) -> int | None:
    """To the target, of the best of one method's pieces on the first seed; None: none arrived."""
    arrived = (crossing(p["curve"], target) for p in pieces if p["seed"] == FIRST_SEED)
    return min((steps for steps in arrived if steps), default=None)


def best_factor(pieces: Iterable[Piece], target: float) -> float | None:
    """Of one method's pieces; equals go to the one nearest 1. None: not all factors were run."""
    first = {p["rate_factor"]: merit(p, target) for p in pieces if p["seed"] == FIRST_SEED}
    if not first.keys() >= set(FACTORS):
        return None
    return max(FACTORS, key=lambda factor: (first[factor], -abs(math.log(factor))))


def best_factors(
    pieces: Iterable[Piece], targets: Mapping[str, Mapping[str, Any]]
) -> dict[tuple[str, str], float]:
    """Of each method that ran with all factors on the first seed; others go with 1, and are named
    beside what they are compared with."""
    methods: dict[tuple[str, str], list[Piece]] = {}
    for piece in pieces:
        methods.setdefault((piece["workload"], piece["method"]), []).append(piece)
    found = {
        name: best_factor(own, targets[name[0]]["target"])
        for name, own in methods.items()
        if name[0] in targets
    }
    return {name: factor for name, factor in found.items() if factor is not None}


def split(pieces: Iterable[Piece], factors: Factors) -> tuple[dict[Key, Piece], list[Piece]]:
    """Of each method those of its factor, which is 1 where it was not tuned; and the others."""
    taken: dict[Key, Piece] = {}
    others = []
    for piece in pieces:
        name = (piece["workload"], piece["method"])
        if piece["rate_factor"] == factors.get(name, 1.0):
            taken[name[0], name[1], piece["seed"]] = piece
        else:
            others.append(piece)
    return taken, others
