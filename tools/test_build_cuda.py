"""What `make build-cuda` says of a compilation."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

TOOL = runpy.run_path(str(Path(__file__).with_name("build_cuda.py")))
summary, CudaError = TOOL["summary"], TOOL["CudaError"]
NVCC = "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 13.0, V13.0.88\n"


def compiled(kernel: str, architecture: int, spilled: int = 0) -> str:
    return (
        f"ptxas info    : Compiling entry function '{kernel}' for 'sm_{architecture}'\n"
        f"    0 bytes stack frame, {spilled} bytes spill stores, 0 bytes spill loads\n"
    )


LOG = "".join(compiled(kernel, a) for kernel in ("b", "a") for a in (80, 120))


def test_it_names_compiler_architectures_and_kernels() -> None:
    assert summary(NVCC, LOG, 7) == {
        "nvcc": "13.0.88",
        "architectures": [80, 120],
        "kernels": ["a", "b"],
        "spills": 0,
        "fatbin_bytes": 7,
    }


@pytest.mark.parametrize(
    ("nvcc", "log", "words"),
    [
        ("none: no nvcc of CUDA 13.0 or newer (.cuda: has none)\n", LOG, "none: no nvcc"),
        (NVCC, LOG + compiled("c", 80), "incomplete; missing: .*'c', '120'"),
        (NVCC, "", "incomplete"),
        (NVCC, LOG + compiled("a", 80, spilled=8), "8 bytes of registers are spilled"),
    ],
)
def test_what_is_not_as_shipped_is_an_error(nvcc: str, log: str, words: str) -> None:
    with pytest.raises(CudaError, match=words):
        summary(nvcc, log, 7)
