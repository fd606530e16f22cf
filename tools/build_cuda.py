"""make build-cuda: compiles the kernels for GPUs and says what came of it.

The last line is JSON, also in out/cuda/build.json:
{"nvcc": "13.0.88", "architectures": [80, ...], "kernels": [names], "spills": 0,
"fatbin_bytes": n}. Exit status 1 without nvcc, and if a kernel spills registers or lacks
an architecture. kernels/cuda:compiled_test looks at the PTX.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ("//kernels/cuda:kernels", "@cuda//:nvcc.txt")


class CudaError(Exception):
    """The kernels are not as they are shipped."""


def summary(nvcc: str, log: str, fatbin_bytes: int) -> dict[str, object]:
    """Of what `nvcc --version` and ptxas said.

    Raises:
      CudaError: there is no nvcc, a kernel spills, or not all have the same architectures.
    """
    version = re.search(r", V([\d.]+)", nvcc)
    if version is None:
        raise CudaError(nvcc.strip())
    compiled = re.findall(r"Compiling entry function '(\w+)' for 'sm_(\d+)'", log)
    kernels = sorted({name for name, _ in compiled})
    architectures = sorted({int(number) for _, number in compiled})
    missing = {(k, str(a)) for k in kernels for a in architectures} - set(compiled)
    if not kernels or missing or fatbin_bytes == 0:
        raise CudaError(f"the log of ptxas is incomplete; missing: {sorted(missing)}")
    spills = sum(int(n) for n in re.findall(r"(\d+) bytes spill (?:stores|loads)", log))
    if spills:
        raise CudaError(f"{spills} bytes of registers are spilled to memory:\n{log}")
    return {
        "nvcc": version[1],
        "architectures": architectures,
        "kernels": kernels,
        "spills": spills,
        "fatbin_bytes": fatbin_bytes,
    }


def bazel(words: str) -> str:
    """Standard output of `run_bazel WORDS`; what it has to tell goes to ours."""
    script = f"source tools/bazel_env; run_bazel {words}"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise CudaError(f"bazel ended with status {done.returncode}")
    return done.stdout


def main() -> None:
    try:
        bazel(f"build {' '.join(TARGETS)}")
        outputs = Path(bazel("info bazel-bin 2>/dev/null").strip()) / "kernels/cuda"
        external = Path(bazel("info output_base 2>/dev/null").strip()) / "external/cuda"
        found = summary(
            (external / "nvcc.txt").read_text(),
            (outputs / "kernels.log").read_text(),
            (outputs / "kernels.fatbin").stat().st_size,
        )
    except CudaError as error:
        sys.exit(f"build-cuda: {error}")
    line = json.dumps(found)
    target = ROOT / "out/cuda/build.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(line + "\n")
    print(line)


if __name__ == "__main__":
    main()
