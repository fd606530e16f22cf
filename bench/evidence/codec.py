"""The agents' own codecs and sums for virtual workers (codec.cc, built by tools/build)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from bench.evidence.workloads import ROOT
from pactrain.types import Codec

LIBRARY = ROOT / "out" / "bin" / "libevidence_codec.so"


@dataclass(frozen=True)
class Tree:
    """Ranks of each site, and the site above each; -1: the root."""

    ranks: tuple[int, ...]
    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        """ValueError: the sites are no tree with one root."""
        for site in range(len(self.ranks)):
            seen = {site}
            while (site := self.parents[site]) >= 0:
                if site in seen:
                    raise ValueError(f"parents = {self.parents}, allowed: a tree; it has a ring")
                seen.add(site)
        if self.parents.count(-1) != 1 or len(self.parents) != len(self.ranks):
            raise ValueError(f"parents = {self.parents}, allowed: one of {len(self.ranks)} is -1")


CHAIN = Tree((3, 2, 3), (1, -1, 1))  # The paper's: three switches, two links.


@cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        raise FileNotFoundError(f"{LIBRARY} cannot be loaded ({error}); run `make build`") from None
    library.evidence_exchange.restype = None
    library.evidence_exchange.argtypes = [
        ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32,
        ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p,
    ]  # fmt: skip
    return library


def exchange(
    gradients: Tensor, codec: Codec, step: int, bucket: int = 0, tree: Tree = CHAIN
) -> tuple[Tensor, Sequence[int]]:
    """The sum that every rank gets of gradients [ranks, elements], and what each site encodes.

    The bytes are those of prefix codes, which links up to 400 Mbps carry. ValueError: not as
    many rows as ranks, or other than fp32.
    """
    if gradients.shape[0] != sum(tree.ranks) or gradients.dtype != torch.float32:
        raise ValueError(f"gradients are {gradients.dtype} {tuple(gradients.shape)}, allowed: "
                         f"float32, {sum(tree.ranks)} rows")  # fmt: skip
    gradients = gradients.contiguous()
    elements, sites = gradients.shape[1], len(tree.ranks)
    result = torch.empty(elements)
    sites_type = ctypes.c_int32 * sites
    sent = (ctypes.c_uint64 * sites)()
    _library().evidence_exchange(
        gradients.data_ptr(), elements, sites_type(*tree.ranks), sites_type(*tree.parents), sites,
        int(codec), step, bucket, result.data_ptr(), sent,
    )  # fmt: skip
    return result, list(sent)
