"""First states: as large as a model, so no copy too many."""

from __future__ import annotations

import ctypes
import tracemalloc

import numpy as np
import pytest
import torch
from fake_native import digest_of

from pactrain.broadcast import broadcast


class Others:
    """A native session of which the other ranks say what they were made with."""

    def __init__(self, said: bytes = b"") -> None:
        self.said = np.frombuffer(said, np.uint8)
        self.pieces: list[int] = []
        self.digest_of = digest_of

    def submit(self, bucket, parts, out, *options):
        ((at, elements),) = parts
        assert at == out, "in its place"
        whole = (ctypes.c_uint8 * (4 * elements)).from_address(at)
        first = sum(self.pieces)
        own = np.frombuffer(whole, np.uint8)
        said = self.said[first : first + own.size]
        own[: said.size] ^= said
        self.pieces.append(own.size)

    def wait(self):
        pass


@pytest.mark.parametrize("rank", [0, 1])
def test_a_first_state_is_there_once_more_while_it_travels(rank):
    tensors = [(str(i), torch.ones(1 << 18)) for i in range(4)]
    size = sum(tensor.nbytes for _, tensor in tensors)
    tracemalloc.start()
    try:
        broadcast(Others(), rank, "state", tensors, size)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1.1 * size


@pytest.mark.parametrize("piece_bytes", [4, 8, 4096])
def test_tensors_of_all_sizes_arrive_whatever_the_pieces(piece_bytes):
    values = [
        torch.tensor([1, 0, 1], dtype=torch.bool),
        torch.tensor([[1.5, -2.5], [3.5, 4.5]]).t(),
        torch.tensor([7.0], dtype=torch.bfloat16),
        torch.tensor([2**40 + 1]),
        torch.arange(6.0).reshape(2, 3)[:, ::2],
    ]
    said = b"".join(
        (v.t() if i == 1 else v).contiguous().reshape(-1).view(torch.uint8).numpy()
        for i, v in enumerate(values)
    )
    mine = [torch.zeros_like(value) for value in values[:-1]]
    mine.append(torch.zeros(2, 3)[:, ::2])
    tensors = [(str(i), tensor) for i, tensor in enumerate(mine)]
    others = Others(said)
    broadcast(others, 1, "state", tensors, piece_bytes)
    for got, wanted in zip(mine, values, strict=True):
        assert torch.equal(got, wanted)
    assert max(others.pieces) <= piece_bytes
    assert sum(others.pieces) == -(-len(said) // 4) * 4
