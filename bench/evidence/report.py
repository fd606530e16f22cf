"""make report: docs/results.md and its plots from bench/results/evidence; ends with JSON.

python -m bench.evidence.report           from what is there
python -m bench.evidence.report --quick   step times of the headline rows are measured again
                                          (at 100 Mbps, make bench-exchange and report-times),
                                          steps as committed
RESULTS=FOLDER  steps from there, the page and its plots into it
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.evidence import checked, read_json, scale, step_times, tables, tuning
from bench.evidence.blocks import read_blocks
from bench.evidence.checked import DICT, NUMBER, one_of
from bench.evidence.experiment_tables import Experiments, Pieces, front, points
from bench.evidence.experiments import PIECES
from bench.evidence.figures import Evidence
from bench.evidence.gpu_workloads import TITLES as ON_GPU
from bench.evidence.many import read_many
from bench.evidence.methods import ROWS
from bench.evidence.runs import read_runs
from bench.evidence.scale_tables import title
from bench.evidence.shapes import NETWORKS
from bench.evidence.step_times_plan import TOPOLOGY
from bench.evidence.steps import (
    COMMITTED,
    FOLDER,
    PIECE,
    TARGET,
    read_pieces,
    read_starts,
    read_targets,
    shown,
)
from bench.evidence.times import RATES_MBPS
from bench.evidence.workloads import ROOT, WORKLOADS, ByteTransformer
from bench.topologies import topologies

DOCS = ROOT / "docs" if FOLDER == COMMITTED else FOLDER
QUICK_ROWS = "ddp-gloo,fp16,powersgd1,compacted-0.5,levels7-0.5"
# Ours and all of the headline's peers: of one machine, or their ratios mean little.
QUICK_TIMES = ("levels7-0.5", "exact-0.5", "powersgd1", "powersgd2", "powersgd4", "dgc_cold",
               "topk0.01", "paper", "hier_bf16", "fp16", "topk0.1", "ddp",
               "ddp_buckets")  # fmt: skip
QUICK_FOLDER = ROOT / "out" / "step-times"
SHOWN = ("ddp", "fp16", "paper", "powersgd1", "powersgd4", "dgc_cold", "topk0.01ef", "diloco30",
         "levels7", "exact-0.5", "levels7-0.5", "levels7-0.2")  # fmt: skip


Page = tuple[Evidence, Experiments, tables.AtScale]  # All that docs/results.md shows.


def read_experiments() -> Experiments:
    """With the transformer's rows at its own rate, which is most experiments'."""
    found = [_read_experiment(path) for path in sorted(PIECES.glob("*/*.json"))]
    rows = (p for p in read_pieces([ByteTransformer.name]) if p["rate_factor"] == 1.0)
    return {(piece["method"], piece["seed"]): piece for piece in (*found, *rows)}


def _read_experiment(path: Path) -> dict[str, Any]:
    own = {"method": one_of([path.stem.rpartition("-")[0]]), "test": NUMBER}
    return checked.read(path, PIECE | own | {"workload": one_of([path.parent.name])})


def read_figures(name: str) -> dict[str, Any]:
    path = ROOT / "bench" / "results" / f"{name}.json"
    if not path.exists():
        return {}
    found: dict[str, Any] = checked.read(path, {"figures": DICT})["figures"]
    return found


def read_evidence() -> Evidence:
    measured = {rate: found for rate in ("100mbit", "500mbit", "1gbit")
                if (found := read_figures(f"exchange-{rate}"))}  # fmt: skip
    rate = scale.read_speeds().encode / 1e9
    pieces, targets = read_pieces(), read_targets()
    for workload in sorted({piece["workload"] for piece in pieces} - set(targets)):
        raise ValueError(f"{shown(FOLDER / workload / TARGET)} is missing, allowed: one beside "
                         "the pieces. make report-steps fixes it once DDP's are there; of "
                         "committed ones restore it.")  # fmt: skip
    factors = tuning.best_factors(pieces, targets)
    taken, others = tuning.split(pieces, factors)
    elsewhere = {name: step_times.read_times(name) for name in topologies() if name != TOPOLOGY}
    return Evidence(taken, targets, topologies(), measured, rate, step_times.read_times(),
                    elsewhere, factors, others, read_starts(),
                    step_times.read_times(folder=step_times.READY_FOLDER))  # fmt: skip


def read_at_scale() -> tables.AtScale:
    return tables.AtScale(scale.read_testbed(), scale.read_speeds(), scale.read_scale(),
                          read_many(), read_blocks(), read_runs())  # fmt: skip


def read_all() -> Page:
    """ValueError: a file is missing or damaged; names it."""
    return read_evidence(), read_experiments(), read_at_scale()


def quick(evidence: Evidence) -> int:
    """Measures at 100 Mbps what the page's formula stands on; the exit status of that.

    At the paper's shapes, too; files of `make report-times` stay as they are. What could not be
    measured stays as it was, and is said.
    """
    environment = os.environ | {"RATE": "100mbit", "ROWS": QUICK_ROWS, "ROUNDS": "2"}
    done = subprocess.run([sys.executable, "-m", "bench.exchange"], cwd=ROOT, env=environment)
    if done.returncode == 0:
        found = read_json(ROOT / "out" / "bench-exchange.json")
        evidence.measured = {**evidence.measured, "100mbit": found}
    status = step_times.measure(list(NETWORKS), QUICK_TIMES, RATES_MBPS[:1], True, QUICK_FOLDER,
                                ready=True, quick=True)  # fmt: skip
    evidence.ready = step_times.renewed(evidence.ready, step_times.read_times(folder=QUICK_FOLDER))
    if done.returncode or status:
        print("report-quick: not all was measured again; of the rest the committed stand",
              file=sys.stderr)  # fmt: skip
    return done.returncode or status


def plot(evidence: Evidence, workload: str, path: Path) -> None:
    """Scores over steps, and over what those steps sent."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), sharey=True)
    for method in SHOWN:
        seeds = evidence.seeds(workload, method)
        if not seeds:
            continue
        piece = evidence.pieces[workload, method, seeds[0]]
        steps, scores = zip(*piece["curve"], strict=True)
        sent = [step * piece["bytes_per_element"] for step in steps]
        number = SHOWN.index(method)  # Ten colours: what is over goes dashed.
        look = {"color": f"C{number % 10}", "linestyle": "-" if number < 10 else "--",
                "linewidth": 2.2 if ROWS[method].ours else 1.2}  # fmt: skip
        left.plot(steps, scores, label=ROWS[method].title, **look)
        right.plot(sent, scores, **look)
    if workload in evidence.targets:
        for axes in (left, right):
            axes.axhline(
                evidence.targets[workload]["target"], color="k", linewidth=0.8, linestyle=":"
            )
    left.set_xlabel("steps")
    right.set_xlabel("bytes per element on the busiest link, all steps so far")
    right.set_xscale("log")
    left.set_ylabel(f"held-out score, {evidence.targets.get(workload, {}).get('unit', '')}")
    left.legend(frameon=False, fontsize=7)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def plot_amounts(pieces: Pieces, path: Path) -> None:
    """Nats lost over bytes: each amount, exact and in levels, and the front of both."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = points(pieces)
    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    for codec, words in (("exact", "exact"), ("levels7", "7 levels")):
        own = [point for point in found if point.codec == codec]
        axes.plot([p.bytes_per_element for p in own], [p.gap for p in own], "o-", label=words)
        for point in own:
            axes.annotate(f"{1 - point.keep:g}", (point.bytes_per_element, point.gap),
                          textcoords="offset points", xytext=(5, 5), fontsize=8)  # fmt: skip
    best = sorted(front(found), key=lambda point: point.bytes_per_element)
    axes.plot([p.bytes_per_element for p in best], [p.gap for p in best], "k:", label="front")
    axes.set_xscale("log")
    axes.set_xlabel("bytes per element on the busiest link (beside each point: amount pruned)")
    axes.set_ylabel("nats above DDP")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def plot_scale(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Seconds per step over workers: lines by formula, dots simulated."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(11, 4.2), sharey=True)
    for axes, shape in zip(panels, scale.SHAPES, strict=True):
        for number, name in enumerate(scale.ROWS):
            own = [row for row in rows if (row["shape"], row["row"]) == (shape, name)]
            workers = [row["workers"] for row in own]
            axes.plot(workers, [row["formula"] for row in own], color=f"C{number}",
                      label=title(name))  # fmt: skip
            axes.plot(workers, [row["simulated"] for row in own], "o", color=f"C{number}")
        axes.set_title(f"{shape} of sites, {scale.RATE_MBPS:g} Mbps: lines formula, dots simulated",
                       fontsize=9)  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("workers")
        ticks = sorted({row["workers"] for row in rows})
        axes.set_xticks(ticks, [str(tick) for tick in ticks], fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("seconds per step, ResNet18")
    panels[0].legend(frameon=False, fontsize=7, loc=(0.05, 0.25))
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def write_pages(found: Page) -> None:
    pages = {"results.md": page(*found), "when-it-helps.md": tables.when_page(*found[:2])}
    for name, text in pages.items():
        if FOLDER != COMMITTED:
            title, rest = text.split("\n", 1)
            text = (f"{title}\n\n**Steps are of trainings in {FOLDER}. Seconds per step, real runs "
                    f"and scale are the committed ones, of other machines.**\n{rest}")  # fmt: skip
            text = text.replace("](gpu.md", f"]({ROOT / 'docs/gpu.md'}")
        (DOCS / name).write_text(text)
        print(f"written: {shown(DOCS / name)}")


def page(evidence: Evidence, experiments: Experiments, at_scale: tables.AtScale) -> str:
    titles = {name: getattr(make, "title", name) for name, make in WORKLOADS.items()} | ON_GPU
    return tables.page(evidence, titles, experiments, at_scale)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="bench.evidence.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--quick", action="store_true", help="measure headline rows' step times again"
    )
    options = parser.parse_args(argv)
    try:
        evidence, experiments, at_scale = read_all()
    except ValueError as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    if not evidence.pieces:
        print(f"report: no training is in {FOLDER}, allowed: one or more. Run make report-steps "
              f"with the same RESULTS.", file=sys.stderr)  # fmt: skip
        return 2
    status = quick(evidence) if options.quick else 0
    (DOCS / "images").mkdir(parents=True, exist_ok=True)
    for workload in evidence.workloads():
        plot(evidence, workload, DOCS / "images" / f"results-{workload}.png")
    plot_amounts(Pieces(experiments), DOCS / "images" / "results-amounts.png")
    if at_scale.simulated:
        plot_scale(at_scale.simulated, DOCS / "images" / "results-scale.png")
    write_pages((evidence, experiments, at_scale))
    if options.quick:
        print(f"The pages of {shown(DOCS)} have this machine's times now; "
              "`git checkout docs` brings back the committed.")  # fmt: skip
    print(tables.last_line(evidence))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
