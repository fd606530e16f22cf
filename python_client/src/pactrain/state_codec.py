"""Nested plain values and tensors as bytes, and back: what state_dict()s consist of.

Ranks send each other their state in this form. Nothing in it can name code, as a
pickle does, and what is read is checked, so that no peer can make this process run or
allocate more than the bytes it sent.

Form: eight bytes with the length of a JSON text, that text, and the tensors' elements
one after the other, each from a multiple of 8 bytes on. The text has the structure and
each tensor's type and shape. Numbers keep their types, floats their bits (but for a
nan's), dicts their order and the types of their keys.
"""

from __future__ import annotations

import json
import math
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .errors import InvalidArgument

Blob: TypeAlias = "npt.NDArray[np.uint8]"

_LENGTH = struct.Struct("<Q")
_ALIGN = 8
_MAX_DEPTH = 64
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.complex64, torch.complex128),
    )
}
_MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "ordered", Counter: "counter"}
_MAKERS: dict[str, Callable[..., Any]] = {tag: kind for kind, tag in _MAPPINGS.items()}
_ALLOWED = (
    "None, bool, int, float, str, list, tuple, dict, OrderedDict, Counter and dense "
    "tensors"
)


def encode(value: Any, name: str = "state") -> Blob:
    """The bytes of a value. `name` is what a message calls it.

    Raises:
      InvalidArgument: a part is of another type; names its path.
    """
    tensors: list[Tensor] = []
    structure = _Encoder(tensors).node(value, name, 0)
    kinds = [[str(t.dtype).removeprefix("torch."), list(t.shape)] for t in tensors]
    try:
        text = json.dumps([structure, kinds]).encode()
    except ValueError as error:  # An int with more digits than Python prints.
        raise InvalidArgument(
            f"{name} has a number that cannot be sent: {error}.\nShare other values."
        ) from error
    parts = [_bytes_of(_LENGTH.pack(len(text)) + text)]
    parts += [t.contiguous().reshape(-1).view(torch.uint8).numpy() for t in tensors]
    return np.concatenate([piece for part in parts for piece in (part, _padding(part))])


def decode(blob: Blob) -> Any:
    """The value that encode() was given, with tensors of their own memory.

    Raises:
      InvalidArgument: these bytes were not made by encode().
    """
    try:
        return _decode(blob)
    except (ValueError, TypeError, LookupError, RuntimeError) as error:
        raise InvalidArgument(
            f"A state of {blob.size} bytes cannot be read: {error!r}.\n"
            "Use one release of pactrain on all ranks."
        ) from error


class _Encoder:
    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors

    def node(self, value: Any, path: str, depth: int) -> Any:
        kind = type(value)
        if depth > _MAX_DEPTH:
            raise InvalidArgument(
                f"{path} is nested deeper than {_MAX_DEPTH} levels.\n"
                "Share something flatter; does it contain itself?"
            )
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return ["float", value.hex()]
        if kind in (list, tuple):
            parts = (
                self.node(part, f"{path}[{index}]", depth + 1)
                for index, part in enumerate(value)
            )
            return [kind.__name__, *parts]
        if kind in _MAPPINGS:
            pairs = (self._pair(item, path, depth + 1) for item in value.items())
            return [_MAPPINGS[kind], *pairs]
        if isinstance(value, Tensor):
            return self._tensor(value, path)
        raise InvalidArgument(
            f"{path} is of type {kind.__module__}.{kind.__qualname__}; allowed are "
            f"{_ALLOWED}.\nLeave it out of what state_dict() returns, or convert it."
        )

    def _pair(self, item: tuple[Any, Any], path: str, depth: int) -> list[Any]:
        key, value = item
        if not (key is None or type(key) in (bool, int, float, str, tuple)):
            raise InvalidArgument(
                f"{path} has a key of type {type(key).__name__}; allowed are None, "
                "bool, int, float, str and tuple.\nUse such keys."
            )
        where = f"{path}[{key!r}]"
        return [self.node(key, f"key {where}", depth), self.node(value, where, depth)]

    def _tensor(self, value: Tensor, path: str) -> list[Any]:
        name = str(value.dtype).removeprefix("torch.")
        if value.layout != torch.strided or name not in _DTYPES or value.is_quantized:
            raise InvalidArgument(
                f"{path} is a tensor of {value.dtype}, {value.layout}; allowed are "
                f"dense ones of {', '.join(_DTYPES)}.\nConvert it."
            )
        self._tensors.append(value.detach().cpu().resolve_conj().resolve_neg())
        return ["tensor", len(self._tensors) - 1]


def _bytes_of(data: bytes) -> Blob:
    return np.frombuffer(data, dtype=np.uint8)


def _padding(part: Blob) -> Blob:
    return np.zeros(-part.size % _ALIGN, dtype=np.uint8)


def _decode(blob: Blob) -> Any:
    head = _LENGTH.size
    if blob.size < head:
        raise ValueError("it is too short")
    (length,) = _LENGTH.unpack(blob[:head].tobytes())
    if length > blob.size - head:
        raise ValueError(f"its text has {length} bytes")
    structure, kinds = json.loads(blob[head : head + length].tobytes())
    offset = _aligned(head + length)
    tensors = []
    for name, shape in kinds:
        dtype = _DTYPES[name]
        if any(type(size) is not int or size < 0 for size in shape):
            raise ValueError(f"a tensor has shape {shape}")
        size = math.prod(shape) * dtype.itemsize
        if size > blob.size - offset:
            raise ValueError(f"a tensor of {size} bytes is cut off")
        tensors.append(torch.empty(shape, dtype=dtype))
        if size:
            bits = tensors[-1].reshape(-1).view(torch.uint8).numpy()
            bits[:] = blob[offset : offset + size]
        offset = _aligned(offset + size)
    return _value(structure, tensors)


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _value(node: Any, tensors: list[Tensor]) -> Any:
    if node is None or type(node) in (bool, int, str):
        return node
    if not isinstance(node, list):
        raise ValueError(f"a {type(node).__name__} is no part of a state")
    tag, *parts = node
    if tag == "float":
        return float.fromhex(*parts)
    if tag == "tensor":
        (index,) = parts
        if type(index) is not int or index < 0:
            raise ValueError(f"tensor {index!r}")
        return tensors[index]
    if tag in ("list", "tuple"):
        values = [_value(part, tensors) for part in parts]
        return values if tag == "list" else tuple(values)
    pairs = [(_value(key, tensors), _value(value, tensors)) for key, value in parts]
    return _MAKERS[tag](dict(pairs) if tag == "counter" else pairs)
