"""make bench-memory: what memory a rank needs above one of plain DDP.

Two ranks on this machine train a network of WIDTH x WIDTH layers, 67 M weights by default:
by plain DDP, attached, attached after prune(0.7), and pruned after two steps; each time in
fresh processes. What is resident of rank 0 counts, with the pages that it shares with its
agent, in bytes of the parameters. Prints a table and, as its last line, the figures as
JSON; keeps them in out/bench-memory.json. Exit status 1 over a goal.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.cluster import ROOT
from bench.launch import events, start_trainers
from bench.memory_train import AMOUNT, LAYERS, ROWS
from bench.processes import Children, ProcessError, interrupt_on_signals
from bench.testbed import LoopbackTestbed

MIB = 1 << 20
COMPACTED_GOAL = 2 * (1 - AMOUNT) + 0.3
PEAK_GOALS = {"whole": 2.3, "pruned": 2.3, "late": 2.3}
STEADY_GOALS = {"whole": 2.3, "pruned": COMPACTED_GOAL, "late": COMPACTED_GOAL}

Parts = dict[str, tuple[int, int]]  # Bytes by part of a run: the most, at its end.


def measure(row: str, width: int, steps: int) -> Parts:
    """Of rank 0."""
    with (
        tempfile.TemporaryDirectory(prefix="pactrain-memory-") as name,
        LoopbackTestbed({"a": 1}, []) as bed,
        Children(Path(name)) as children,
    ):
        argv = ["-m", "bench.memory_train", f"--row={row}", f"--width={width}",
                f"--steps={steps}"]  # fmt: skip
        first = start_trainers(bed, children, f"memory-{row}", argv, [2], None)
        parts = in_parts(events(first, children))
        children.wait(60)
    return parts


def in_parts(found: Iterable[Mapping[str, Any]]) -> Parts:
    """One entry for lines of the same part: the highest peak, the last end."""
    parts: Parts = {}
    for event in found:
        peak, _ = parts.get(event["part"], (0, 0))
        parts[event["part"]] = (max(peak, event["peak"]), event["resident"])
    return parts


def figures(rows: Mapping[str, Parts], parameter_bytes: int) -> dict[str, Any]:
    """Above plain DDP, in bytes of the parameters."""
    peaks = {row: max(peak for peak, _ in parts.values()) for row, parts in rows.items()}
    ends = {row: parts["later steps"][1] for row, parts in rows.items()}

    def above(sizes: Mapping[str, int], row: str) -> float:
        return (sizes[row] - sizes["plain"]) / parameter_bytes

    peak_ratios = {row: above(peaks, row) for row in rows}
    steady_ratios = {row: above(ends, row) for row in rows}
    return {
        "parameter_bytes": parameter_bytes,
        "peak_ratio": peak_ratios["pruned"],
        "steady_ratio": steady_ratios["pruned"],
        "peak_ratios": peak_ratios,
        "steady_ratios": steady_ratios,
        "met": all(peak_ratios[row] <= goal for row, goal in PEAK_GOALS.items())
        and all(steady_ratios[row] <= goal for row, goal in STEADY_GOALS.items()),
        "bytes": {row: dict(parts) for row, parts in rows.items()},
    }


def table(rows: Mapping[str, Parts], result: Mapping[str, Any]) -> str:
    def line(title: str, cells: Iterable[str]) -> str:
        return f"  {title:<30}" + "".join(f"{cell:>16}" for cell in cells)

    def ratios(key: str, goals: Mapping[str, float]) -> Iterator[str]:
        for row, ratio in result[key].items():
            yield f"{ratio:.2f}" + (f" (of {goals[row]:.1f})" if row in goals else "")

    names = list(dict.fromkeys(part for parts in rows.values() for part in parts))
    lines = [line("MiB: most, at the end", rows)]
    for name in names:
        cells = (parts.get(name) for parts in rows.values())
        lines.append(line(name, ("-" if cell is None else f"{cell[0] // MIB:,}, {cell[1] // MIB:,}"
                                 for cell in cells)))  # fmt: skip
    lines.append(line("above plain: most (goal)", ratios("peak_ratios", PEAK_GOALS)))
    lines.append(line("above plain: at the end (goal)", ratios("steady_ratios", STEADY_GOALS)))
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.memory", description=__doc__)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=16)
    options = parser.parse_args(argv)
    interrupt_on_signals()
    try:
        rows = {row: measure(row, options.width, options.steps) for row in ROWS}
    except ProcessError as error:
        print(f"bench-memory failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench-memory: interrupted", file=sys.stderr)
        return 130
    elements = LAYERS * options.width**2
    result = {"elements": elements, **figures(rows, 4 * elements)}
    print(f"Two ranks, {elements:,} weights ({4 * elements // MIB:,} MiB), pruned by {AMOUNT}: "
          "what is resident of rank 0\n")  # fmt: skip
    print(table(rows, result), end="\n\n")
    (ROOT / "out").mkdir(exist_ok=True)
    (ROOT / "out" / "bench-memory.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 0 if result["met"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
