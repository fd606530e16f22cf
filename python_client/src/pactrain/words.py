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
    """The XOR of all ranks' words, in the place of this rank's: first states are as
    large as a model. All ranks call it with equally many.

    REQUIRES: no step is open; `words` are contiguous.
    Raises: the typed error of the step, on all ranks; `words` are as before.
    """
    at = words.ctypes.data
    parts = [Part(at, words.size)]
    native.submit(0, parts, at, DType.FLOAT32, Op.XOR, layout, True, None)
    native.wait()
    return words


def from_bytes(data: npt.NDArray[np.uint8]) -> Words:
    """Bytes as words, the last one filled with zeros."""
    padded = zeros(data.size)
    padded.view(np.uint8)[: data.size] = data
    return padded


def zeros(size: int) -> Words:
    """As many as so many bytes need."""
    return np.zeros(-(-size // 4), dtype=np.uint32)
