"""Gives all ranks the values of rank 0's tensors, bit for bit, through the agents."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from . import storage, words
from ._library import PATIENCE_SECONDS, NativeSession


@contextlib.contextmanager
def said_if_long(
    say: Callable[[], object], patience_seconds: float = PATIENCE_SECONDS
) -> Iterator[None]:
    """Calls `say` once, in a thread, if what is done inside takes long."""
    timer = threading.Timer(patience_seconds, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def broadcast(
    native: NativeSession,
    rank: int,
    title: str,
    tensors: Sequence[tuple[str, Tensor]],
    piece_bytes: int,
) -> None:
    """All ranks call it after the same step, with tensors of equal names and shapes.

    As many steps as pieces are needed, each of at most `piece_bytes` (the slot's size,
    a multiple of 4); none where there is nothing to send.

    REQUIRES: no step is open, and no forward or backward pass is running.
    Raises: the typed error of a step, on all ranks; tensors are as before.
    """
    if not tensors:
        return
    text = "\n".join(f"{n} {tuple(t.shape)} {t.dtype}" for n, t in tensors)
    layout = native.digest_of(f"{title}\n{text}".encode())
    # As large as all of them; zeros take no memory until they are written.
    data = words.zeros(sum(tensor.nbytes for _, tensor in tensors))
    if rank == 0:
        _fill(data.view(np.uint8), [tensor for _, tensor in tensors])
    for first in range(0, data.size, piece_bytes // 4):
        words.exchange(native, data[first : first + piece_bytes // 4], layout)
    if rank != 0:
        _store([tensor for _, tensor in tensors], torch.from_numpy(data.view(np.uint8)))


def _fill(data: npt.NDArray[np.uint8], tensors: Sequence[Tensor]) -> None:
    offset = 0
    for tensor in tensors:
        data[offset : offset + tensor.nbytes] = storage.raw_bytes(tensor)
        offset += tensor.nbytes


def _store(tensors: Sequence[Tensor], data: Tensor) -> None:
    offset = 0
    # As DDP does: a buffer that autograd has saved is not "modified in place".
    with torch.no_grad(), _unsafe_preserve_version_counter(tuple(tensors)):
        for tensor in tensors:
            piece = data[offset : offset + tensor.nbytes]
            if offset % tensor.element_size():
                piece = piece.clone()  # No view of its type can begin there.
            offset += tensor.nbytes
            if storage.is_dense(tensor):
                target = tensor.as_strided((tensor.numel(),), (1,))
                target.copy_(piece.view(tensor.dtype))
            else:
                tensor.copy_(piece.view(tensor.dtype).reshape(tensor.shape))
