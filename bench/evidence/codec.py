"""A bucket's exchange between sites in one process: the bits that all ranks of a job get.

As in ARCHITECTURE.md, "A step": each site adds up its ranks in order; a site sends
E(own sum + decoded children, in site order) to its parent; the root encodes the total once,
and all use the decoded bytes. E and D are the trainer library's (pt_code_levels), the key of
the dither is the agents' (agent/codec/dither.h). `make report-check` holds this to real agents.
"""

from __future__ import annotations

import os
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from pactrain._library import code_levels, digest_of
from pactrain.types import Codec

FRAME = 16_384  # Elements of one encode in n levels (protocol/limits.h).
UP, DOWN = 2, 3  # Legs (protocol/frame.h).
ALONE = 1 << 20  # Elements that one thread encodes in less time than others take to help.


@dataclass(frozen=True)
class Tree:
    """Ranks of each site, and the site above each; -1: the root."""

    ranks: tuple[int, ...]
    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        """ValueError: the sites are no tree with one root."""
        if self.parents.count(-1) != 1 or len(self.parents) != len(self.ranks):
            raise ValueError(f"parents = {self.parents}, allowed: one of {len(self.ranks)} is -1")
        for site in range(len(self.ranks)):
            seen = {site}
            while (site := self.parents[site]) >= 0:
                if site in seen:
                    raise ValueError(f"parents = {self.parents}, allowed: a tree; it has a ring")
                seen.add(site)

    def first_rank(self, site: int) -> int:
        return sum(self.ranks[:site])


CHAIN = Tree((3, 2, 3), (1, -1, 1))  # The paper's: three switches, two links.


def dither_key(model: int, step: int, bucket: int, site: int, leg: int) -> int:
    fields = struct.pack("<Q6sQQQQQ", 6, b"dither", model, step, bucket, site, leg)
    return digest_of(fields).lo


@lru_cache(maxsize=1)
def _crew() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count())


def encode(values: Tensor, codec: Codec, key: int) -> tuple[Tensor, int]:
    """What all decode of it, and its bytes. Levels are the host's kernels': copied and back."""
    if codec == Codec.FP32:
        return values, 4 * values.numel()
    if codec == Codec.BF16:
        return values.bfloat16().float(), 2 * values.numel()
    levels = int(codec.name.removeprefix("LEVELS"))
    host = values.cpu().numpy()
    decoded = np.empty_like(host)

    def code(first: int) -> int:
        frame = slice(first, first + FRAME)
        decoded[frame], count = code_levels(levels, key, first, host[frame])
        return count

    firsts = range(0, host.size, FRAME)
    sent = sum((map if host.size < ALONE else _crew().map)(code, firsts))
    return torch.from_numpy(decoded).to(values.device), sent


def exchange(
    gradients: Tensor, codec: Codec, step: int, bucket: int = 0, model: int = 0, tree: Tree = CHAIN
) -> tuple[Tensor, list[int]]:
    """The sum that every rank gets of gradients [ranks, elements], and each site's bytes.

    All on the gradients' device, but for levels: then each site's sum goes to the host and back.
    Bytes are those of prefix codes, which links up to 400 Mbps carry. ValueError: not as many
    rows as ranks, or other than fp32.
    """
    if gradients.shape[0] != sum(tree.ranks) or gradients.dtype != torch.float32:
        raise ValueError(f"gradients are {gradients.dtype} {tuple(gradients.shape)}, allowed: "
                         f"float32, {sum(tree.ranks)} rows")  # fmt: skip
    sent = [0] * len(tree.ranks)

    def fold(site: int) -> Tensor:
        first = tree.first_rank(site)
        children = [c for c, parent in enumerate(tree.parents) if parent == site]
        terms = [*gradients[first : first + tree.ranks[site]], *map(fold, children)]
        total = terms[0].clone()
        for term in terms[1:]:
            total += term
        leg = UP if tree.parents[site] >= 0 else DOWN
        decoded, sent[site] = encode(total, codec, dither_key(model, step, bucket, site, leg))
        return decoded

    return fold(tree.parents.index(-1)), sent
