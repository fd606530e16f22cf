"""Writes the images of examples/ddp.py as one file for the C++ trainer.

    python examples/cpp_trainer/export_images.py FILE

Scikit-learn's handwritten digits, or CIFAR-10 where PACTRAIN_DATA has
cifar10_{train,test}.npz. The format is described in images.h.
"""

from __future__ import annotations

import argparse
import struct
import sys
from pathlib import Path
from typing import BinaryIO

import numpy as np
from torch.utils.data import TensorDataset

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ddp import load_data

MAGIC = b"PTIMAGES"


def write(file: BinaryIO, train: TensorDataset, test: TensorDataset) -> None:
    """Two datasets of float images [n, channels, height, width] and integer labels."""
    labels = [part.tensors[1].numpy().astype(np.uint8) for part in (train, test)]
    classes = 1 + max(int(part.max()) for part in labels)
    shape = train.tensors[0].shape[1:]
    file.write(MAGIC)
    file.write(struct.pack("<6I", len(labels[0]), len(labels[1]), *shape, classes))
    for part, numbers in zip((train, test), labels, strict=True):
        file.write(part.tensors[0].numpy().astype("<f4").tobytes())
        file.write(numbers.tobytes())


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes images for the C++ trainer.")
    parser.add_argument("file", type=Path, help="where to; an old file is replaced")
    options = parser.parse_args()
    with options.file.open("wb") as file:
        write(file, *load_data())


if __name__ == "__main__":
    main()
