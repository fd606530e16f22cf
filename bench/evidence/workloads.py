"""What is trained: a narrow ResNet-9 and VGG on CIFAR-10, and a byte-level transformer on text.

A workload gives pre-trained weights, the samples of each worker's micro-batch, a loss and a
score on held-out data. Pre-training is a stage of its own, made once from a fixed seed and
kept in out/evidence by the code's and the data's digest; it goes on after the last epoch, or
where its time was over.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import sysconfig
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from bench import data
from bench.evidence.networks import ResNet9, Transformer, Vgg
from bench.model import normalised

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "out" / "evidence"
PRETRAIN_SEED = 7
HELD_OUT = 2000  # Training images that no step sees.


class Stopped(Exception):
    """Time is over; what was done is kept, and another call goes on from there."""


@dataclass(frozen=True)
class Place:
    """Where a workload is run, and until when (time.monotonic())."""

    device: torch.device = torch.device("cpu")  # noqa: RUF009 - it does not change.
    until: float = math.inf

    def check_time(self, keep: Callable[[], object], what: str) -> None:
        """Stopped, after keep(): time is over."""
        if time.monotonic() > self.until:
            keep()
            raise Stopped(what)


class Workload(ABC):
    """`score` grows with quality: accuracy in points, or minus the loss in nats."""

    place = Place()
    name: str
    title: str
    steps: int  # Of a whole run of DDP; other rows may take twice as many.
    score_unit: str
    target_below: float  # The target is DDP's final score minus this.
    optimizer: str
    rate: float
    weight_decay: float
    clip: float  # Of the update's norm; 0: none.
    batch: int  # Samples of one worker's step.

    @abstractmethod
    def make_model(self) -> nn.Module:
        """Fresh weights, of torch's seed."""

    @abstractmethod
    def pretrained(self, say: Callable[[str], None]) -> dict[str, Tensor]:
        """The state that every run begins with."""

    @classmethod
    @abstractmethod
    def pretraining(cls) -> str:
        """How pretrained() made it, in a few words."""

    @abstractmethod
    def adopt(self, state: dict[str, Tensor], cpu_seconds: float) -> None:
        """Runs begin with it from now on, as if it had been pre-trained here in that time."""

    @abstractmethod
    def batches(self, seed: int, workers: int) -> Callable[[int], list[tuple[Tensor, Tensor]]]:
        """Of a step's number: a micro-batch for each worker, the same for every method."""

    @abstractmethod
    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor: ...

    @abstractmethod
    def score(self, model: nn.Module, test: bool) -> float:
        """On held-out training data, or on the test set."""


def keep_state(path: Path, state: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    torch.save(state, partial)
    partial.replace(path)


def digest_of(*parts: bytes) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()[:16]


# --- ResNet-9 and VGG on CIFAR-10 ---------------------------------------------------------------


def augment(inputs: Tensor, generator: torch.Generator, pad: int = 2) -> Tensor:
    """One crop of `pad` pixels for the batch, each image flipped or not: as cheap as it gets.

    Drawn on the CPU, so that all devices see the same.
    """
    size = inputs.shape[-1]
    padded = functional.pad(inputs, (pad,) * 4)
    x, y = torch.randint(0, 2 * pad + 1, (2,), generator=generator).tolist()
    cropped = padded[..., y : y + size, x : x + size]
    flips = (torch.rand(len(inputs), generator=generator) < 0.5).to(inputs.device)
    return torch.where(flips[:, None, None, None], cropped.flip(3), cropped)


class Vision(Workload):
    """A network on images; where they come from is a subclass's: `count`, `held`, read()."""

    network: Callable[[], nn.Module]
    count: int  # Training images, in the first places.
    held: int  # Images after these that no step sees.
    tested: int  # Images of the test set.
    SIZE, PAD, SCORED = 32, 2, 500  # Pixels, of a crop; images that are scored at once.
    steps, score_unit, target_below = 390, "points", 1.0
    optimizer, rate, weight_decay, clip, batch = "sgd", 0.1, 5e-4, 0.0, 32
    SMOOTHING = 0.1
    # Pixels of each epoch of pre-training. Smaller than those trained on later: weights that
    # have seen the same images at 32 pixels leave nothing to reach.
    EPOCH_SIZES: tuple[int, ...] = (16,) * 8 + (24,) * 4
    PRETRAIN_BATCH, PEAK, WARM_UP_EPOCHS = 128, 0.2, 2

    @classmethod
    def pretraining(cls) -> str:
        sizes = {size: cls.EPOCH_SIZES.count(size) for size in cls.EPOCH_SIZES}
        said = ", ".join(f"{count} epochs of {size} pixels" for size, count in sizes.items())
        return f"{said}, batches of {cls.PRETRAIN_BATCH}"

    @abstractmethod
    def read(self, test: bool, chosen: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Images [n, 3, size, size] as the network takes them, and labels, on the device."""

    @abstractmethod
    def digest(self) -> list[bytes]:
        """What tells these images from others."""

    def make_model(self) -> nn.Module:
        return type(self).network().to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(model(inputs), targets, label_smoothing=self.SMOOTHING)

    def _sample(
        self, chosen: Tensor, generator: torch.Generator, size: int
    ) -> tuple[Tensor, Tensor]:
        inputs, labels = self.read(False, chosen, size)
        inputs = augment(inputs, generator, self.PAD)
        return inputs.contiguous(memory_format=torch.channels_last), labels

    def batches(self, seed: int, workers: int) -> Callable[[int], list[tuple[Tensor, Tensor]]]:
        per_step = workers * self.batch
        per_epoch = self.count // per_step

        @functools.lru_cache(maxsize=1)
        def order(epoch: int) -> Tensor:
            generator = torch.Generator().manual_seed(1000 * seed + epoch)
            return torch.randperm(self.count, generator=generator)

        def of_step(step: int) -> list[tuple[Tensor, Tensor]]:
            first = step % per_epoch * per_step
            chosen = order(step // per_epoch)[first : first + per_step]
            generator = torch.Generator().manual_seed(1_000_000 * seed + step)
            return [self._sample(part, generator, self.SIZE) for part in chosen.chunk(workers)]

        return of_step

    def score(self, model: nn.Module, test: bool) -> float:
        first, count = (0, self.tested) if test else (self.count, self.held)
        model.eval()
        right = 0
        with torch.inference_mode():
            for part in torch.split(torch.arange(first, first + count), self.SCORED):
                inputs, labels = self.read(test, part, self.SIZE)
                answer = model(inputs.contiguous(memory_format=torch.channels_last)).argmax(1)
                right += int((answer == labels).sum())
        model.train()
        return 100 * right / count

    def pretrain_path(self) -> Path:
        settings = (self.EPOCH_SIZES, self.PRETRAIN_BATCH, self.PEAK, PRETRAIN_SEED, HELD_OUT)
        digest = digest_of(repr(settings).encode(), *self.digest(), torch.__version__.encode())
        device = "" if self.place.device.type == "cpu" else f"-{self.place.device.type}"
        return OUT / f"{self.name}{device}-{digest}.pt"

    def pretrained(self, say: Callable[[str], None]) -> dict[str, Tensor]:
        path = self.pretrain_path()
        state = torch.load(path, "cpu", weights_only=True) if path.exists() else None
        if state is None or state["epoch"] < len(self.EPOCH_SIZES):
            state = self._pretrain(path, state, say)
        weights: dict[str, Tensor] = state["model"]
        return weights

    def adopt(self, state: dict[str, Tensor], cpu_seconds: float) -> None:
        kept = {"model": state, "epoch": len(self.EPOCH_SIZES), "cpu_seconds": cpu_seconds}
        keep_state(self.pretrain_path(), kept)

    def pretraining_seconds(self) -> float:
        """Of a processor; once it is done."""
        return float(torch.load(self.pretrain_path(), weights_only=True)["cpu_seconds"])

    def _pretrain(
        self, path: Path, state: dict[str, Any] | None, say: Callable[[str], None]
    ) -> dict[str, Any]:
        """Nesterov SGD; the rate grows for two epochs, then falls to 0. Stopped: time is over."""
        torch.manual_seed(PRETRAIN_SEED)
        model = self.make_model().to(self.place.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9, nesterov=True,
                                    weight_decay=self.weight_decay)  # fmt: skip
        begun: dict[str, Any] = state or {}
        if begun:
            model.load_state_dict(begun["model"])
            optimizer.load_state_dict(begun["optimizer"])
        per_epoch = self.count // self.PRETRAIN_BATCH
        epochs = len(self.EPOCH_SIZES)
        cpu = time.process_time() - begun.get("cpu_seconds", 0.0)
        generator = torch.Generator()

        def keep(epoch: int, step: int) -> dict[str, Any]:
            kept = {
                "epoch": epoch,
                "step": step,
                "generator": generator.get_state(),
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "cpu_seconds": time.process_time() - cpu,
            }
            keep_state(path, kept)
            return kept

        for epoch in range(begun.get("epoch", 0), epochs):
            generator.manual_seed(PRETRAIN_SEED * 1000 + epoch)
            order = torch.randperm(self.count, generator=generator)
            first = begun.pop("step", 0)
            if first:
                generator.set_state(begun["generator"])
            for step in range(first, per_epoch):
                self.place.check_time(
                    functools.partial(keep, epoch, step),
                    f"{self.name}: pre-training epoch {epoch + 1}, step {step} of {per_epoch}",
                )
                done = epoch + (step + 1) / per_epoch
                up, down = (
                    done / self.WARM_UP_EPOCHS,
                    (epochs - done) / (epochs - self.WARM_UP_EPOCHS),
                )
                optimizer.param_groups[0]["lr"] = self.PEAK * min(up, down)
                chosen = order[step * self.PRETRAIN_BATCH : (step + 1) * self.PRETRAIN_BATCH]
                optimizer.zero_grad()
                torch.autograd.backward(
                    self.loss(model, *self._sample(chosen, generator, self.EPOCH_SIZES[epoch]))
                )
                optimizer.step()
            state = keep(epoch + 1, 0)
            score = self.score(model, test=False)
            say(f"{self.name}: pre-training epoch {epoch + 1} of {epochs}, held-out {score:.1f} "
                f"points, {state['cpu_seconds']:.0f} CPU s")  # fmt: skip
        assert state is not None
        return state


class Cifar(Vision):
    """CIFAR-10, or what has its form: pixels and labels, all of them on the device."""

    data_name, data_title = "cifar10", "CIFAR-10 (JPEG copy)"

    def __init__(self, place: Place | None = None) -> None:
        folder = os.environ.get("PACTRAIN_DATA", "")
        if not folder:
            raise FileNotFoundError(
                f"PACTRAIN_DATA is not set; allowed: a folder with {self.data_name}_train.npz and "
                f"{self.data_name}_test.npz. Set it: evidence of vision is of CIFAR only."
            )
        images = data.load_cifar(Path(folder), self.data_name, self.data_title)
        self.place = place or Place()
        self._train = images.train
        self._parts = [
            (torch.from_numpy(part.pixels).to(self.place.device),
             torch.from_numpy(part.labels).long().to(self.place.device))
            for part in (images.train, images.test)
        ]  # fmt: skip
        self.tested = len(images.test.labels)
        self.held = min(HELD_OUT, len(self._train.labels) // 10)
        self.count = len(self._train.labels) - self.held

    def read(self, test: bool, chosen: Tensor, size: int) -> tuple[Tensor, Tensor]:
        pixels, labels = self._parts[test]
        places = chosen.to(pixels.device)
        inputs = normalised(pixels[places])
        if size != inputs.shape[-1]:
            inputs = functional.interpolate(inputs, size=(size, size), mode="area")
        return inputs, labels[places]

    def digest(self) -> list[bytes]:
        return [self._train.labels.tobytes(), self._train.pixels[::101].tobytes()]


class Resnet9Cifar(Cifar):
    name, title = "resnet9", "ResNet-9 of 16 to 128 channels on CIFAR-10 (JPEG copy)"
    network = ResNet9


class VggCifar(Cifar):
    name, title = "vgg", "VGG of 8 layers, 16 to 256 channels, on CIFAR-10 (JPEG copy)"
    network = Vgg


# --- A byte-level transformer on text -----------------------------------------------------


class ByteTransformer(Workload):
    """Pre-trained on the source of Python's standard library, then trained on Shakespeare."""

    name, title = "transformer", "byte-level transformer, 2 layers of width 64, on Shakespeare"
    steps, score_unit, target_below = 200, "nats", 0.05
    optimizer, rate, weight_decay, clip, batch = "adamw", 2e-3, 0.1, 1.0, 4
    CONTEXT, PRETRAIN_STEPS, PRETRAIN_BATCH, EVAL = 64, 400, 32, 128
    LIBRARY_BYTES = 4_000_000

    @classmethod
    def pretraining(cls) -> str:
        return (f"{cls.PRETRAIN_STEPS} steps of {cls.PRETRAIN_BATCH} x {cls.CONTEXT} bytes "
                f"of the first {cls.LIBRARY_BYTES / 1e6:g} MB of Python's library")  # fmt: skip

    def __init__(self) -> None:
        folder = os.environ.get("PACTRAIN_DATA", "")
        path = Path(folder) / "tinyshakespeare.txt"
        if not folder or not path.is_file():
            raise FileNotFoundError(
                f"PACTRAIN_DATA='{folder}' has no tinyshakespeare.txt; allowed: a folder that "
                "has. Get it from karpathy/char-rnn."
            )
        text = torch.from_numpy(np.frombuffer(path.read_bytes(), np.uint8).astype(np.int64))
        tenth = len(text) // 10
        self._train, self._held, self._test = (
            text[: -2 * tenth],
            text[-2 * tenth : -tenth],
            text[-tenth:],
        )

    def make_model(self) -> nn.Module:
        return Transformer()

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    def _sample(
        self, text: Tensor, count: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        starts = torch.randint(0, len(text) - self.CONTEXT - 1, (count,), generator=generator)
        rows = torch.stack([text[s : s + self.CONTEXT + 1] for s in starts.tolist()])
        return rows[:, :-1], rows[:, 1:]

    def batches(self, seed: int, workers: int) -> Callable[[int], list[tuple[Tensor, Tensor]]]:
        def of_step(step: int) -> list[tuple[Tensor, Tensor]]:
            generator = torch.Generator().manual_seed(1_000_000 * seed + step)
            return [self._sample(self._train, self.batch, generator) for _ in range(workers)]

        return of_step

    def score(self, model: nn.Module, test: bool) -> float:
        generator = torch.Generator().manual_seed(1)
        text, count = (self._test, 4 * self.EVAL) if test else (self._held, self.EVAL)
        with torch.inference_mode():
            return -float(self.loss(model, *self._sample(text, count, generator)))

    @functools.cached_property
    def _library(self) -> bytes:
        files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
        return b"".join(file.read_bytes() for file in files)[: self.LIBRARY_BYTES]

    def pretrain_path(self) -> Path:
        return OUT / f"{self.name}-{digest_of(self._library, torch.__version__.encode())}.pt"

    def adopt(self, state: dict[str, Tensor], cpu_seconds: float) -> None:
        keep_state(self.pretrain_path(), state)

    def pretrained(self, say: Callable[[str], None]) -> dict[str, Tensor]:
        source, path = self._library, self.pretrain_path()
        if path.exists():
            state: dict[str, Tensor] = torch.load(path, weights_only=True)
            return state
        torch.manual_seed(PRETRAIN_SEED)
        model = self.make_model()
        text = torch.from_numpy(np.frombuffer(source, np.uint8).astype(np.int64))
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1
        )
        generator = torch.Generator().manual_seed(PRETRAIN_SEED)
        for _ in range(self.PRETRAIN_STEPS):
            optimizer.zero_grad()
            torch.autograd.backward(
                self.loss(model, *self._sample(text, self.PRETRAIN_BATCH, generator))
            )
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        say(f"{self.name}: pre-trained, held-out {-self.score(model, test=False):.3f} nats")
        keep_state(path, model.state_dict())
        return model.state_dict()


WORKLOADS: dict[str, Callable[[], Workload]] = {
    Resnet9Cifar.name: Resnet9Cifar,
    VggCifar.name: VggCifar,
    ByteTransformer.name: ByteTransformer,
}
