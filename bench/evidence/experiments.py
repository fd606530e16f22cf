"""make report-experiments: what amount, criterion, start and noise do, on the transformer; and
how far the narrow ResNet-9 comes in a long run.

(b) amounts by magnitude, exact and in 7 levels; other criteria at 0.8. (d) From random weights,
masks at once and after the warm-up. (e) The same noise with and without a mask. And levels on a
star of five sites, where more agents encode than in the chain. A long run is of one seed; its rate
falls to 0. Each is a row
like those of methods.py, with pieces of its own in bench/results/evidence/experiments; rows that
they are compared with are steps.py's, at the workload's own rate. What is there is not run again.

  python -m bench.evidence.experiments --seeds=1,2,3
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from bench.evidence import chosen, numbers
from bench.evidence.codec import Tree
from bench.evidence.methods import LAYOUT, ROWS, Agents, Ddp, Method, Row, Setup, diloco
from bench.evidence.steps import FOLDER, check_start, fix_target, run_missing, run_piece
from bench.evidence.train import WARM_UP, Run, kept_or_all
from bench.evidence.workloads import ByteTransformer, Resnet9Cifar, Workload
from bench.exchange_layout import all_reduce_bytes
from bench.topologies import topologies
from pactrain.types import Codec

SEEDS = (1, 2, 3)
COMPARED = ("ddp", "levels7", "exact-0.5", "levels7-0.5", "exact-0.2", "levels7-0.2")
PIECES = FOLDER / "experiments"
KEEPS = (1.0, 0.5, 0.3, 0.2, 0.1)
FROM_RANDOM = 2  # As many steps as from pre-trained weights.
OUTER_MOMENTA = (0.9, 0.5, 0.3)  # Of DiLoCo: its authors', and less.
LONG, LONGER = 8, 16  # As many as others.
RISKS = (1.0, 4.0)
STAR = Tree(topologies()["star"].layout.sites, (-1, 0, 0, 0, 0))  # Of its roots the first.


class Noise(Method):
    """The exact mean, and Gaussian noise of a given risk r on what is kept: its square is r
    times the variance of the batch's mean there, whatever the mask."""

    def __init__(self, setup: Setup, risk: float, kept: Tensor | None) -> None:
        super().__init__(setup)
        self._risk, self._kept = risk, kept

    def exchange(self, gradients: Tensor, step: int) -> tuple[Tensor, float]:
        workers, elements = gradients.shape
        kept = kept_or_all(self._kept, elements)
        rows = gradients[:, kept]
        mean = gradients.mean(0)
        variance = float((rows - rows.mean(0)).square().sum()) / (workers - 1) / workers
        deviation = math.sqrt(self._risk * variance / len(kept))
        drawn = torch.randn(len(kept), generator=self.setup.generator(step, 91))
        mean[kept] += deviation * drawn
        return mean, all_reduce_bytes(LAYOUT, 4 * len(kept))


@dataclass(frozen=True)
class Variant:
    """A row of an experiment; `group` names the experiment."""

    group: str
    row: Row
    workload: type[Workload] = ByteTransformer
    seeds: tuple[int, ...] = SEEDS


def _sent(codec: Codec, keep: float, title: str, **changed: object) -> Row:
    return Row(title, lambda setup, kept: Agents(setup, codec, kept), keep, ours=True,
               **changed)  # type: ignore[arg-type]  # fmt: skip


def _criterion(title: str, **how: str) -> Variant:
    return Variant("criteria", _sent(Codec.LEVELS7, 0.2, title, prune=how))


def _noise(risk: float, keep: float) -> Variant:
    words = f"keep {keep:g}" if keep < 1 else "no mask"
    return Variant("noise", Row(f"noise of r = {risk:g}, {words}",
                                lambda setup, kept: Noise(setup, risk, kept), keep))  # fmt: skip


def _on_star(keep: float) -> Variant:
    words = f"keep {keep:g}" if keep < 1 else "no mask"
    return Variant("sites", Row(f"7 levels, {words}, star of five",
                                lambda setup, kept: Agents(setup, Codec.LEVELS7, kept, STAR),
                                keep, ours=True))  # fmt: skip


def variants() -> dict[str, Variant]:
    found: dict[str, Variant] = {}
    for keep in (0.3, 0.1):
        found[f"exact-{keep:g}"] = Variant(
            "amounts", _sent(Codec.FP32, keep, f"exact, keep {keep:g}")
        )
        found[f"levels7-{keep:g}"] = Variant(
            "amounts", _sent(Codec.LEVELS7, keep, f"7 levels, keep {keep:g}")
        )
    found["erk"] = _criterion("magnitude, Erdos-Renyi shares", scope="erk")
    found["global"] = _criterion("magnitude of all layers together", scope="global")
    found["grasp"] = _criterion("GraSP", method="grasp")
    found["random"] = _criterion("random", method="random")
    found["freeze"] = _criterion("magnitude, the rest frozen as it is", kind="freeze")
    start = {"random_start": True, "steps": FROM_RANDOM}
    found["fresh-ddp"] = Variant(
        "fresh", Row("DDP", lambda setup, kept: Ddp(setup), random_start=True, steps=FROM_RANDOM)
    )
    for codec, name in ((Codec.FP32, "exact"), (Codec.LEVELS7, "levels7")):
        words = "exact" if name == "exact" else "7 levels"
        found[f"fresh-{name}-0.5"] = Variant(
            "fresh", _sent(codec, 0.5, f"{words}, keep 0.5, masks from the start", **start)
        )
        found[f"fresh-{name}-0.5-late"] = Variant(
            "fresh",
            _sent(codec, 0.5, f"{words}, keep 0.5, masks after the warm-up", mask_at=WARM_UP,
                  **start),
        )  # fmt: skip
    for risk in RISKS:
        for keep in (1.0, 0.5, 0.2):
            found[f"noise{risk:g}-{keep:g}"] = _noise(risk, keep)
    for keep in (1.0, 0.5):
        found[f"star-{keep:g}"] = _on_star(keep)
    for name, own, times in (("long-ddp", "ddp", LONG), ("long-levels7-0.5", "levels7-0.5", LONG),
                             ("longer-ddp", "ddp", LONGER)):  # fmt: skip
        row = replace(ROWS[own], steps=times, decays=True)
        found[name] = Variant("long", row, Resnet9Cifar, SEEDS[:1])
    for momentum in OUTER_MOMENTA:
        found[f"outer-{momentum:g}"] = Variant(
            "outer", diloco(30, momentum), Resnet9Cifar, SEEDS[:1]
        )
    return found


VARIANTS = variants()


def piece_path(name: str, seed: int) -> Path:
    return PIECES / VARIANTS[name].workload.name / f"{name}-{seed}.json"


def run_variant(name: str, workload: Workload, seed: int) -> None:
    path, row = piece_path(name, seed), VARIANTS[name].row
    if not path.exists():
        run_piece(Run(workload, name, seed, None, steps=row.steps * workload.steps, row=row), path)


def run_compared(workload: Workload, seeds: Sequence[int]) -> None:
    """Rows that the experiments are held to."""
    target = fix_target(workload, SEEDS)
    for seed in seeds:
        for name in COMPARED:
            run_missing(workload, name, seed, target)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="bench.evidence.experiments",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--names", default=",".join(VARIANTS))
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    try:
        names = chosen("names", options.names, VARIANTS)
        seeds = numbers("seeds", options.seeds)
        for make in dict.fromkeys(VARIANTS[name].workload for name in names):
            workload = make()
            check_start(workload)
            if make is ByteTransformer:
                run_compared(workload, seeds)
            for name in names:
                for seed in seeds:
                    if VARIANTS[name].workload is make and seed in VARIANTS[name].seeds:
                        run_variant(name, workload, seed)
    except (FileNotFoundError, ValueError) as error:
        print(f"report-experiments: {error}", file=sys.stderr)
        return 2
    return 0


assert not set(VARIANTS) & set(ROWS), "pieces of both would have one name"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
