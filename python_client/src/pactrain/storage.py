"""Storage order: how DDP lays the gradient of a parameter into a bucket.

A bucket holds each parameter's elements in the order of its memory, not of its
indices: a channels_last weight comes in NHWC order. Masks of buckets must follow.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # By bytes.
_DRAWN = 4096  # Places from which some are taken.
_LOOKED_AT = 1 << 16  # At a time, where none of these will do.


def is_dense(tensor: Tensor) -> bool:
    """True if the elements fill one gapless piece of memory, in any order.

    The same rule by which DDP chooses the order of a parameter in its bucket.
    """
    expected = 1
    dimensions = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted(item for item in dimensions if item[1] != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def bucket_strides(parameter: Tensor) -> tuple[int, ...]:
    """The strides of the parameter's piece of a bucket."""
    if is_dense(parameter):
        return tuple(parameter.stride())
    return tuple(torch.empty(parameter.shape, device="meta").stride())


def same_order(a: Tensor, b: Tensor) -> bool:
    """True if the elements of two tensors of one shape follow each other alike."""
    return same_strides(a.stride(), b.stride(), a.shape)


def same_strides(
    strides: Sequence[int], others: Sequence[int], shape: Sequence[int]
) -> bool:
    """Where a dimension has one element its stride is of no matter."""
    return strides == others or all(
        stride == other or size == 1
        for stride, other, size in zip(strides, others, shape, strict=True)
    )


def ordered(values: Tensor, parameter: Tensor) -> Tensor:
    """`values` (of the parameter's shape) in bucket order: themselves if they are."""
    strides = bucket_strides(parameter)
    if values.stride() == strides:
        return values
    made = torch.empty_strided(
        values.shape, strides, dtype=values.dtype, device=values.device
    )
    return made.copy_(values)


def flatten(values: Tensor, parameter: Tensor) -> Tensor:
    """The same as a 1-D tensor, which may be a view."""
    return ordered(values, parameter).as_strided((parameter.numel(),), (1,))


def unflatten(flat: Tensor, parameter: Tensor) -> Tensor:
    """The reverse of flatten(): a new tensor with the parameter's shape, where the
    parameter is."""
    made = torch.empty_strided(
        parameter.shape,
        bucket_strides(parameter),
        dtype=flat.dtype,
        device=parameter.device,
    )
    made.as_strided((parameter.numel(),), (1,)).copy_(flat)
    return made


def some_places(which: Tensor, most: int = 64, value: bool = True) -> Tensor:
    """Flat indices of at most so many places where a bool tensor has this value: the
    same at all ranks; some if there are any.

    Makes nothing of the tensor's size, but a copy where it is not contiguous and has
    the value next to nowhere.
    """
    size = which.numel()
    if size <= _DRAWN:
        places = torch.arange(size)
    else:
        generator = torch.Generator().manual_seed(size)
        places = torch.randint(size, (_DRAWN,), generator=generator)
    places = places.to(which.device)
    found = places[torch.take(which, places) == value]
    if size > _DRAWN and not found.numel():
        found = _first_places(which.reshape(-1), most, value)
    return found[:most]


def _first_places(flat: Tensor, most: int, value: bool) -> Tensor:
    found = [torch.empty(0, dtype=torch.int64, device=flat.device)]
    count = 0
    for i, piece in enumerate(torch.split(flat, _LOOKED_AT)):
        found.append((piece == value).nonzero()[:, 0] + i * _LOOKED_AT)
        count += found[-1].numel()
        if count >= most:
            break
    return torch.cat(found)


def zero_outside(values: Tensor, mask: Tensor) -> None:
    """Writes zeros where a bool tensor of this shape is False; autograd is not told.

    Multiplies the bits, as integers: of a number that is none or infinite a product
    would leave no zero. By numpy, which takes half of torch's time for bools.
    """
    plain, mask = values.detach(), mask.to(values.device)
    if plain.device.type == "cpu":
        bits = plain.view(_BITS[plain.element_size()]).numpy()
        np.multiply(bits, mask.numpy(), out=bits)
    else:
        plain.masked_fill_(~mask, 0)


@contextlib.contextmanager
def same_random_numbers(device: torch.device) -> Iterator[None]:
    """What is drawn in here, on the CPU or this device, changes no later number."""
    places = [] if device.type == "cpu" else [device.index]
    kind = "cuda" if device.type == "cpu" else device.type
    with torch.random.fork_rng(devices=places, device_type=kind):
        yield


def count(bools: Tensor) -> int:
    """How many are true. Tensor.sum() would make an int64 of each first."""
    return int(torch.count_nonzero(bools))


def give_back_memory() -> None:
    """What was freed goes back to the system, where the C library can do that: scores
    and mask sets are large, and it would keep their memory for later."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def pack(flat: Tensor) -> npt.NDArray[np.uint8]:
    """Bools as bits, least significant first; the last byte is filled with zeros."""
    return np.packbits(flat.cpu().numpy(), bitorder="little")


def empty_bits(elements: int) -> npt.NDArray[np.uint8]:
    """Room for so many bits, in whole words of 64."""
    return np.empty(-(-elements // 64) * 8, dtype=np.uint8)


def unpack(bits: npt.NDArray[np.uint8], elements: int) -> Tensor:
    """The reverse of pack()."""
    flat = np.unpackbits(bits, count=elements, bitorder="little")
    return torch.from_numpy(flat).to(torch.bool)


def raw_bytes(tensor: Tensor) -> npt.NDArray[np.uint8]:
    """The bytes of a tensor in storage order; a view where it is dense and on the
    CPU."""
    detached = tensor.detach()
    if is_dense(detached):
        flat = detached.as_strided((detached.numel(),), (1,))
    else:
        flat = detached.contiguous().reshape(-1)
    view: npt.NDArray[np.uint8] = flat.view(torch.uint8).cpu().numpy()
    return view
