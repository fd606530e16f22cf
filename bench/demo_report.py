"""What the demo says at its end: the table, the plot, and summary.json as its last line."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from bench.spread import bucket_text, spread

GOAL_SPEEDUP = 6.0
GOAL_CEILING_SHARE = 0.8  # Or so much of what free communication would give.
GOAL_ACCURACY = 0.01
GOAL_MODES = ("COMPACTED", "TERNARY")


@dataclass
class Outcome:
    """One run, gathered from the events of its rank 0."""

    seconds: float = 0.0
    steps: int = 0
    name: str = ""
    parameters: int = 0
    kept: int = 0
    accuracy: float = 0.0  # At the end, over all test images.
    curve: list[tuple[float, float]] = field(default_factory=list)  # Seconds, accuracy.
    modes: list[dict[str, Any]] = field(default_factory=list)
    risk: float | None = None  # r as measured last.
    mode_seconds: list[float] = field(default_factory=list)  # When each of them began.
    link_bytes: list[tuple[int, int]] | None = None
    bucket_bytes: list[int] = field(default_factory=list)  # Of plain DDP.
    step_ends: list[float] = field(default_factory=lambda: [0.0])  # Seconds.

    def add(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind == "model":
            self.name = event["name"]
            self.parameters, self.kept = event["parameters"], event["kept"]
        elif kind == "mode":
            self.modes.append({k: event[k] for k in ("step", "mode", "codec", "reason")})
            self.mode_seconds.append(event["seconds"])
        elif kind == "accuracy" and event["final"]:
            self.accuracy = event["accuracy"]
        elif kind == "accuracy":
            self.curve.append((event["seconds"], event["accuracy"]))
        elif kind == "step":
            self.step_ends.append(event["seconds"])
        elif kind == "done":
            self.seconds, self.steps = event["seconds"], event["steps"]
            self.bucket_bytes = event["bucket_bytes"]

    @property
    def seconds_per_step(self) -> float:
        return self.seconds / max(1, self.steps)

    def seconds_to(self, target: float) -> float:
        """When the accuracy was first reached. REQUIRES: it was."""
        return next(seconds for seconds, accuracy in self.curve if accuracy >= target)

    def summary(self, target: float) -> dict[str, Any]:
        steps = [end - start for start, end in pairwise(self.step_ends)]
        return {
            "seconds": round(self.seconds, 3),
            "seconds_per_step": {key: round(n, 4) for key, n in spread(steps).items()},
            "seconds_to_accuracy": round(self.seconds_to(target), 3),
            "accuracy": round(self.accuracy, 5),
            "link_bytes": [list(pair) for pair in self.link_bytes or []],
        }


def data_in_use() -> tuple[str, str]:
    """Name and title of the data that the trainers will load."""
    if os.environ.get("PACTRAIN_DATA"):
        return "cifar10", f"CIFAR-10 (JPEG copy) from {os.environ['PACTRAIN_DATA']}"
    return "digits", "scikit-learn's digits: a smoke run (set PACTRAIN_DATA for CIFAR-10)"


def print_model(compute: Outcome) -> None:
    print(
        f"model: {compute.name}; {compute.parameters:,} parameters, {compute.kept:,} kept "
        f"({1 - compute.kept / compute.parameters:.0%} pruned)\n"
        f"computing alone takes {compute.seconds_per_step:.3f} s a step\n"
        "both runs: the same weights, data order and rate; plain DDP's weights are masked after "
        "each\noptimizer step as PacTrain's are, so that both train the same sparse network",
        flush=True,
    )


def finish(
    out: Path,
    data: str,
    shaped: bool,
    compute: Outcome,
    ddp: Outcome,
    ours: Outcome,
    steps: int,
) -> bool:
    """Prints the table, and last one line of JSON; writes summary.json and plot.png under `out`.

    Whether all goals are met.
    """
    target = min(max(a for _, a in ddp.curve), max(a for _, a in ours.curve))
    summary = {
        "data": data,
        "steps": steps,
        "parameters": ddp.parameters,
        "kept": ddp.kept,
        "ddp": ddp.summary(target) | {"bucket_bytes": ddp.bucket_bytes},
        "pactrain": ours.summary(target),
        "target_accuracy": round(target, 5),
        "speedup": round(ddp.seconds / ours.seconds, 3),
        "speedup_ceiling": round(ddp.seconds / (compute.seconds_per_step * steps), 3),
        "accuracy_gap": round(abs(ddp.accuracy - ours.accuracy), 5),
        "first_compacted_step": first_step(ours.modes, "COMPACTED"),
        "first_ternary_step": first_step(ours.modes, "TERNARY"),
        "modes": ours.modes,
        "risk": ours.risk,
        "network": "namespaces" if shaped else "loopback",
    }
    print("\n" + "\n".join(table(summary)))
    plot(out / "plot.png", ddp, ours, target)
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(
        f"\nwritten: {out / 'summary.json'}, {out / 'plot.png'}\n{json.dumps(summary)}", flush=True
    )
    return all(goal.met for goal in goals(summary))


def first_step(modes: Sequence[Mapping[str, Any]], mode: str) -> int | None:
    """From which it was in force; None: it never was."""
    return next((m["step"] for m in modes if m["mode"] == mode), None)


@dataclass(frozen=True)
class Goal:
    met: bool
    text: str  # What was measured, and what was wanted.


def mode_order(summary: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(mode for mode, _ in groupby(m["mode"] for m in summary["modes"]))


def goals(summary: Mapping[str, Any]) -> list[Goal]:
    """What the demo promises, judged from its summary."""
    speedup, ceiling = summary["speedup"], summary["speedup_ceiling"]
    wanted = min(GOAL_SPEEDUP, GOAL_CEILING_SHARE * ceiling)
    apart = summary["accuracy_gap"]
    modes = mode_order(summary)
    return [
        Goal(speedup >= wanted, f"speed-up {speedup:.2f}, wanted {wanted:.2f} or more "
                                f"({ceiling:.2f} if communication were free)"),
        Goal(apart <= GOAL_ACCURACY,
             f"final accuracies {apart:.4f} apart, wanted {GOAL_ACCURACY:g} or less"),
        Goal(modes == GOAL_MODES,
             f"modes {', '.join(modes) or 'none'}, wanted {', '.join(GOAL_MODES)}"),
    ]  # fmt: skip


def table(summary: Mapping[str, Any]) -> list[str]:
    """What the demo prints of its summary, by lines."""
    ddp, ours, steps = summary["ddp"], summary["pactrain"], summary["steps"]
    rows = [
        ("", "plain DDP", "PacTrain"),
        ("steps", str(steps), str(steps)),
        ("seconds (training only)", f"{ddp['seconds']:.1f}", f"{ours['seconds']:.1f}"),
        (f"seconds to accuracy {summary['target_accuracy']:.3f}",
         f"{ddp['seconds_to_accuracy']:.1f}", f"{ours['seconds_to_accuracy']:.1f}"),
        ("final test accuracy", f"{ddp['accuracy']:.4f}", f"{ours['accuracy']:.4f}"),
    ]  # fmt: skip
    if ddp["link_bytes"] and ours["link_bytes"]:
        left, right = ([b for pair in run["link_bytes"] for b in pair] for run in (ddp, ours))
        for name, x, y in zip(("a > b", "b > a", "b > c", "c > b"), left, right, strict=True):
            rows.append((f"MB on link {name}", f"{x / 1e6:.1f}", f"{y / 1e6:.1f}"))
        elements = summary["parameters"] * steps
        rows.append(("bytes per weight, step, direction", f"{sum(left) / 4 / elements:.2f}",
                     f"{sum(right) / 4 / elements:.2f}"))  # fmt: skip
    lines = [f"  {name:<34}{left:>16}{right:>16}" for name, left, right in rows]
    lines.append(f"  plain DDP's buckets: {bucket_text(ddp['bucket_bytes'])}, torch's default")
    lines += ["", "  modes over time (PacTrain):"]
    for mode in summary["modes"]:
        lines.append(
            f"    from step {mode['step']:>4}: {mode['mode']} {mode['codec']} - {mode['reason']}"
        )
    if summary["risk"] is not None:
        lines += ["", f"  quantising cost r = {summary['risk']:.3f} of the effective batch, "
                      "as measured last"]  # fmt: skip
    lines += ["", "  goals:"]
    lines += [f"    {'met' if goal.met else 'NOT met'}: {goal.text}" for goal in goals(summary)]
    return lines


def plot(path: Path, ddp: Outcome, ours: Outcome, target: float) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.8), width_ratios=(2, 1))
    for outcome, name, color in ((ddp, "plain DDP", "#888888"), (ours, "PacTrain", "#1565c0")):
        seconds, accuracy = zip(*outcome.curve, strict=True)
        left.plot(seconds, accuracy, marker="o", markersize=3, label=name, color=color)
    left.axhline(target, color="#cccccc", linewidth=1, zorder=0)
    # Modes follow one another within seconds: beside their lines the words would overlap.
    words = [f"{mode['mode']} {mode['codec']} from {since:.1f} s"
             for since, mode in zip(ours.mode_seconds, ours.modes, strict=True)]  # fmt: skip
    for since in ours.mode_seconds:
        left.axvline(since, color="#1565c0", linewidth=0.8, linestyle=":", zorder=0)
    left.text(0.98, 0.22, "\n".join(words), ha="right", transform=left.transAxes, fontsize=8,
              color="#1565c0")  # fmt: skip
    left.set_xlabel("training seconds over two 100 Mbps links")
    left.set_ylabel("test accuracy")
    left.legend(frameon=False, loc="lower right")
    for offset, (outcome, color) in enumerate(((ddp, "#888888"), (ours, "#1565c0"))):
        flat = [b / 1e6 for pair in outcome.link_bytes or [(0, 0), (0, 0)] for b in pair]
        right.bar([i + 0.4 * offset for i in range(4)], flat, width=0.4, color=color)
    right.set_xticks([i + 0.2 for i in range(4)], ["a>b", "b>a", "b>c", "c>b"])
    right.set_ylabel("MB sent on each link")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{ddp.parameters / 1e6:.1f} M weights, 70 % pruned, 6 trainers in 3 sites")
    figure.tight_layout()
    figure.savefig(path, dpi=100, pil_kwargs={"optimize": True})
    pyplot.close(figure)
