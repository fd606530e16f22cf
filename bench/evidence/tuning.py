"""Which factor of the workload's rate a method takes: the best of three, the same three for all.

Named on the first seed by held-out scores: the fewest steps to the target, which is of DDP at
factor 1; else the best score at the end. Between the named one and 1 all seeds decide that ran
with both. Never by the test set. A run that cannot win any more ends there. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
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


def mean_merit(pieces: Sequence[Piece], target: float) -> tuple[float, float, float]:
    """The greater the better, of the same seeds: who arrives oftener, sooner, with better ends."""
    merits = [merit(piece, target) for piece in pieces]
    arrived = [steps for steps, _ in merits if math.isfinite(steps)]
    return len(arrived), fmean(arrived or [0.0]), fmean(score for _, score in merits)


def steps_to_beat(pieces: Iterable[Piece], target: float) -> int | None:
    """To the target, of the best of one method's pieces on the first seed; None: none arrived."""
    arrived = (crossing(p["curve"], target) for p in pieces if p["seed"] == FIRST_SEED)
    return min((steps for steps in arrived if steps), default=None)


def named_factor(pieces: Iterable[Piece], target: float) -> float | None:
    """The first seed's best of one method's pieces; equals go to the one nearest 1. None: not all
    factors were run."""
    first = {p["rate_factor"]: merit(p, target) for p in pieces if p["seed"] == FIRST_SEED}
    if not first.keys() >= set(FACTORS):
        return None
    return max(FACTORS, key=lambda factor: (first[factor], -abs(math.log(factor))))


def best_factor(pieces: Sequence[Piece], target: float) -> float | None:
    """The named one or 1, by the seeds that ran with both. None: not all factors were run."""
    named = named_factor(pieces, target)
    if named is None:
        return None
    by_seed = {(p["rate_factor"], p["seed"]): p for p in pieces}
    both = [p["seed"] for p in pieces if p["rate_factor"] == 1 and (named, p["seed"]) in by_seed]
    own, at_one = (
        mean_merit([by_seed[factor, seed] for seed in both], target) for factor in (named, 1.0)
    )
    return named if own > at_one else 1.0


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
