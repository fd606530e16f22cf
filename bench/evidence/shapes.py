"""The parameters of the paper's networks, and what a step of them computes.

VGG19 (batch norm, one full layer), ResNet18 and ResNet152 as they are commonly built for
CIFAR's 32 x 32 pixels; ViT-B/16 for 224 x 224. Ten classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Shapes = list[tuple[int, ...]]
VGG19 = (64, 64, 128, 128, *(256,) * 4, *(512,) * 8)


def _conv(outer: int, inner: int, size: int) -> Shapes:
    """With its batch norm."""
    return [(outer, inner, size, size), (outer,), (outer,)]


def vgg19() -> Shapes:
    shapes: Shapes = []
    inner = 3
    for outer in VGG19:
        shapes += _conv(outer, inner, 3)
        inner = outer
    return [*shapes, (10, 512), (10,)]


def resnet(blocks: Sequence[int], bottleneck: bool) -> Shapes:
    shapes = _conv(64, 3, 3)
    inner = 64
    for stage, count in enumerate(blocks):
        width = 64 << stage
        outer = width * 4 if bottleneck else width
        for block in range(count):
            if bottleneck:
                shapes += _conv(width, inner, 1) + _conv(width, width, 3) + _conv(outer, width, 1)
            else:
                shapes += _conv(width, inner, 3) + _conv(width, width, 3)
            if block == 0 and inner != outer:
                shapes += _conv(outer, inner, 1)
            inner = outer
    return [*shapes, (10, inner), (10,)]


def vit_b16() -> Shapes:
    width = 768
    layer: Shapes = [
        (width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,),
        (width,), (width,), (4 * width, width), (4 * width,), (width, 4 * width), (width,),
    ]  # fmt: skip
    patches: Shapes = [(1, 1, width), (1, 197, width), (width, 3, 16, 16), (width,)]
    return [*patches, *layer * 12, (width,), (width,), (10, width), (10,)]


@dataclass(frozen=True)
class Network:
    title: str
    shapes: Shapes
    compute_seconds: float  # Forward and backward at the reference accelerator.

    @property
    def elements(self) -> int:
        return sum(map(math.prod, self.shapes))


# The reference accelerator is the paper's (A40). ResNet152's 0.175 s is the middle of what
# the paper's ratios at 1 Gbps imply (0.13 to 0.22 s); VGG19 and ResNet18 have their share of
# its multiplications (0.40 and 0.56 of 3.7 G). ViT-B/16: 17.6 G, batch of 32, 14 TFLOP/s.
NETWORKS = {
    "vgg19": Network("VGG19", vgg19(), 0.019),
    "resnet18": Network("ResNet18", resnet((2, 2, 2, 2), False), 0.026),
    "resnet152": Network("ResNet152", resnet((3, 8, 36, 3), True), 0.175),
    "vit_b16": Network("ViT-B/16", vit_b16(), 0.24),
}
