"""The paper's networks in their real sizes, for a machine with a GPU: CIFAR-10, CIFAR-100, and
ResNet-50 on a folder of images.

Of the narrow networks they differ in nothing but the network, in four epochs of steps instead of
two, and in a peak of 0.1 of pre-training's rate, which deep networks without a residual want.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from bench import data
from bench.evidence import networks
from bench.evidence.shapes import NETWORKS
from bench.evidence.train import WORKERS
from bench.evidence.workloads import HELD_OUT, Cifar, Place, Vision
from bench.model import normalised

METHODS = (
    *("ddp", "levels7-0.5", "levels7-0.2", "levels7", "exact-0.5", "hier_bf16", "fp16"),
    *("topk0.1", "topk0.01", "paper", "powersgd1", "powersgd2", "powersgd4", "dgc"),
)
STEPS = 750  # Four epochs of CIFAR by eight workers with 32 samples each.
MAKE: dict[str, Callable[[int], nn.Module]] = {
    "resnet18": networks.resnet18,
    "vgg19": networks.Vgg19,
    "resnet152": networks.resnet152,
}
CLASSES = {"cifar10": 10, "cifar100": 100}
DATA_TITLES = {"cifar10": "CIFAR-10 (JPEG copy)", "cifar100": "CIFAR-100"}
IMAGES = "resnet50-images"
# The network of NETWORKS whose shapes a workload has, but for the last layer's classes.
NETWORK_OF = {f"{network}-{name}": network for name in CLASSES for network in MAKE}
TITLES = {
    **{
        f"{network}-{name}": f"{NETWORKS[network].title} on {DATA_TITLES[name]}"
        for name in CLASSES
        for network in MAKE
    },
    IMAGES: "ResNet-50 on a folder of images, 224 pixels",
}


class RealSize(Vision):
    """`small`: a few images and two steps, to see that it runs; scores say nothing then."""

    steps, PEAK = STEPS, 0.1

    def _make_small(self) -> None:
        self.steps, self.batch = 2, 2
        self.EPOCH_SIZES, self.PRETRAIN_BATCH = (self.SIZE // 2,) * 3, 8
        self.count = min(self.count, WORKERS * self.batch)
        self.held, self.tested = min(self.held, 4), min(self.tested, 4)


class RealCifar(RealSize, Cifar):
    def __init__(self, name: str, place: Place, small: bool = False) -> None:
        """`name`: of NETWORK_OF. FileNotFoundError: the images are missing."""
        network, self.data_name = name.split("-")
        self.data_title = DATA_TITLES[self.data_name]
        self.name, self.title = name, TITLES[name]
        self._make, self._classes = MAKE[network], CLASSES[self.data_name]
        super().__init__(place)
        if small:
            self._make_small()

    def make_model(self) -> nn.Module:
        return self._make(self._classes).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


class ImageFolder(RealSize):
    """FOLDER/train/CLASS/* and FOLDER/val/CLASS/*, read by PIL each time they are needed."""

    name, title = IMAGES, TITLES[IMAGES]
    SIZE, PAD, SCORED = 224, 14, 100
    EPOCH_SIZES = (112,) * 8 + (160,) * 4
    SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")

    def __init__(self, folder: Path, place: Place, small: bool = False) -> None:
        """FileNotFoundError, ValueError: the folder is not of that form; says in what."""
        self.place = place
        self._classes = self._folders(folder / "train")
        unknown = sorted({*self._folders(folder / "val")} - {*self._classes})
        if unknown:
            raise ValueError(f"{folder}/val has the class '{unknown[0]}', allowed: those of train")
        self._files = [self._list(folder / part) for part in ("train", "val")]
        self.tested = len(self._files[1])
        self.held = max(1, min(HELD_OUT, len(self._files[0]) // 10))
        self.count = len(self._files[0]) - self.held
        if small:
            self._make_small()
        least = max(WORKERS * self.batch, self.PRETRAIN_BATCH)
        if self.count < least or not self.tested:
            raise ValueError(f"{folder} has {len(self._files[0])} images in train and "
                             f"{self.tested} in val, allowed: at least {least + self.held} and "
                             f"1, of {', '.join(self.SUFFIXES)}")  # fmt: skip
        self._readers = ThreadPoolExecutor(os.cpu_count())

    @staticmethod
    def _folders(part: Path) -> list[str]:
        names = (
            sorted(path.name for path in part.iterdir() if path.is_dir()) if part.is_dir() else []
        )
        if not names:
            raise FileNotFoundError(f"{part} has no folders, allowed: one for each class")
        return names

    def _list(self, part: Path) -> list[tuple[Path, int]]:
        """With the class of each, shuffled: what is held out has all classes."""
        found = [(path, label) for label, name in enumerate(self._classes)
                 for path in sorted((part / name).glob("*"))
                 if path.suffix.lower() in self.SUFFIXES]  # fmt: skip
        order = torch.randperm(len(found), generator=torch.Generator().manual_seed(0))
        return [found[place] for place in order.tolist()]

    def make_model(self) -> nn.Module:
        return networks.resnet50(len(self._classes)).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def read(self, test: bool, chosen: Tensor, size: int) -> tuple[Tensor, Tensor]:
        files = [self._files[test][place] for place in chosen.tolist()]
        pixels = np.stack(list(self._readers.map(lambda file: decode(file[0], size), files)))
        labels = torch.tensor([label for _, label in files])
        device = self.place.device
        return normalised(torch.from_numpy(pixels).to(device)), labels.to(device)

    def digest(self) -> list[bytes]:
        return [f"{path} {label}".encode() for path, label in self._files[0]]


def decode(path: Path, size: int) -> data.Bytes:
    """[3, size, size], the middle of the image. ValueError: it is none."""
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            image.draft("RGB", (size, size))
            fitted = ImageOps.fit(image.convert("RGB"), (size, size))
    except OSError as error:
        raise ValueError(f"{path} is no image that can be read: {error}") from error
    pixels: data.Bytes = np.asarray(fitted).transpose(2, 0, 1)
    return pixels


def names_of(folder: Path) -> list[str]:
    """The workloads whose images are there."""
    there = [name for name in CLASSES
             if all(file.is_file() for file in data.cifar_files(folder, name))]  # fmt: skip
    return [name for name in NETWORK_OF if name.split("-")[1] in there]
