"""The demo's network: VGG's shape (convolutions, then wide full layers), a few million weights.

Like VGG it has most weights where few operations are: cheap to compute, dear to send.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

NAME = "VGG-like: 5 convolutions (16-256 channels), full layers 1,280 and 1,024"
CHANNELS = (16, 32, 64, 128, 256)
HIDDEN = (1280, 1024)


def make_model(classes: int = 10) -> nn.Sequential:
    """A network for [n, 3, 32, 32] inputs, weights from torch's seed."""
    layers: list[nn.Module] = []
    width = 3
    for number, channels in enumerate(CHANNELS):
        layers += [nn.Conv2d(width, channels, 3, padding=1), nn.ReLU(inplace=True)]
        if number < 4:
            layers.append(nn.MaxPool2d(2))
        width = channels
    layers.append(nn.Flatten())
    width *= 4
    for hidden in HIDDEN:
        layers += [nn.Linear(width, hidden), nn.ReLU(inplace=True)]
        width = hidden
    layers.append(nn.Linear(width, classes))
    for layer in layers:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


def to_input(pixels: npt.NDArray[np.uint8]) -> torch.Tensor:
    """uint8 pixels [n, 3, 32, 32] as floats of about zero mean and unit variance."""
    return normalised(torch.from_numpy(pixels))


def normalised(pixels: torch.Tensor) -> torch.Tensor:
    """The same of a tensor, on its device."""
    return (pixels.float() - 120.0) / 64.0
