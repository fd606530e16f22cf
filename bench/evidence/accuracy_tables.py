"""What accuracy on the test set the vision workloads reached, and what 88 % would cost. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, linear_regression

from bench.evidence.experiment_tables import table
from bench.evidence.figures import VISION, Evidence
from bench.evidence.methods import ROWS

GOAL = 88.0  # Points on the test set.
Curve = Sequence[tuple[float, float]]


def steps_to(goal: float, curve: Curve) -> float:
    """Where the curve gets to `goal` points, if its error goes on falling as a power of steps.

    Infinite: it does not fall.
    """
    logs = [(math.log(step), math.log(100 - score)) for step, score in curve]
    slope, start = linear_regression(*zip(*logs, strict=True))
    return math.exp((math.log(100 - goal) - start) / slope) if slope < 0 else math.inf


def _cost(steps: float, seconds: float) -> str:
    if math.isinf(steps):
        return "never"
    return f"{float(f'{steps:.2g}'):,.0f} steps, {steps * seconds / 3600:.1f} CPU hours"


def accuracy_table(evidence: Evidence) -> str:
    """Held-out scores make the curves, so the goal is moved by DDP's difference to the test."""
    rows = []
    for workload in VISION:
        own = [evidence.pieces[workload, "ddp", s] for s in evidence.seeds(workload, "ddp")]
        start = evidence.starts.get(workload)
        first = f"{start['test']:.2f} % ({start['cpu_seconds']:.0f} CPU s)" if start else "unknown"
        if not own:
            rows.append([workload, first, *["not run yet"] * 5])
            continue
        end, steps = fmean(piece["test"] for piece in own), own[0]["steps"]
        reached = {method: fmean(piece["test"] for (w, m, _), piece in evidence.pieces.items()
                                 if (w, m) == (workload, method))
                   for method in ROWS if evidence.seeds(workload, method)}  # fmt: skip
        best = max(reached, key=lambda method: reached[method])
        seconds = fmean(piece["cpu_seconds"] / piece["steps_run"] for piece in own)
        curve = [(step, fmean(dict(piece["curve"])[step] for piece in own))
                 for step, _ in own[0]["curve"] if step <= steps]  # fmt: skip
        goal = GOAL + curve[-1][1] - end
        late = curve[len(curve) // 2 :]
        rows.append([
            workload, first, f"{end:.2f} % after {steps} steps",
            f"{reached[best]:.2f} % ({ROWS[best].title})", f"{seconds:.2f}",
            *(["reached"] * 2 if end >= GOAL else
              [_cost(steps_to(goal, part), seconds) for part in (curve, late)]),
        ])  # fmt: skip
    guess = f"what {GOAL:g} % would take, guessed from DDP's curve"
    return table(["workload", "pre-trained", "DDP's end", "best row's end", "CPU s a step",
                  guess, "the same from the curve's second half"], rows)  # fmt: skip
