"""A device for torch that needs no GPU, as `torch.device("queued")`: see queued_device.cc.

It is compiled when it is first asked for (10 s of g++), and kept under out/.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NAME = "queued"
_SOURCE = Path(__file__).with_name("queued_device.cc")
_ROOT = Path(__file__).resolve().parents[2]
_BUILT = _ROOT / "out" / "device"
_DRIVER = ("trainer/cuda/fake_driver.cc", "kernels/cuda/on_cpu.cc")
_NCCL = ("trainer/nccl/fake_nccl.cc",)
_NCCL_READS = ("trainer/nccl/fake_nccl.h", "trainer/nccl/api.h")
_DRIVER_READS = ("trainer/cuda/fake_driver.h", "kernels/cuda/on_cpu.h", "kernels/cuda/kernels.cu")


@functools.cache
def use() -> ctypes.CDLL:
    """From now on this process has the device. Idempotent."""
    torch.utils.rename_privateuse1_backend(NAME)
    library = build()
    torch.ops.load_library(str(library))
    loaded = ctypes.CDLL(str(library))
    loaded.queued_host_waits.restype = ctypes.c_uint64
    loaded.queued_limit_pinned.argtypes = [ctypes.c_int64]
    for call in (loaded.queued_set_capturing, loaded.queued_break):
        call.argtypes = [ctypes.c_bool]
    torch._register_device_module(NAME, _module())
    return loaded


def host_waits(device: int = 0) -> int:
    """How often the host waited for what the default stream had not done."""
    return int(use().queued_host_waits(device))


@contextlib.contextmanager
def pinned_limit(size: int) -> Iterator[None]:
    """In here what is larger does not fit."""
    use().queued_limit_pinned(size)
    try:
        yield
    finally:
        use().queued_limit_pinned(-1)


@contextlib.contextmanager
def capturing() -> Iterator[None]:
    """In here each stream says that it is being captured."""
    use().queued_set_capturing(True)
    try:
        yield
    finally:
        use().queued_set_capturing(False)


@contextlib.contextmanager
def broken() -> Iterator[None]:
    """In here each call fails, as after a kernel's illegal access."""
    use().queued_break(True)
    try:
        yield
    finally:
        use().queued_break(False)


def move(module: torch.nn.Module, place: str) -> torch.nn.Module:
    """As `module.to(place)` of a CUDA device: its parameters stay the same objects. This device's
    own to() makes new ones."""
    use()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.device.type == place:
                continue
            gradient = parameter.grad
            parameter.grad = None
            torch.ops.queued.set_data(parameter, parameter.detach().to(place))
            if gradient is not None:
                parameter.grad = gradient.to(place)
        for buffer in module.buffers():
            torch.ops.queued.set_data(buffer, buffer.to(place))
    return module


class OneDevice(TorchDispatchMode):
    """In it an operator refuses tensors of two devices, as on a GPU."""

    COPIES = ("copy_", "_to_copy", "set_data")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        values = tree_leaves((args, kwargs))
        found = {v.device.type for v in values if isinstance(v, torch.Tensor) and v.dim()}
        if len(found) > 1 and not any(word in str(func) for word in self.COPIES):
            raise RuntimeError(f"{func} of {sorted(found)}")
        return func(*args, **(kwargs or {}))


def signal_there(number: int) -> None:
    """This process gets the signal once the device comes to it in the current stream."""
    use().queued_signal_there(number)


def _module() -> Any:
    module: Any = types.ModuleType(f"torch.{NAME}")
    module.is_available = lambda: True
    module.is_initialized = lambda: True
    module.device_count = lambda: 2
    module.device = lambda device: torch.accelerator.device_index(device.index)
    module.current_device = torch._C._accelerator_getDeviceIndex
    module._is_in_bad_fork = lambda: False
    module.get_rng_state = lambda device: torch.get_rng_state()
    module.set_rng_state = lambda state, device: torch.set_rng_state(state)
    module.manual_seed_all = lambda seed: None
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float32]
    return module


@functools.cache
def use_driver() -> ctypes.CDLL:
    """From now on the kernels of the trainer library run in the streams of the device, by a
    stand-in for NVIDIA's driver."""
    # Whoever opens libcuda.so.1 after this gets this one, by the name that it has.
    driver = ctypes.CDLL(str(build_driver()))
    enqueue = ctypes.cast(use().queued_enqueue, ctypes.c_void_p)
    driver.pactrain_fake_enqueue_by(enqueue)
    has_context = ctypes.cast(use().queued_has_context, ctypes.c_void_p)
    driver.pactrain_fake_context_by(has_context)
    return driver


@functools.cache
def use_nccl() -> ctypes.CDLL:
    """From now on this process has an NCCL, as if torch had loaded it: a stand-in, which sums
    among processes of this machine. What goes wrong in it FAKE_NCCL says
    (trainer/nccl/fake_nccl.h)."""
    nccl = ctypes.CDLL(str(build_nccl()))
    query = ctypes.cast(nccl.pactrain_fake_nccl_query, ctypes.c_void_p)
    use_driver().pactrain_fake_query_by(query)
    return nccl


def build() -> Path:
    """Compiled once for each torch and source, by whichever process comes first."""
    folder = Path(torch.__file__).parent
    includes = (folder / "include", folder / "include/torch/csrc/api/include")
    libraries = (f"-L{folder / 'lib'}", "-ltorch_cpu", "-ltorch", "-lc10")
    flags = [*(f"-isystem{path}" for path in includes), *libraries]
    return _built("queued_device", [_SOURCE], [], [str(_SOURCE), *flags])


def build_driver() -> Path:
    """The same, of the stand-in for libcuda.so.1."""
    sources = [_ROOT / name for name in _DRIVER]
    reads = [_ROOT / name for name in _DRIVER_READS]
    flags = [f"-I{_ROOT}", "-Wl,-soname,libcuda.so.1"]
    return _built("fake_cuda", sources, reads, [*map(str, sources), *flags])


def build_nccl() -> Path:
    """The same, of the stand-in for libnccl.so.2."""
    sources = [_ROOT / name for name in _NCCL]
    reads = [_ROOT / name for name in _NCCL_READS]
    flags = [f"-I{_ROOT}", "-Wl,-soname,libnccl.so.2", "-lrt", "-pthread"]
    return _built("fake_nccl", sources, reads, [*map(str, sources), *flags])


def _built(name: str, sources: list[Path], reads: list[Path], arguments: list[str]) -> Path:
    text = b"".join(path.read_bytes() for path in (*sources, *reads))
    key = hashlib.sha256(text + torch.__version__.encode()).hexdigest()[:16]
    library = _BUILT / f"{name}-{key}.so"
    _BUILT.mkdir(parents=True, exist_ok=True)
    with (_BUILT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _compile(library, arguments)
    return library


def _compile(library: Path, arguments: list[str]) -> None:
    new = library.with_suffix(".new")
    command = ["g++", "-std=c++20", "-O0", "-g0", "-fPIC", "-shared", "-o", str(new), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr)
        raise RuntimeError(f"{library.name} was not compiled: {' '.join(command)}")
    new.rename(library)
