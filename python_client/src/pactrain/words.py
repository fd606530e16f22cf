"""Broadcasts and gathers of raw words through the agents: PT_XOR steps.

Ranks that have nothing to say contribute zeros, so the XOR of all is what the others
said. Such a step has the same commit as a gradient step: all ranks get it, or none.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ._library import NativeSession
from .types import Digest, DType, Op, Part

Words = npt.NDArray[np.uint32]


def exchange(native: NativeSession, words: Words, layout: Digest) -> Words:
    """The XOR of all ranks' words. All ranks call it with equally many.

    REQUIRES: no step is open.
    Raises: the typed error of the step, on all ranks.
    """
    sent = np.ascontiguousarray(words, dtype=np.uint32)
    received = np.empty_like(sent)
    parts = [Part(sent.ctypes.data, sent.size)]
    native.submit(
        0, parts, received.ctypes.data, DType.FLOAT32, Op.XOR, layout, True, None
    )
    native.wait()
    return received


def from_bytes(data: npt.NDArray[np.uint8]) -> Words:
    """Bytes as words, the last one filled with zeros."""
    padded = np.zeros(-(-data.size // 4) * 4, dtype=np.uint8)
    padded[: data.size] = data
    return padded.view(np.uint32)


def to_bytes(words: Words, size: int) -> npt.NDArray[np.uint8]:
    """The first `size` bytes of words."""
    return words.view(np.uint8)[:size]
