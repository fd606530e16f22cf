"""Steps to accuracy of the paper's networks in their real sizes, on a machine with a GPU.

  python3 -m bench.evidence.gpu                         all that is missing, for 9 minutes
  python3 -m bench.evidence.gpu --processes=6           so many runs side by side
  python3 -m bench.evidence.gpu --try                   two steps of each, to see that it runs
  python3 -m bench.evidence.gpu --images=FOLDER         ResNet-50 on train/ and val/ of that folder

It runs from a checkout, or from the folder that `make report-gpu` packed, with the torch that is
there. When its time is over it puts away what it is at, and ends with exit status 3; the same
command goes on there, with the same bits on a CPU. Each (workload, method, seed) leaves a file in
bench/results/evidence/WORKLOAD, for `make report` to take when it is copied there. Ends with a
line of JSON. Exit status 0: nothing is missing any more; 1: a process died; 2:
something is refused.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.evidence import chosen, numbers
from bench.evidence.gpu_workloads import (
    IMAGES,
    METHODS,
    NETWORK_OF,
    ImageFolder,
    RealCifar,
    names_of,
)
from bench.evidence.methods import ROWS
from bench.evidence.steps import (
    FOLDER,
    SEEDS,
    Piece,
    RunPieces,
    piece_path,
    run_missing,
    run_workload,
)
from bench.evidence.train import Run
from bench.evidence.workloads import ROOT, Place, Stopped, Vision, Workload

LEAST_MINUTES, MOST_MINUTES = 2.0, 24 * 60.0
MOST_PROCESSES = 64
SAVING_SECONDS = 45.0  # What a step, an evaluation and putting away ResNet152 may take.


def find_device(text: str) -> torch.device:
    """ValueError: it is not there, or of another kind."""
    try:
        device = torch.device(text)
    except RuntimeError:
        raise ValueError(f"device = '{text[:20]}', allowed: cuda, cuda:N or cpu") from None
    if device.type == "cpu":
        torch.set_num_threads(1)  # The same bits whatever the machine has.
        return device
    if device.type != "cuda":
        raise ValueError(f"device = '{text[:20]}', allowed: cuda, cuda:N or cpu")
    if not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without it"
        raise ValueError(
            f"device = {text}, but torch {torch.__version__} ({built}) sees no GPU. Run it on a "
            "machine with an NVIDIA GPU, or give --device=cpu, which takes days."
        )
    if (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device = {text}, allowed: below cuda:{torch.cuda.device_count()}")
    torch.backends.cudnn.deterministic = True
    return device


def find_names(images: str, asked: str) -> list[str]:
    """Workloads. FileNotFoundError: their images are missing; ValueError: one is unknown."""
    if images:
        return chosen("workloads", asked or IMAGES, [IMAGES])
    if not os.environ.get("PACTRAIN_DATA") and (ROOT / "data").is_dir():
        os.environ["PACTRAIN_DATA"] = str(ROOT / "data")
    if asked:
        return chosen("workloads", asked, NETWORK_OF)
    folder = os.environ.get("PACTRAIN_DATA", "")
    found = names_of(Path(folder)) if folder else []
    if not found:
        raise FileNotFoundError(
            f"PACTRAIN_DATA='{folder}' has no CIFAR, allowed: a folder with cifar10_train.npz and "
            "cifar10_test.npz, or cifar100_*.npz. Or give --images=FOLDER."
        )
    return found


def make(name: str, images: str, place: Place, small: bool) -> Vision:
    if name == IMAGES:
        return ImageFolder(Path(images), place, small)
    return RealCifar(name, place, small)


def try_all(workloads: Iterable[Vision], methods: Sequence[str]) -> dict[str, Any]:
    """Two steps of each; leaves nothing behind."""
    seconds: dict[str, dict[str, float]] = {}
    for workload in workloads:
        for method in methods:
            run = Run(workload, method, 1, None)
            begun = time.monotonic()
            while not run.done:
                run.step()
            seconds.setdefault(workload.name, {})[method] = round(time.monotonic() - begun, 2)
            print(f"{workload.name} {method}: {run.result()['elements']:,} elements, two steps and "
                  f"scores in {seconds[workload.name][method]} s", flush=True)  # fmt: skip
            del run
        workload.pretrain_path().unlink(missing_ok=True)
    return {"tried": seconds}


@dataclass(frozen=True)
class Opening:
    """What a process needs to have a workload of its own."""

    name: str
    images: str
    device: str
    until: float
    small: bool = False


_own: Vision  # Of a process that runs pieces.


def open_own(opening: Opening) -> None:
    global _own
    place = Place(find_device(opening.device), opening.until)
    torch.set_num_threads(1)
    _own = make(opening.name, opening.images, place, opening.small)


def run_own(piece: Piece) -> str:
    """Where it was when time was over, or nothing."""
    if time.monotonic() > _own.place.until:
        return f"{_own.name} {piece[0]}-{piece[1]}: not begun"
    try:
        run_missing(_own, *piece)
    except Stopped as stop:
        return str(stop)
    return ""


@contextlib.contextmanager
def side_by_side(opening: Opening, processes: int) -> Iterator[RunPieces]:
    """One run alone leaves a GPU idle between its kernels. Stopped: all of them are put away."""
    context = multiprocessing.get_context("spawn")  # CUDA takes no fork.
    with ProcessPoolExecutor(processes, context, open_own, (opening,)) as pool:

        def run(_: Workload, pieces: Iterable[Piece]) -> None:
            at = [where for where in pool.map(run_own, pieces) if where]
            if at:
                raise Stopped("; ".join(at))

        yield run


def run_all(
    names: Sequence[str],
    workloads: Iterable[Vision],
    methods: Sequence[str],
    seeds: Sequence[int],
    options: argparse.Namespace,
) -> dict[str, Any]:
    stopped = None
    try:
        for workload in workloads:
            if options.processes == 1:
                run_workload(workload, methods, seeds, tune=False)
                continue
            opening = Opening(workload.name, options.images, options.device, workload.place.until)
            with side_by_side(opening, options.processes) as run:
                run_workload(workload, methods, seeds, tune=False, run=run)
    except Stopped as stop:
        stopped = str(stop)
    except BrokenProcessPool:
        raise ChildProcessError(
            f"one of {options.processes} processes was ended from outside, maybe for want of "
            "memory. What had ended is kept. Run the same command again, with fewer --processes."
        ) from None
    paths = [piece_path(name, method, seed) for name in names for method in {"ddp", *methods}
             for seed in seeds]  # fmt: skip
    return {"pieces": sum(path.exists() for path in paths), "of": len(paths), "stopped_at": stopped,
            "results": str(FOLDER)}  # fmt: skip


def main(argv: Sequence[str]) -> int:
    began = time.monotonic()
    parser = argparse.ArgumentParser(
        prog="bench.evidence.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workloads", default="", help=f"of {', '.join(NETWORK_OF)}")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--minutes", type=float, default=9.0, help="of this call")
    parser.add_argument("--processes", type=int, default=1, help="runs side by side")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument(
        "--images", default="", metavar="FOLDER", help="untested at ImageNet's size"
    )
    parser.add_argument("--try", dest="small", action="store_true", help="two steps of each")
    options = parser.parse_args(argv)
    try:
        if not LEAST_MINUTES <= options.minutes <= MOST_MINUTES:
            raise ValueError(f"minutes = {options.minutes:g}, allowed: {LEAST_MINUTES:g} to "
                             f"{MOST_MINUTES:g}")  # fmt: skip
        if not 1 <= options.processes <= MOST_PROCESSES:
            raise ValueError(f"processes = {options.processes}, allowed: 1 to {MOST_PROCESSES}")
        if options.small and options.processes > 1:
            raise ValueError("--try goes one after the other; leave out --processes")
        until = began + 60 * options.minutes - SAVING_SECONDS
        place = Place(find_device(options.device), until)
        methods = chosen("methods", options.methods, ROWS)
        seeds = numbers("seeds", options.seeds)
        names = find_names(options.images, options.workloads)
        found = (make(name, options.images, place, options.small) for name in names)
        last = (try_all(found, methods) if options.small
                else run_all(names, found, methods, seeds, options))  # fmt: skip
    except (FileNotFoundError, ImportError, ValueError) as error:
        print(f"report-gpu: {error}", file=sys.stderr)
        return 2
    except ChildProcessError as error:
        print(f"report-gpu: {error}", file=sys.stderr)
        return 1
    print(json.dumps(last | {"device": options.device, "seconds": round(time.monotonic() - began)}))
    return 3 if last.get("stopped_at") else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
