"""Images for the demo: CIFAR-10 from the folder PACTRAIN_DATA, else scikit-learn's digits.

CIFAR-10 comes as cifar10_{train,test}.npz with JPEGs back to back (`jpeg`, `offset`,
`label`); it is decoded once and kept under out/data. Digits are a smoke run: 8 x 8
images, scaled up to the same shape.
"""

from __future__ import annotations

import hashlib
import io
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
CACHE = Path(__file__).resolve().parent.parent / "out" / "data"


@dataclass(frozen=True)
class Images:
    """Pixels [n, 3, 32, 32] and labels [n], both uint8."""

    pixels: Bytes
    labels: Bytes


@dataclass(frozen=True)
class Data:
    name: str  # "cifar10" or "digits".
    title: str
    train: Images
    test: Images


def load(folder: str | None = None) -> Data:
    """CIFAR-10 from `folder` (default: PACTRAIN_DATA) where set, else digits.

    FileNotFoundError if the folder is set and a file is missing.
    """
    folder = os.environ.get("PACTRAIN_DATA", "") if folder is None else folder
    return load_cifar10(Path(folder)) if folder else load_digits()


def load_cifar10(folder: Path) -> Data:
    try:
        return load_cifar(folder, "cifar10", "CIFAR-10 (JPEG copy)")
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{error}; unset PACTRAIN_DATA for a smoke run on scikit-learn's digits."
        ) from None


def cifar_files(folder: Path, name: str) -> list[Path]:
    """For training, for testing."""
    return [folder / f"{name}_{part}.npz" for part in ("train", "test")]


def load_cifar(folder: Path, name: str, title: str) -> Data:
    """FileNotFoundError: a file is missing."""
    files = cifar_files(folder, name)
    for path in files:
        if not path.is_file():
            raise FileNotFoundError(f"PACTRAIN_DATA={folder} has no {path.name}")
    return Data(name, title, *map(decode_cached, files))


def decode_cached(path: Path) -> Images:
    """Decodes an npz file of JPEGs, or takes what an earlier call decoded."""
    stat = path.stat()
    key = hashlib.sha256(f"{path.name} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:16]
    cached = CACHE / f"{path.stem}-{key}.npz"
    if not cached.exists():
        images = decode(path)
        CACHE.mkdir(parents=True, exist_ok=True)
        # Written aside and renamed: several trainers may start at once.
        partial = cached.with_name(f"{cached.name}.{os.getpid()}.npz")
        np.savez(partial, pixels=images.pixels, labels=images.labels)
        partial.replace(cached)
    with np.load(cached) as arrays:
        return Images(arrays["pixels"], arrays["labels"])


def decode(path: Path) -> Images:
    from PIL import Image

    with np.load(path) as arrays:
        jpeg, offset, label = arrays["jpeg"], arrays["offset"], arrays["label"]
    pixels = np.empty((len(label), 3, 32, 32), np.uint8)
    for i in range(len(label)):
        with Image.open(io.BytesIO(jpeg[offset[i] : offset[i + 1]].tobytes())) as image:
            pixels[i] = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    return Images(pixels, label.astype(np.uint8))


def load_digits() -> Data:
    from sklearn.datasets import load_digits as sklearn_digits

    digits = sklearn_digits()
    small = (digits.images * (255 / 16)).astype(np.uint8)
    pixels = np.repeat(np.repeat(small, 4, axis=1), 4, axis=2)[:, None].repeat(3, axis=1)
    order = np.random.default_rng(0).permutation(len(pixels))
    pixels, labels = pixels[order], digits.target.astype(np.uint8)[order]
    cut = len(pixels) - 500
    return Data(
        "digits",
        "scikit-learn digits (a smoke run: set PACTRAIN_DATA for CIFAR-10)",
        Images(pixels[:cut], labels[:cut]),
        Images(pixels[cut:], labels[cut:]),
    )
