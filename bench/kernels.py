"""make bench-kernels: the kernels beside memcpy and what a user would write in torch.

One thread, 24 Mi fp32 elements, random masks; the codec in frames of 16,384 Gaussian
elements. bench/kernels_benchmark.cc measures, in repetitions of which the order is drawn
anew each time; the figures are medians of the thread's own CPU time (of two threads: of
the time that passed). "/ memcpy" is traffic
over memcpy's: bytes that an operation has to read and write (its mask's bits too), per
second. Prints a table and, as its last line, the figures as JSON; keeps them in
out/bench-kernels.json. Figures of what this CPU lacks are null. Exit status 1 if a goal
is missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench.cluster import ROOT
from bench.processes import interrupt_on_signals
from bench.spread import spread

MEMCPY = ("memcpy", "memcpy")
# Key: the least that it should be. The others are only reported.
GOALS = {
    "compact_vs_memcpy_avx512_0.5": 0.95,
    "compact_vs_memcpy_avx512_0.1": 0.95,
    "compact_vs_memcpy_avx2_0.5": 0.85,
    "compact_vs_memcpy_avx2_0.1": 0.85,
    "expand_vs_memcpy_avx512_0.5": 0.95,
    "expand_vs_memcpy_avx512_0.1": 0.95,
    "expand_vs_memcpy_avx2_0.5": 0.85,
    "expand_vs_memcpy_avx2_0.1": 0.85,
    "compact_vs_torch_masked_select": 15.0,
    "encode7_gb_per_s": 2.0,
    "decode7_gb_per_s": 4.0,
}


@dataclass(frozen=True)
class Row:
    milliseconds: float
    gb_per_s: float
    spread: dict[str, float] = field(default_factory=dict)  # Of gb_per_s.


Rows = dict[tuple[str, str], Row]  # By operation and who does it.


def build() -> Path:
    """The benchmark, where Bazel put it."""
    script = (
        "source tools/bazel_env && run_bazel build //bench:kernels_benchmark >&2 && "
        "run_bazel info bazel-bin 2>/dev/null"
    )
    done = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    return Path(done.stdout.strip()) / "bench" / "kernels_benchmark"


def run(program: Path, repetitions: int) -> tuple[Rows, dict[str, str]]:
    """All rows, and what the benchmark says of itself (Figures)."""
    with tempfile.TemporaryDirectory(prefix="pactrain-kernels-") as folder:
        out = Path(folder) / "rows.json"
        command = [
            str(program),
            f"--benchmark_repetitions={repetitions}",
            "--benchmark_enable_random_interleaving=true",
            "--benchmark_min_time=0.05",
            f"--benchmark_out={out}",
            "--benchmark_out_format=json",
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        report = json.loads(out.read_text())
    times: dict[tuple[str, str], list[tuple[float, float]]] = {}
    # As they were registered; they ran in another order.
    for entry in sorted(report["benchmarks"], key=lambda entry: entry["family_index"]):
        if entry["run_type"] != "iteration":
            continue
        operation, who, *clock = entry["run_name"].split("/")  # Or by the thread's.
        time = entry["real_time" if clock else "cpu_time"]
        times.setdefault((operation, who), []).append((time, entry["bytes_per_second"] / 1e9))
    rows = {
        key: Row(
            median(t for t, _ in samples),
            median(b for _, b in samples),
            spread([b for _, b in samples]),
        )
        for key, samples in times.items()
    }
    return rows, report["context"]


class Figures:
    """The rows, by instruction set.

    `context` names the variant that the kernels choose here, "best_variant", and how many
    bits a Gaussian element takes in n levels, "bits7".
    """

    def __init__(self, rows: Rows, context: Mapping[str, str]) -> None:
        self._rows = rows
        self._context = context
        self._best = context["best_variant"]

    def of(self, operation: str, instructions: str) -> Row | None:
        """Of the variants of one instruction set the one that the kernels choose."""
        found = {
            who: row
            for (name, who), row in self._rows.items()
            if name == operation and who.startswith(instructions)
        }
        return found.get(self._best) or next(iter(found.values()), None)

    def best(self, operation: str) -> Row:
        row = self.of(operation, self._best.partition("-")[0])
        assert row is not None
        return row

    def vs_memcpy(self, operation: str, instructions: str) -> float | None:
        row = self.of(operation, instructions)
        return None if row is None else row.gb_per_s / self._rows[MEMCPY].gb_per_s

    def vs_torch(self, operation: str, torch: str) -> float:
        return self._rows[operation, torch].milliseconds / self.best(operation).milliseconds

    def all(self) -> dict[str, float | str | None]:
        figures: dict[str, float | str | None] = {"best_variant": self._best}
        figures["memcpy_gb_per_s"] = self._rows[MEMCPY].gb_per_s
        for operation in ("compact", "compact_and_count", "expand", "expand_divide"):
            for instructions in ("avx512", "avx2"):
                for keep in ("0.5", "0.1", "0.01"):
                    figures[f"{operation}_vs_memcpy_{instructions}_{keep}"] = self.vs_memcpy(
                        f"{operation} {keep}", instructions
                    )
        for form in ("register", "memory"):
            figures[f"compact_vs_memcpy_avx512_{form}_0.5"] = self.vs_memcpy(
                "compact 0.5", f"avx512-{form}"
            )
        figures["compact_vs_torch_masked_select"] = self.vs_torch(
            "compact 0.5", "torch.masked_select"
        )
        figures["compact_vs_torch_masked_select_0.1"] = self.vs_torch(
            "compact 0.1", "torch.masked_select"
        )
        figures["expand_vs_torch_masked_scatter"] = self.vs_torch(
            "expand 0.5", "torch.masked_scatter"
        )
        for levels in (3, 5, 7, 15, 31):
            for operation in ("encode", "decode"):
                row = self.best(f"{operation} {levels}")
                figures[f"{operation}{levels}_gb_per_s"] = row.gb_per_s
            figures[f"bits{levels}"] = float(self._context[f"bits{levels}"])
        figures["sum4_two_threads_vs_one"] = (
            self._rows["sum of 4", "2 threads"].gb_per_s / self.best("sum of 4").gb_per_s
        )
        return figures


def missed(figures: dict[str, float | str | None]) -> list[str]:
    """The goals that are not met; what is not there misses none."""
    return [
        key
        for key, goal in GOALS.items()
        if isinstance(value := figures[key], float) and value < goal
    ]


def print_table(rows: Rows, figures: dict[str, float | str | None]) -> None:
    memcpy = rows[MEMCPY].gb_per_s
    print(f"\n  {'operation':<24}{'by':<22}{'ms':>9}{'GB/s':>9}{'/ memcpy':>10}")
    last = ""
    for (operation, who), row in rows.items():
        shown = "" if operation == last else operation
        last = operation
        print(f"  {shown:<24}{who:<22}{row.milliseconds:>9.2f}{row.gb_per_s:>9.2f}"
              f"{row.gb_per_s / memcpy:>10.2f}")  # fmt: skip
    print(f"\n  {'figure':<34}{'goal':>8}{'here':>9}")
    for key, goal in GOALS.items():
        value = figures[key]
        here = f"{value:>9.2f}" if isinstance(value, float) else "  null: this CPU has no such"
        print(f"  {key:<34}{goal:>8.2f}{here}")
    print()


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.kernels", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=7)
    options = parser.parse_args(argv)
    interrupt_on_signals()
    try:
        rows, context = run(build(), options.repetitions)
    except KeyboardInterrupt:
        print("bench-kernels: interrupted", file=sys.stderr)
        return 130
    figures = Figures(rows, context).all()
    print_table(rows, figures)
    misses = missed(figures)
    if misses:
        print(f"  goals missed: {', '.join(misses)}\n")
    unknown = [key for key in GOALS if figures[key] is None]
    result = {
        **figures,
        "repetitions": options.repetitions,
        "not_measured": ",".join(unknown),  # This CPU has no such instructions.
        "met": not misses and not unknown,
        "rows": [
            {"operation": operation, "by": who, "gb_per_s": row.spread}
            for (operation, who), row in rows.items()
        ],
    }
    (ROOT / "out").mkdir(exist_ok=True)
    (ROOT / "out" / "bench-kernels.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 0 if not misses else 1  # What cannot be measured here misses nothing.


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
