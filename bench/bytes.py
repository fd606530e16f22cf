"""make bench-bytes: what FULL puts on the narrow links, counted at the interface.

Three sites in a chain, two trainers each, integer gradients, no compute. An exact sum
needs 4 bytes per element on each link in each direction (a flat ring of six: 6.7). Prints
a table and, as its last line, the figures as JSON; keeps them in out/bench-bytes.json.
Needs root for network namespaces. Exit status 1 over the goal.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from bench.cluster import ROOT, start_cluster
from bench.launch import difference, events, start_trainers
from bench.processes import Children, ProcessError, interrupt_on_signals
from bench.spread import spread
from bench.testbed import Link, NamespaceTestbed, why_no_namespaces

GOAL = 1.1 * 4  # Bytes per element, step and direction.
LINKS = [Link("a", "b", 100), Link("b", "c", 100)]


def measure(elements: int, steps: int) -> tuple[list[tuple[int, int]], float]:
    """Bytes per link and direction for all steps, and the seconds they took."""
    with (
        tempfile.TemporaryDirectory(prefix="pactrain-bytes-") as name,
        NamespaceTestbed({"a": 1, "b": 1, "c": 1}, LINKS) as bed,
        Children(Path(name)) as children,
    ):
        cluster = start_cluster(bed, children, Path(name), bed.hosts[1], risk="exact")
        argv = ["-m", "bench.bytes_train", f"--elements={elements}", f"--steps={steps}"]
        first = start_trainers(bed, children, "bytes", argv, [2] * len(bed.hosts), cluster)
        before: list[tuple[int, int]] | None = None
        for event in events(first, children):
            if event["event"] == "start":
                before = bed.link_bytes()
            if event["event"] == "done":
                moved = difference(before, bed.link_bytes())
                assert moved is not None
                return moved, event["seconds"]
        raise first.error("ended without a result")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.bytes", description=__doc__)
    parser.add_argument("--elements", type=int, default=2_000_000)
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args(argv)
    interrupt_on_signals()
    why = why_no_namespaces()
    if why is not None:
        print(f"bench-bytes needs shaped network namespaces: {why}", file=sys.stderr)
        return 1
    try:
        moved, seconds = measure(options.elements, options.steps)
    except ProcessError as error:
        print(f"bench-bytes failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench-bytes: interrupted", file=sys.stderr)
        return 130
    total = options.elements * options.steps
    print(f"FULL fp32, {options.elements:,} elements, {options.steps} steps, sums checked; "
          f"{seconds / options.steps:.2f} s a step on 100 Mbps links\n")  # fmt: skip
    print(f"  {'link':<8}{'bytes':>16}{'bytes per element':>20}{'goal':>8}")
    rows = []
    for link, pair in zip(LINKS, moved, strict=True):
        for name, sent in ((f"{link.a} > {link.b}", pair[0]), (f"{link.b} > {link.a}", pair[1])):
            rows.append({"link": name, "bytes": sent, "bytes_per_element": sent / total})
            print(f"  {name:<8}{sent:>16,}{sent / total:>20.3f}{GOAL:>8.2f}")
    worst = max(sent for pair in moved for sent in pair) / total
    result = {
        "elements": options.elements,
        "steps": options.steps,
        "seconds_per_step": seconds / options.steps,
        "rows": rows,
        "spread": spread([row["bytes_per_element"] for row in rows]),  # Over the directions.
        "worst_bytes_per_element": worst,
        "goal": GOAL,
        "met": worst <= GOAL,
    }
    (ROOT / "out").mkdir(exist_ok=True)
    (ROOT / "out" / "bench-bytes.json").write_text(json.dumps(result, indent=1) + "\n")
    print()
    print(json.dumps(result))
    return 0 if result["met"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
