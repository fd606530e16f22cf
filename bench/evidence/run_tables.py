"""The report's table of real trainings, one on each topology, and their goal. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from bench.evidence.experiment_tables import NOT_RUN, table
from bench.evidence.figures import OURS
from bench.evidence.goals import Goal
from bench.evidence.methods import ROWS
from bench.evidence.run_ratios import (
    MOST_OFF,
    Found,
    is_within,
    off,
    seconds_ratio,
    seconds_to_target,
    step_ratio,
    steps_ratio,
    summary,
)
from bench.evidence.runs import RATES_MBPS
from bench.figure_blocks import short
from bench.topologies import topologies

GOAL = f"within {100 * MOST_OFF:.0f} %"


def _title(row: str) -> str:
    return "PacTrain's FULL, for DDP's steps" if row == "ddp" else ROWS[row].title


def _line(found: Found) -> list[str]:
    rates = sorted({rate for both in found["link_mbps"] for rate in both})
    on_links = 1 - found["compute_seconds"] / found["simulated"]
    predicted = found["committed_steps"] * found["predicted"]
    start = [topologies()[found["topology"]].title, _title(found["row"]),
             " and ".join(f"{rate:g}" for rate in rates), f"{100 * on_links:.0f} %"]  # fmt: skip
    own, ratio = seconds_to_target(found), seconds_ratio(found)
    if own is None or ratio is None:
        return [*start, f"not reached / {found['committed_steps']}", *["-"] * 2,
                f"{predicted:.1f}", "-", "-"]  # fmt: skip
    return [*start, f"{found['steps']} / {found['committed_steps']}",
            f"{short(own / found['steps'])} / {short(found['predicted'])}",
            short(found["formula"]), f"{own:.1f} / {predicted:.1f}", f"{ratio:.2f}",
            "yes" if is_within(found) else "**no**"]  # fmt: skip


def runs_table(runs: Sequence[Found]) -> str:
    head = ["topology", "row", "links, Mbps", "of a step on links, predicted",
            "steps, real / virtual", "seconds per step, measured / predicted", "by formula",
            "seconds to the target, measured / predicted", "measured / predicted",
            GOAL]  # fmt: skip
    rows = [_line(found) for found in runs]
    there = {found["topology"] for found in runs if found["row"] == OURS}
    rows += [[topology.title, ROWS[OURS].title, *[NOT_RUN] * 8]
             for name, topology in topologies().items() if name not in there]  # fmt: skip
    return table(head, rows)


def runs_words(runs: Sequence[Found]) -> str:
    """On what, and how busy it was."""
    if not runs:
        return ""
    machines = "; ".join(sorted({found["machine"] for found in runs}))
    busy = [100 * found["processors_busy"] for found in runs]
    late = 100 * max(found["late_share"] for found in runs)
    commits = ", ".join(sorted({found["commit"] for found in runs}))
    equal = [found["row"] for found in runs if found.get("twin_is_equal")]
    twin = ("" if not equal else " With the step numbers of the chain's job, and elements in its "
            "bucket's order, virtual workers get the real curve bit for bit: "
            f"{', '.join(map(_title, equal))}.")  # fmt: skip
    return (f"{machines}, busy for {min(busy):.0f} to {max(busy):.0f} % of the time, with "
            "other work, too. Computing took longer than it may in at most "
            f"{late:.1f} % of rank 0's steps. Commit {commits}.{twin}")  # fmt: skip


def missing_words(runs: Sequence[Found]) -> str:
    """For the list of what was not run; nothing if all was."""
    there = {(found["row"], found["topology"]) for found in runs}
    said = []
    for row in RATES_MBPS:
        missing = [name for name in topologies() if (row, name) not in there]
        if missing:
            said.append(f"{_title(row)} ({', '.join(missing)})")
    return f" Of real trainings: {'; '.join(said)}." if said else ""


def formula_words(runs: Sequence[Found]) -> str:
    """What the formula alone had said, on which the tables of times to accuracy stand."""
    ratios = [(found, seconds_ratio(found, "formula")) for found in runs]
    far = [f"{found['topology']}, {_title(found['row'])}: {ratio:.2f} x"
           for found, ratio in ratios if ratio is not None and off(ratio) > MOST_OFF]  # fmt: skip
    if not far:
        return ""
    return ("**The formula alone, on which times to accuracy above stand, is outside for so small "
            f"a model.** Measured of what it says: {'; '.join(far)}.\n"
            "It leaves out what the first and last frames wait for, links that stand idle, "
            "and processors. The larger a network, the less that is.")  # fmt: skip


def runs_goals(runs: Sequence[Found]) -> list[Goal]:
    """Every topology has to have a run, and every run has to be near."""
    text = "a real training on each topology, against steps x"
    missing = set(topologies()) - {found["topology"] for found in runs if found["row"] == OURS}
    if not runs:
        return [Goal(f"{text} simulated seconds per step", GOAL, NOT_RUN, None)]
    parts = []
    for words, of in (("steps", steps_ratio), ("a step", step_ratio), ("seconds", seconds_ratio)):
        if ratios := [ratio for found in runs if (ratio := of(found)) is not None]:
            parts.append(f"{words} {min(ratios):.2f} to {max(ratios):.2f}")
    said = f"{len(runs)} runs: " + ("none arrived" if not parts else
        f"{', '.join(parts)} of what was said")  # fmt: skip
    outside = summary(runs)["outside"]
    if outside:
        said += f"; outside: {'; '.join(outside)}"
    if missing:
        said += f"; not run yet: {', '.join(sorted(missing))}"
    found = [Goal(f"{text} simulated seconds per step (fast cluster: measured ones)", GOAL, said,
                  False if outside else None if missing else True)]  # fmt: skip
    formula = [r for run in runs if (r := seconds_ratio(run, "formula")) is not None]
    if formula:
        near = not any(off(ratio) > MOST_OFF for ratio in formula)
        found.append(Goal(f"{text} seconds by the formula alone", GOAL,
                          f"{min(formula):.2f} to {max(formula):.2f} of what was said, of a model "
                          "so small that few frames make a step", near))  # fmt: skip
    return found
