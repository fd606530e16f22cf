"""Models on an accelerator: their buckets travel through page-locked host memory.

By torch alone, so for each of its accelerators that has streams (CUDA, ROCm, XPU). In
the hook a bucket's copy to the host is enqueued on a stream of ours, behind what the
streams have done that accumulated its gradients; the hook waits for nothing. A thread
of ours waits for that copy and goes on as for a model on the CPU. The mean goes back on
our stream, in which the futures are completed: the streams of those that wait for them
wait for the copy, and not the host.

Where the trainer library's kernels are used (device_path.py), that copy is enqueued by
the thread, of what the masks in force keep: the kernels pack it before, and unpack the
mean (packing.py).

Our stream and the script's take turns: ours begins behind the gradients, and the
script's go on behind the futures. So each may use what the other has allocated.

Nothing here is called before a model on an accelerator is attached.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.futures import Future

from ._library import NativeSession
from .device_kernels import with_context
from .device_path import DevicePath
from .errors import PacTrainError, RefusedError
from .packing import Packer, Packing
from .types import Digest, DType, NodePath, PackedBucket

_WITHOUT_STREAMS = ("mps",)
_ALIGN = 64  # Bytes; each bucket starts so.
_CAPTURED = (
    "A backward pass of an attached model is being captured into a graph, which would "
    "repeat the copies of its gradients without an exchange.\n"
    "Capture the forward pass alone, or nothing that belongs to a step."
)


class Bucket(Protocol):
    """What a step consists of.

    `parts` are its gradients, one after the other, and `buffer` gets their mean. Both
    are of one dtype; parts may lie in the buffer.
    """

    def index(self) -> int: ...
    def parts(self) -> Sequence[Tensor]: ...
    def buffer(self) -> Tensor: ...
    def parameters(self) -> Sequence[Tensor]: ...
    def is_last(self) -> bool: ...


def accelerator_of(named: Iterable[tuple[str, Tensor]]) -> torch.device | None:
    """The one device of these parameters; None: the CPU.

    Raises:
      RefusedError: they are on several, on meta, or on one that has no streams.
    """
    places: dict[torch.device, str] = {}
    for name, parameter in named:
        places.setdefault(parameter.device, name)
    if len(places) > 1:
        found = ", ".join(f"{name} on {device}" for device, name in places.items())
        raise RefusedError(
            f"The model is spread over {len(places)} devices ({found}); allowed is one "
            "for all parameters that need a gradient.\nMove the model to one device."
        )
    device, name = next(iter(places.items()), (torch.device("cpu"), ""))
    if device.type == "cpu":
        return None
    if device.type == "meta":
        raise RefusedError(
            f"parameter {name} is on meta, where it has no values; allowed are the CPU "
            "and one accelerator.\nGive the model its weights, as with "
            "model.to_empty(device=...), and load or reset them."
        )
    if device.type in _WITHOUT_STREAMS or device.type != _accelerator():
        raise RefusedError(
            f"parameter {name} is on {device}; allowed are the CPU and one accelerator "
            "that has streams in torch (CUDA, ROCm, XPU).\nMove the model to one of "
            "them, or train with plain DDP."
        )
    return device


def check_works(device: torch.device) -> None:
    """Waits until the device has done what it was given before.

    Raises:
      PacTrainError: that has failed.
    """
    try:
        _streams().synchronize(device)
    except RuntimeError as error:
        raise _failed(device, "before the model was attached", error) from error


def _accelerator() -> str:
    """The kind of device that this torch has; older ones know CUDA and ROCm only."""
    if not hasattr(torch, "accelerator"):
        return "cuda"
    found = torch.accelerator.current_accelerator()
    return "" if found is None else str(found.type)


def _streams() -> Any:
    return getattr(torch, "accelerator", torch.cuda)


def _new_stream(device: torch.device) -> torch.Stream:
    if hasattr(torch, "accelerator"):
        return torch.Stream(device=device)
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _using(stream: torch.Stream) -> contextlib.AbstractContextManager[Any]:
    if hasattr(torch.Stream, "__enter__"):
        return stream
    return torch.cuda.stream(stream)  # type: ignore[arg-type]


_AFTER = "after the step, which other ranks have applied"


class DeviceCopies:
    """The way of one model's buckets to the host and back.

    The hook's thread calls note() and stage(), and a thread of the engine the rest.
    """

    def __init__(
        self,
        device: torch.device,
        parameters: Iterable[tuple[str, nn.Parameter]],
        path: DevicePath,
    ) -> None:
        """
        Raises:
          PacTrainError: there is not enough page-locked memory.
        """
        self._packs = path.kernels is not None
        size = sum(aligned(p.numel() * self._width(p)) for _, p in parameters)
        self._device = device
        self._side = _new_stream(device)
        nccl_stream = _new_stream(device) if path.name == "nccl" else None
        self.packer = Packer(path, device, self._side, nccl_stream)
        try:
            self._pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        except RuntimeError as error:
            raise PacTrainError(
                f"There is no page-locked host memory for the gradients of this model: "
                f"{size:,} bytes are wanted, {_free_host_memory()} "
                f"({_first_line(error)}).\nFree memory of "
                "the host, raise `ulimit -l` or the container's limit of memory, or "
                "train fewer ranks on this node."
            ) from error
        self._filled = 0  # Bytes, in this step.
        # Those that have accumulated a gradient in this step.
        self._noted: dict[torch.Stream, None] = {}

    def on_device(self) -> contextlib.AbstractContextManager[object]:
        """In here calls of the driver are about this device, in whichever thread."""
        return with_context(self._device)

    def _width(self, values: Tensor) -> int:
        """Bytes of page-locked memory for an element: what is packed is in fp32."""
        return 4 if self._packs else values.element_size()

    def begin_thread(self) -> None:
        """What the thread that calls this does from now on is in our stream."""
        _streams().set_stream(self._side)

    def new_future(self) -> Future[Tensor]:
        """Completed in our stream; whoever waits for it waits for that."""
        return Future(devices=[self._device])

    def note(self) -> None:
        """A gradient was accumulated in the stream of now."""
        self._noted[_streams().current_stream(self._device)] = None

    def wait(self, future: Future[Tensor]) -> Tensor:
        """What the future brings, in the stream of now.

        Raises:
          PacTrainError: that of the step; the device has failed since.
        """
        with _failures(self._device, _AFTER):
            return future.wait()

    def settle(self) -> None:
        """Waits for our stream: futures with an error have nobody wait for it."""
        with contextlib.suppress(RuntimeError):  # The step has an error already.
            self._side.synchronize()

    def stage(self, bucket: Bucket) -> StagedBucket:
        """Enqueues the copy to the host; never raises: errors come with the bucket."""
        packer = self.packer if self._packs else None
        staged = StagedBucket(self._device, bucket, packer)
        when = "before gradients were copied to the host"
        try:
            self._follow_script()
            when = "while gradients were copied to the host"
            self._take(bucket, staged)
        except PacTrainError as error:
            staged.error = error
        except RuntimeError as error:
            staged.error = _failed(self._device, when, error)
        if bucket.is_last():
            self._noted.clear()
        return staged

    def _follow_script(self) -> None:
        if _is_captured(self._device):
            raise RefusedError(_CAPTURED)
        self.note()
        self._follow(self._noted)

    def _take(self, bucket: Bucket, staged: StagedBucket) -> None:
        room = self._room(bucket)
        staged.room = room
        staged.host = room[: staged.target.nbytes].view(staged.target.dtype)
        with _using(self._side), torch.no_grad():
            for part in bucket.parts():
                part.record_stream(self._side)
                flat = part.detach().as_strided((part.numel(),), (1,))
                staged.gradients.append(flat)
            if not self._packs:
                staged.copy()

    def _follow(self, streams: Iterable[torch.Stream]) -> None:
        for stream in streams:
            self._side.wait_stream(stream)

    def _room(self, bucket: Bucket) -> Tensor:
        """Steps follow each other: each begins at the start again."""
        buffer = bucket.buffer()
        if bucket.index() == 0:
            self._filled = 0
        size = buffer.numel() * self._width(buffer)
        first, self._filled = self._filled, self._filled + aligned(size)
        return self._pinned[first : first + size]


class StagedBucket:
    """A bucket that has begun its way to the host; what its step works with.

    It is used by the thread that is in our stream.
    """

    def __init__(
        self, device: torch.device, bucket: Bucket, packer: Packer | None
    ) -> None:
        self._device = device
        self._packer = packer
        self._packing: Packing | None = None
        self._index, self._is_last = bucket.index(), bucket.is_last()
        self._parameters = bucket.parameters()
        self.target = bucket.buffer()  # On the device.
        self.gradients: list[Tensor] = []  # Flat; there and unchanged in the step.
        self.room = self.host = torch.empty(0)
        self._arrived: torch.Event | None = None
        self.error: PacTrainError | None = None

    def index(self) -> int:
        return self._index

    def is_last(self) -> bool:
        return self._is_last

    def parameters(self) -> Sequence[Tensor]:
        return self._parameters

    def buffer(self) -> Tensor:
        return self.host

    def check(self) -> None:
        """Raises what has failed in the hook."""
        if self.error is not None:
            raise self.error

    def copy(self) -> None:
        """Enqueues the copy of all gradients, in the stream of now."""
        first = 0
        for flat in self.gradients:
            piece = self.host[first : first + flat.numel()]
            piece.copy_(flat, non_blocking=True)
            first += flat.numel()
        self._note_arrival()

    def _note_arrival(self) -> None:
        self._arrived = _streams().current_stream(self._device).record_event()

    def _wait(self) -> None:
        assert self._arrived is not None
        self._arrived.synchronize()

    def parts(self) -> Sequence[Tensor]:
        """Waits until the gradients are there.

        Raises:
          PacTrainError: the device has failed.
        """
        with _failures(
            self._device, "while gradients were computed or copied to the host"
        ):
            if self._arrived is None:
                with torch.no_grad():
                    self.copy()
            self._wait()
        return [self.host]

    def pack(
        self, native: NativeSession, layout: Digest, dtype: DType
    ) -> PackedBucket | None:
        """Packs what the masks in force keep on the device, and for NCCL whole buckets,
        too; waits until it is here.

        None: all gradients are to be sent, from parts().

        Raises:
          PacTrainError: the device has failed.
        """
        if self._packer is None:
            return None
        with torch.no_grad():
            made = self._packer.pack(
                native, self._index, layout, self._in_one_piece, self.room
            )
        if made is None:
            return None
        packing, packed = made
        self._packing = packing
        with _failures(self._device, "while gradients were computed or packed"):
            self._note_arrival()
            self._wait()
            outside = packing.outside() if packing.plan.count_outside else 0
            path, squares = NodePath.HOST, 0.0
            if self._packer.reduces:
                path = self._packer.reduce(
                    native, self._index, layout, dtype, packing, packed, self.room
                )
                self._note_arrival()
                self._wait()
            if path != NodePath.HOST:
                squares = packing.squares()
            self._arrived = None
        return PackedBucket(
            self._index,
            self.target.numel(),
            packing.plan,
            outside,
            self.room.data_ptr(),
            dtype,
            self._fill,
            squares,
            path,
        )

    def _in_one_piece(self) -> Tensor:
        pieces = self.gradients
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _fill(self) -> None:
        """All gradients, for a step that became dense."""
        self.parts()

    def bring_back(self, dense: bool, world_size: int) -> None:
        """Enqueues the copy of the mean. `dense`: as the step was.

        Raises:
          PacTrainError: the device has failed.
        """
        with (
            _failures(self._device, _AFTER),
            torch.no_grad(),
        ):
            target = self.target.detach()
            if self._packing is None or dense:
                target.copy_(self.host, non_blocking=True)
            else:
                assert self._packer is not None
                self._packer.unpack(self._packing, self.room, world_size, target)


def _is_captured(device: torch.device) -> bool:
    stream = _streams().current_stream(device)
    if hasattr(stream, "is_capturing"):
        return bool(stream.is_capturing())
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


@contextlib.contextmanager
def _failures(device: torch.device, when: str) -> Iterator[None]:
    """What the device says in here is said to have come `when`."""
    try:
        yield
    except PacTrainError:
        raise  # The library's own.
    except RuntimeError as error:
        raise _failed(device, when, error) from error


def _failed(device: torch.device, when: str, error: Exception) -> PacTrainError:
    return PacTrainError(
        f"{device} failed {when}: {_first_line(error)}\nErrors of a device are "
        "reported late. Look for the call that it comes from, as with "
        "CUDA_LAUNCH_BLOCKING=1, and start this rank anew."
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [repr(error)])[0]


def _free_host_memory() -> str:
    lines = Path("/proc/meminfo").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    free = int(fields["MemAvailable"].split()[0]) * 1024
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    locked = "no limit" if limit == resource.RLIM_INFINITY else f"{limit:,} bytes"
    return f"{free:,} are free, and `ulimit -l` allows {locked}"


def aligned(size: int) -> int:
    """To where the next bucket may start."""
    return -(-size // _ALIGN) * _ALIGN
