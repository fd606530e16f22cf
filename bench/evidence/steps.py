"""make report-steps: steps to the target, one JSON per workload, method and seed.

What is there already is not run again, so the command may be stopped and go on. DDP comes
first; when all its seeds are there the target is fixed, once and for all, and only then other
methods run. Pieces lie in bench/results/evidence, each target beside its workload's. `--tune` runs
each method with half and twice the rate as well, on the first seed; other seeds run with the
best, and with the workload's own where some ran with that already.

  python -m bench.evidence.steps --workloads=transformer --methods=ddp,levels7-0.5 --seeds=1,2,3
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bench.evidence import checked, chosen, numbers
from bench.evidence.checked import (
    AMOUNT,
    COUNT,
    CURVE,
    DICT,
    NUMBER,
    POSITIVE,
    SCORE,
    SHARE,
    TEXT,
    Fields,
)
from bench.evidence.gpu_workloads import TITLES as ON_GPU
from bench.evidence.methods import ROWS
from bench.evidence.train import Run
from bench.evidence.tuning import (
    FACTORS,
    FIRST_SEED,
    named_factor,
    steps_to_beat,
)
from bench.evidence.workloads import (
    OUT,
    ROOT,
    WORKLOADS,
    Vision,
    Workload,
    digest_of,
    keep_state,
)
from bench.machine import processor

COMMITTED = ROOT / "bench" / "results" / "evidence"
FOLDER = (ROOT / os.environ["RESULTS"]).resolve() if os.environ.get("RESULTS") else COMMITTED
# Beside a workload's pieces: what is to be reached, and what pre-training made.
TARGET, START = "target.json", "start.json"
WEIGHTS = "start.pt"  # These themselves, of small networks: other machines begin with them, too.
MOST_WEIGHT_BYTES = 8 << 20
SEEDS = (1, 2, 3, 4, 5)
SAY_SECONDS = 30.0
# Of a piece, of a target and of what pre-training made: what those who read them need.
PIECE = {"workload": TEXT, "method": TEXT, "seed": COUNT, "rate_factor": POSITIVE, "curve": CURVE,
         "steps": COUNT, "steps_run": COUNT, "test": SCORE, "keep": SHARE,
         "bytes_per_element": AMOUNT, "risk": SCORE, "cpu_seconds": AMOUNT, "machine": TEXT,
         "versions": DICT}  # fmt: skip
TARGET_FIELDS = {"target": NUMBER, "ddp_finals": DICT, "below": NUMBER, "unit": TEXT}
START_FIELDS = {"held_out": NUMBER, "test": NUMBER, "weights": TEXT, "machine": TEXT}


def refuse_own_results(why: str) -> None:
    """ValueError: RESULTS names a folder."""
    if FOLDER != COMMITTED:
        raise ValueError(f"RESULTS = {FOLDER}, allowed: none: {why}")


def shown(path: Path) -> Path:
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def piece_path(workload: str, method: str, seed: int, rate_factor: float = 1.0) -> Path:
    tuned = "" if rate_factor == 1.0 else f"@{rate_factor:g}"
    return FOLDER / workload / f"{method}{tuned}-{seed}.json"


def read_beside(name: str, fields: Fields) -> dict[str, Any]:
    """By workload. ValueError: one is damaged; names it."""
    return {path.parent.name: checked.read(path, fields)
            for path in sorted(FOLDER.glob(f"*/{name}"))}  # fmt: skip


def note_beside(workload: Workload, name: str, noted: dict[str, Any]) -> None:
    path = FOLDER / workload.name / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(noted, indent=1) + "\n")


def read_targets() -> dict[str, Any]:
    return read_beside(TARGET, TARGET_FIELDS)


def read_starts() -> dict[str, Any]:
    return read_beside(START, START_FIELDS)


def adopt_start(workload: Workload) -> None:
    """The weights that lie beside its pieces, where they do. ValueError: they are not the noted."""
    path = FOLDER / workload.name / WEIGHTS
    if not path.exists():
        return
    try:
        state: dict[str, torch.Tensor] = torch.load(path, "cpu", weights_only=True)
    except Exception as error:  # Whatever its bytes make the unpickler do.
        raise ValueError(f"{shown(path)} is damaged ({str(error)[:80]}), allowed: the weights that "
                         f"{START} notes. Restore it, or remove it.") from error  # fmt: skip
    noted = read_starts().get(workload.name, {"weights": "none"})
    if (weights := _weights_of(state)) != noted["weights"]:
        raise ValueError(f"{shown(path)} holds weights {weights}, allowed: those that {START} "
                         f"notes, {noted['weights']}. Restore it, or remove it.")  # fmt: skip
    workload.adopt(state, noted.get("cpu_seconds", 0.0))


def _weights_of(state: Mapping[str, torch.Tensor]) -> str:
    return digest_of(*(tensor.cpu().numpy().tobytes() for tensor in state.values()))


def check_start(workload: Workload) -> None:
    """ValueError: what it has begun from is not what this machine pre-trains to.

    The first time that is noted: libraries add up in another order on other processors and GPUs.
    So small networks' weights are kept beside it, and taken from there.
    """
    adopt_start(workload)
    state = workload.pretrained(print)
    weights = _weights_of(state)
    starts, kept = read_starts(), FOLDER / workload.name / WEIGHTS
    if workload.name not in starts:
        note_beside(workload, START, _note_of(workload, state, weights))
    elif weights != (noted := starts[workload.name])["weights"]:
        raise ValueError(
            f"{workload.name} is pre-trained to weights {weights} here, allowed: "
            f"{noted['weights']}, which its rows began from on {noted['machine']}: seeds "
            "are pairs only from the same weights. Run them on such a machine. Or begin "
            "results of your own, with their own target: RESULTS=../my-results before this "
            "command, and before what reads them, such as make report."
        )
    if not kept.exists() and sum(one.nbytes for one in state.values()) <= MOST_WEIGHT_BYTES:
        keep_state(kept, state)


def _note_of(workload: Workload, state: dict[str, torch.Tensor], weights: str) -> dict[str, Any]:
    model = workload.make_model()
    model.load_state_dict(state)
    model.to(workload.place.device)
    note = {
        "held_out": workload.score(model, test=False),
        "test": workload.score(model, test=True),
        "weights": weights,
        "machine": machine(workload),
    }
    if isinstance(workload, Vision):
        note["cpu_seconds"] = round(workload.pretraining_seconds(), 1)
    return note


def read_pieces(workloads: Iterable[str] = (*WORKLOADS, *ON_GPU)) -> list[dict[str, Any]]:
    """Of all methods, seeds and factors of the rate; a target lies beside them.

    ValueError: as read_piece().
    """
    paths = [path for name in workloads for path in sorted((FOLDER / name).glob("*-*.json"))]
    pieces = [read_piece(path) for path in paths]
    first: dict[str, dict[str, Any]] = {}
    for path, piece in zip(paths, pieces, strict=True):
        other = first.setdefault(piece["workload"], piece)
        if piece["steps"] != other["steps"]:
            raise ValueError(
                f"{shown(path)}: steps = {piece['steps']}, allowed: {other['steps']}, "
                "as its workload's other pieces. Remove it to run it again."
            )
    return pieces


def read_piece(path: Path) -> dict[str, Any]:
    """ValueError: the file is no piece, or that of another name; names it."""
    piece = checked.read(path, PIECE)
    own = piece_path(piece["workload"], piece["method"], piece["seed"], piece["rate_factor"])
    if own != path:
        raise ValueError(f"{shown(path)} holds the piece of {shown(own)}, allowed: its own. "
                         "Remove the file to run it again.")  # fmt: skip
    if piece["method"] not in ROWS:
        raise ValueError(f"{shown(path)}: method '{piece['method'][:30]}', "
                         f"allowed: {', '.join(ROWS)}")  # fmt: skip
    return piece


def fix_target(workload: Workload, seeds: Sequence[int]) -> float:
    """From DDP alone; what was fixed once stays. ValueError: a seed of DDP is missing."""
    targets = read_targets()
    if workload.name not in targets:
        finals = {}
        for seed in seeds:
            path = piece_path(workload.name, "ddp", seed)
            if not path.exists():
                raise ValueError(f"{shown(path)} is missing; allowed: a target from "
                                 f"all of DDP's seeds. Run --methods=ddp first.")  # fmt: skip
            finals[seed] = read_piece(path)["curve"][-1][1]
        mean = sum(finals.values()) / len(finals)
        targets[workload.name] = {
            "target": mean - workload.target_below,
            "ddp_finals": finals,
            "below": workload.target_below,
            "unit": workload.score_unit,
        }
        note_beside(workload, TARGET, targets[workload.name])
    return float(targets[workload.name]["target"])


def run_piece(run: Run, path: Path) -> None:
    """Stopped: time is over; the run is put away, and the same call takes it up again.

    ValueError: what was put away is of another run.
    """
    away = OUT / "runs" / run.workload.name / f"{path.stem}.pt"
    if away.exists():
        take_up(run, away)
    started = time.monotonic()
    said = started
    while not run.done:
        run.workload.place.check_time(
            lambda: keep_state(away, run.state()),
            f"{run.workload.name} {path.stem}: step {run._step} of {run.steps}",
        )
        run.step()
        if time.monotonic() - said > SAY_SECONDS:
            said = time.monotonic()
            print(
                f"  {path.stem}: step {run._step} of {run.steps}, {said - started:.0f} s",
                flush=True,
            )
    result = run.result() | {"versions": versions(), "machine": machine(run.workload)}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(result) + "\n")
    partial.replace(path)
    away.unlink(missing_ok=True)
    test = result["test"]
    end = f"cannot win after {result['steps_run']} steps" if test is None else f"test {test:.3f}"
    print(f"{shown(path)}: {end}, {result['cpu_seconds']} CPU s", flush=True)


def take_up(run: Run, away: Path) -> None:
    try:
        run.restore(torch.load(away, run.workload.place.device, weights_only=True))
    except ValueError as error:
        raise ValueError(f"{away} is of another run: {error}. Remove it to begin anew.") from error
    print(f"  {run.workload.name} {away.stem}: goes on at step {run._step}", flush=True)


def machine(workload: Workload) -> str:
    device = workload.place.device
    if device.type == "cpu":
        return processor()
    return f"{torch.cuda.get_device_name(device)}; {processor()}"


def versions() -> dict[str, str]:
    """Of a folder that was packed the commit is written down (tools/pack_report_gpu.py)."""
    packed = ROOT / "COMMIT"
    if packed.exists():
        return {"torch": torch.__version__, "commit": packed.read_text().strip()}
    done = subprocess.run(["git", "rev-parse", "--short=10", "HEAD"], cwd=ROOT,
                          capture_output=True, text=True)  # fmt: skip
    return {"torch": torch.__version__, "commit": done.stdout.strip() or "unknown"}


def fits(workload: Workload, method: str) -> bool:
    return ROWS[method].only in ("", workload.optimizer)


def run_missing(
    workload: Workload,
    method: str,
    seed: int,
    target: float | None,
    factor: float = 1.0,
    beat: int | None = None,
) -> None:
    path = piece_path(workload.name, method, seed, factor)
    if not path.exists():
        run_piece(Run(workload, method, seed, target, factor, beat=beat), path)


def read_method(workload: Workload, method: str) -> list[dict[str, Any]]:
    return [piece for piece in read_pieces([workload.name]) if piece["method"] == method]


# A method, a seed, the target and a factor of the rate: arguments of run_missing().
Piece = tuple[str, int, float | None, float]
RunPieces = Callable[[Workload, Iterable[Piece]], None]


def run_each(workload: Workload, pieces: Iterable[Piece]) -> None:
    for piece in pieces:
        run_missing(workload, *piece)


def pieces_of(
    workload: Workload, methods: Sequence[str], seeds: Sequence[int], target: float, tune: bool
) -> Iterator[Piece]:
    """Method by method: `tune` runs its factors, and all seeds go with the named one; with 1, too,
    where later seeds ran with that already: then both have equal seeds, whichever is best."""
    for method in ["ddp", *(m for m in methods if m != "ddp")]:
        if not fits(workload, method):
            print(f"{workload.name}: {method} goes with {ROWS[method].only} only; left out")
            continue
        for factor in FACTORS if tune else ():
            beat = steps_to_beat(read_method(workload, method), target)
            run_missing(workload, method, FIRST_SEED, target, factor, beat)
        for factor in factors_of(workload, method, target):
            yield from ((method, seed, target, factor) for seed in seeds)


def factors_of(workload: Workload, method: str, target: float) -> list[float]:
    own = read_method(workload, method)
    factors = [named_factor(own, target) or 1.0]
    if any(p["rate_factor"] == 1.0 and p["seed"] != FIRST_SEED for p in own):
        factors.append(1.0)
    return list(dict.fromkeys(factors))


def run_workload(
    workload: Workload,
    methods: Sequence[str],
    seeds: Sequence[int],
    tune: bool,
    run: RunPieces = run_each,
) -> None:
    """DDP's seeds, the target, then method by method."""
    check_start(workload)
    if workload.name not in read_targets():
        run(workload, [("ddp", seed, None, 1.0) for seed in seeds])
    target = fix_target(workload, seeds)
    run(workload, pieces_of(workload, methods, seeds, target, tune))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="bench.evidence.steps",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--methods", default=",".join(ROWS))
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument(
        "--tune", action="store_true", help=f"rates times {FACTORS} on seed {FIRST_SEED}"
    )
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    try:
        workloads = chosen("workloads", options.workloads, WORKLOADS)
        methods = chosen("methods", options.methods, ROWS)
        seeds = numbers("seeds", options.seeds)
        for name in workloads:
            run_workload(WORKLOADS[name](), methods, seeds, options.tune)
    except (FileNotFoundError, ValueError) as error:
        print(f"report-steps: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
