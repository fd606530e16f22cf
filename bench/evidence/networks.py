"""The networks. Of images two narrow ones, and the paper's as they are built for CIFAR's 32 x 32
pixels (bench/evidence/shapes.py has their shapes), ResNet-50 for those of ImageNet. Of text one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.evidence import shapes


def _block(inner: int, outer: int, pool: bool) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(inner, outer, 3, padding=1, bias=False),
        nn.BatchNorm2d(outer),
        nn.ReLU(inplace=True),
    ]
    return nn.Sequential(*layers, *([nn.MaxPool2d(2)] if pool else []))


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(_block(width, width, False), _block(width, width, False))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.inner(x)
        return result


class ResNet9(nn.Module):
    """The DAWNBench network (David Page, "How to train your ResNet"), `width` times as wide."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _block(3, width, False), _block(width, 2 * width, True), Residual(2 * width),
            _block(2 * width, 4 * width, True), _block(4 * width, 8 * width, True),
            Residual(8 * width), nn.AdaptiveMaxPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(8 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.body(x))
        return result


class Vgg(nn.Module):
    """Simonyan and Zisserman's 8 layers with batch norm: most weights in the last of them."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        outers = [width, 2 * width, 4 * width, 4 * width, 8 * width, 8 * width,
                  16 * width, 16 * width]  # fmt: skip
        inners = [3, *outers[:-1]]
        pooled = (0, 1, 3, 5)
        self.body = nn.Sequential(
            *(_block(inner, outer, place in pooled)
              for place, (inner, outer) in enumerate(zip(inners, outers, strict=True))),
            nn.AdaptiveMaxPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(16 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.body(x))
        return result


class Vgg19(nn.Module):
    """Simonyan and Zisserman's 16 convolutions with batch norm, and one full layer.

    What is pooled last becomes one pixel, whatever the size of the image.
    """

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        outers = shapes.VGG19
        pooled = (1, 3, 7, 11)
        self.body = nn.Sequential(
            *(_block(inner, outer, place in pooled)
              for place, (inner, outer) in enumerate(zip((3, *outers[:-1]), outers, strict=True))),
        )  # fmt: skip
        self.head = nn.Linear(outers[-1], classes)
        _start(self)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.body(x).amax((2, 3)))
        return result


def _conv(inner: int, outer: int, size: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inner, outer, size, stride, size // 2, bias=False), nn.BatchNorm2d(outer)
    )


class ResidualBlock(nn.Module):
    """Two convolutions, or three of which the outer ones are of 1 x 1 (He et al. 2015)."""

    def __init__(self, inner: int, width: int, outer: int, stride: int) -> None:
        super().__init__()
        relu = nn.ReLU(inplace=True)
        self.body = (
            nn.Sequential(_conv(inner, width, 3, stride), relu, _conv(width, width, 3))
            if outer == width
            else nn.Sequential(_conv(inner, width, 1), relu, _conv(width, width, 3, stride), relu,
                               _conv(width, outer, 1))
        )  # fmt: skip
        same = inner == outer and stride == 1
        self.shortcut = nn.Identity() if same else _conv(inner, outer, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = (self.body(x) + self.shortcut(x)).relu_()
        return result


class ResNet(nn.Module):
    """`stem` 3: one convolution, for 32 pixels; 7: with stride and pooled, for 224."""

    def __init__(
        self, blocks: Sequence[int], bottleneck: bool, classes: int = 10, stem: int = 3
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [_conv(3, 64, stem, 1 if stem == 3 else 2), nn.ReLU(inplace=True)]
        if stem != 3:
            layers.append(nn.MaxPool2d(3, 2, 1))
        inner = 64
        for stage, count in enumerate(blocks):
            width = 64 << stage
            outer = width * 4 if bottleneck else width
            for block in range(count):
                stride = 2 if stage and not block else 1
                layers.append(ResidualBlock(inner, width, outer, stride))
                inner = outer
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(inner, classes)
        _start(self)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.body(x).mean((2, 3)))
        return result


def _start(model: nn.Module) -> None:
    """He's normal weights; a residual block begins as its shortcut (Goyal et al. 2017)."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if isinstance(module, ResidualBlock):
            *_, norm = (m for m in module.body.modules() if isinstance(m, nn.BatchNorm2d))
            nn.init.zeros_(norm.weight)


def resnet18(classes: int = 10) -> ResNet:
    return ResNet((2, 2, 2, 2), False, classes)


def resnet152(classes: int = 10) -> ResNet:
    return ResNet((3, 8, 36, 3), True, classes)


def resnet50(classes: int) -> ResNet:
    return ResNet((3, 4, 6, 3), True, classes, stem=7)


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, t, width))
        result: Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return result


class Transformer(nn.Module):
    def __init__(self, width: int = 64, layers: int = 2, heads: int = 4, context: int = 64) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.places = nn.Embedding(context, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256)
        for table in (self.bytes, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.bytes(tokens) + self.places(torch.arange(tokens.shape[1]))
        result: Tensor = self.head(self.norm(self.layers(x)))
        return result
