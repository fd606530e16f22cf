"""Puts the virtual workers, the trainer library and images into out/report-gpu: what `make
report-gpu` is for a machine with a GPU. Ends with the command to run there and a line of JSON.

PACTRAIN_DATA names the images. Without CIFAR-100 there, or where both are too large together,
it is left out, and how to add it is said.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "out" / "report-gpu"
PACKAGE = ROOT / "python_client" / "src" / "pactrain"
LIBRARY = "_native/libpactrain_trainer.so"
MODULE = "bench.evidence.gpu"
MOST_BYTES = 64_000_000
DATA = ("cifar10", "cifar100")
COMMAND = f"python3 -m {MODULE}"
# Prints the files below a folder that MODULE consists of, found by importing it.
LIST = f"""
import sys, {MODULE}
files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
print(*(file for file in files if file and file.startswith(sys.argv[1])), sep="\\n")
"""


def modules() -> list[Path]:
    """Files of bench/ that the script needs, packages' __init__.py too."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{PACKAGE.parent}"}
    done = subprocess.run([sys.executable, "-c", LIST, f"{ROOT / 'bench'}/"], check=True,
                          env=environment, stdout=subprocess.PIPE, text=True)  # fmt: skip
    return sorted(map(Path, done.stdout.split()))


def commit() -> str:
    done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short=10", "HEAD"],
                          stdout=subprocess.PIPE, text=True)  # fmt: skip
    return done.stdout.strip() or "unknown"


def begun() -> list[Path]:
    """Of workloads for a GPU: what the checkout has of their pieces."""
    from bench.evidence.gpu_workloads import TITLES
    from bench.evidence.steps import FOLDER as PIECES

    return [folder for name in TITLES if (folder := PIECES / name).is_dir()]


def data_files(folder: str, names: Sequence[str]) -> dict[str, list[Path]]:
    """Of each that is whole. SystemExit: none is."""
    files = {name: [Path(folder) / f"{name}_{part}.npz" for part in ("train", "test")]
             for name in names}  # fmt: skip
    found = {name: own for name, own in files.items() if all(file.is_file() for file in own)}
    if not folder or not found:
        raise SystemExit(
            f"PACTRAIN_DATA='{folder}' has none of {', '.join(names)}; allowed: a folder with "
            "cifar10_train.npz and cifar10_test.npz, or cifar100_*.npz.\nSet PACTRAIN_DATA."
        )
    return found


def size_of(paths: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def pack(data: str, target: Path, names: Sequence[str] = DATA) -> list[str]:
    """The data sets that are in it, in a folder that has no other files.

    Raises:
      SystemExit: no images, no library, or they are too large.
    """
    images = data_files(data, names)
    if not (PACKAGE / LIBRARY).is_file():
        raise SystemExit(f"{PACKAGE / LIBRARY} is missing.\nRun `make build`.")
    shutil.rmtree(target, ignore_errors=True)
    for file in modules():
        place = target / file.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)
    shutil.copytree(PACKAGE, target / "pactrain",
                    ignore=shutil.ignore_patterns("_native", "__pycache__"))  # fmt: skip
    library = target / "pactrain" / LIBRARY
    library.parent.mkdir()
    for file in (PACKAGE / LIBRARY, *(PACKAGE / LIBRARY).parent.glob("*.h")):
        shutil.copy(file, library.parent)
    subprocess.run(["strip", "--strip-debug", library], check=True)
    shutil.copy(ROOT / "LICENSE", target)
    (target / "COMMIT").write_text(f"{commit()}\n")
    for folder in begun():  # Goes on there: the same target, and weights that are checked.
        shutil.copytree(folder, target / "bench/results/evidence" / folder.name)
    (target / "data").mkdir()
    packed = []
    for name, own in images.items():
        size = size_of([*files_in(target), *own])
        if size <= MOST_BYTES:
            packed.append(name)
            for file in own:
                shutil.copy(file, target / "data")
    if not packed:
        raise SystemExit(f"{target} would have {size:,} bytes; allowed are {MOST_BYTES:,}.")
    return packed


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def left_out(data: str, packed: Sequence[str]) -> str:
    """Why, and how to add it."""
    missing = [name for name in DATA if name not in packed]
    if not missing:
        return ""
    name = missing[0]
    there = (Path(data) / f"{name}_train.npz").is_file()
    why = f"all would be over {MOST_BYTES:,} bytes" if there else "PACTRAIN_DATA has none"
    return (
        f"{name} is left out: {why}. To add it, put {name}_train.npz and {name}_test.npz into "
        f"data/ there\n(arrays: jpeg, offset, label; docs/gpu.md says more)"
        + (f", or pack it alone: make report-gpu DATA={name}" if there else "")
        + "."
    )


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="pack_report_gpu", description=__doc__)
    parser.add_argument("--data", default=",".join(DATA), help=f"of {', '.join(DATA)}")
    names = parser.parse_args(argv).data.split(",")
    for name in names:
        if name not in DATA:
            raise SystemExit(f"DATA has '{name[:20]}', allowed: {', '.join(DATA)}")
    sys.path[:0] = [str(ROOT), str(PACKAGE.parent)]
    from bench.evidence.gpu_workloads import METHODS, NETWORK_OF

    folder = os.environ.get("PACTRAIN_DATA", "")
    packed = pack(folder, FOLDER, names)
    if words := left_out(folder, packed):
        print(words)
    print(f"Copy {FOLDER} to a machine with an NVIDIA GPU, torch and PIL, and run in it:")
    print(f"  {COMMAND} --try   # Two steps of each, to see that it runs.")
    print(f"  while {COMMAND}; [ $? = 3 ]; do :; done   # Nine minutes a call.")
    print("Then copy its bench/results/evidence/* into that of the checkout, and `make report`.")
    last = {
        "folder": str(FOLDER.relative_to(ROOT)),
        "megabytes": round(size_of(files_in(FOLDER)) / 1e6, 1),
        "workloads": [name for name in NETWORK_OF if name.split("-")[1] in packed],
        "methods": list(METHODS),
        "command": COMMAND,
    }
    print(json.dumps(last))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
