"""Buckets that are packed on their device: what a mask keeps is all that is copied."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .device_path import DevicePath
from .errors import PacTrainError
from .types import Digest, Native, Plan

logger = logging.getLogger("pactrain")


@dataclass(frozen=True)
class Packing:
    """A bucket that is packed, on its way to the host."""

    plan: Plan
    image: Tensor
    totals: Tensor


class Packer:
    """Packs and unpacks in one stream, which is current in the thread that calls.

    Where that fails before a bucket has been submitted, buckets are packed by the CPU
    from then on. Not thread-safe.
    """

    def __init__(self, path: DevicePath, device: torch.device, stream: torch.Stream):
        self.path = path
        self.fallbacks = 0  # 1 once one could not be packed here.
        self._device = device
        self._stream = stream
        self._kernels = path.kernels
        self._masks: Digest | None = None
        self._images: dict[Digest, Tensor] = {}  # By layout, of these masks.

    def pack(
        self,
        native: Native,
        bucket: int,
        layout: Digest,
        gradients: Callable[[], Tensor],
        host: Tensor,
    ) -> Packing | None:
        """Enqueues the packing and the copy into `host` (bytes, 4 for each element).

        None: the bucket travels as a whole, or cannot be packed here.
        """
        elements = host.numel() // 4
        kernels = self._kernels
        if kernels is None or self.path.kernels is None:
            return None
        plan = native.plan_bucket(bucket, elements, layout)
        if not plan.packed:
            return None
        try:
            image = self._image(native, bucket, elements, layout, plan)
            packed = self._new(plan.kept, torch.float32)
            totals = self._new(kernels.totals_of(elements), torch.int64)
            kernels.pack(
                image,
                gradients(),
                packed,
                totals,
                count_outside=plan.count_outside,
                stream=self._stream,
            )
            kept_of(host, plan).copy_(packed, non_blocking=True)
        except PacTrainError:
            raise  # The library's own, which no other way would mend.
        except RuntimeError as error:
            self._give_up(bucket, error)
            return None
        return Packing(plan, image, totals)

    def unpack(self, packing: Packing, host: Tensor, world: int, out: Tensor) -> None:
        """Enqueues the copy of the sums in `host`, and the mean into `out`.

        Raises:
          RuntimeError: the device has failed.
        """
        assert self._kernels is not None
        packed = self._new(packing.plan.kept, torch.float32)
        packed.copy_(kept_of(host, packing.plan), non_blocking=True)
        self._kernels.unpack(packing.image, packed, world, out, stream=self._stream)

    def _new(self, elements: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(elements, dtype=dtype, device=self._device)

    def _image(
        self, native: Native, bucket: int, elements: int, layout: Digest, plan: Plan
    ) -> Tensor:
        if plan.mask_digest != self._masks:
            self._masks = plan.mask_digest
            self._images.clear()
        image = self._images.get(layout)
        if image is None:
            made = native.mask_image(bucket, elements, layout, plan)
            image = torch.from_numpy(made).to(self._device)
            self._images[layout] = image
        return image

    def _give_up(self, bucket: int, error: Exception) -> None:
        reason = f"bucket {bucket} was not packed there: {str(error).splitlines()[0]}"
        self.path = DevicePath("torch", reason)
        self.fallbacks += 1
        self._images.clear()
        logger.warning("gradients go by torch from now on: %s", reason)


def kept_of(host: Tensor, plan: Plan) -> Tensor:
    return host[: 4 * plan.kept].view(torch.float32)
