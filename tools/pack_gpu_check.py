"""Puts the wheel and the script with its modules into out/gpu-check: what `make gpu-check` is
for a machine with a GPU. Ends with the command to run there and a line of JSON."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = "gpu_check.py"
MODULES = sorted((ROOT / "tests" / "device").glob("gpu_*.py"))  # The script is one of them.
MOST_BYTES = 64 << 20


def pack(wheels: Path, folder: Path) -> list[Path]:
    """The files, in a folder that has no others.

    Raises:
      SystemExit: there is not one wheel, or they are too large.
    """
    found = sorted(wheels.glob("*.whl"))
    if len(found) != 1:
        raise SystemExit(f"{wheels} has {len(found)} wheels; one is wanted.\nRun `make dist`.")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    packed = [Path(shutil.copy(file, folder)) for file in (found[0], *MODULES)]
    size = sum(file.stat().st_size for file in packed)
    if size > MOST_BYTES:
        raise SystemExit(f"{folder} has {size:,} bytes; allowed are {MOST_BYTES:,}.")
    return packed


def main() -> int:
    packed = pack(ROOT / "out" / "dist", ROOT / "out" / "gpu-check")
    wheel = packed[0]
    print(f"Copy {wheel.parent} to a machine with an NVIDIA GPU and torch, and run there:")
    print(f"  python3 {SCRIPT} {wheel.name}")
    size = sum(file.stat().st_size for file in packed)
    print(json.dumps({"files": [file.name for file in packed], "bytes": size}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
