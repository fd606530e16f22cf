"""Buckets that are packed on their device: what a mask keeps is all that is copied."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ._library import NativeSession
from .device_kernels import handle_of
from .device_path import DevicePath
from .errors import PacTrainError
from .types import Digest, DType, NodePath, NodeReport, Plan

logger = logging.getLogger("pactrain")


@dataclass(frozen=True)
class Packing:
    """A bucket that is packed, on its way to the host."""

    plan: Plan
    elements: int  # Of the whole bucket.
    image: Tensor | None  # None: all elements are kept.
    totals: Tensor

    def outside(self) -> int:
        """Elements outside the mask that are not zero. Waits for the packing."""
        return int(self.totals.cpu()[1::2].sum())

    def squares(self) -> float:
        """Of what is kept, summed. Waits for the packing."""
        return float(self.totals.cpu()[::2].contiguous().view(torch.float64).sum())


class Packer:
    """Packs and unpacks in one stream, which is current in the thread that calls.

    Where that fails before a bucket has been submitted, buckets are packed by the CPU
    from then on. Not thread-safe.
    """

    def __init__(
        self,
        path: DevicePath,
        device: torch.device,
        stream: torch.Stream,
        nccl_stream: torch.Stream | None,
    ):
        """`nccl_stream`: for nothing but NCCL, if the path is that."""
        # Of sums by NCCL, as of the last bucket; None: none was to be summed.
        self.node: NodeReport | None = None
        self._path = path
        self._nccl_stream = nccl_stream
        # What a kernel of NCCL that was given up may still read and write.
        self._left: list[Tensor] = []
        self.fallbacks = 0  # 1 once one could not be packed here: all go by torch then.
        self.unstaged = 0  # Buckets that there was no memory for to sum.
        self.scratch_bytes = 0  # Of the device, asked for in one step; the most.
        self._asked_bytes = 0
        self._device = device
        self._stream = stream
        self._kernels = path.kernels
        self._masks: Digest | None = None
        self._images: dict[Digest, Tensor] = {}  # By layout, of these masks.

    def pack(
        self,
        native: NativeSession,
        bucket: int,
        layout: Digest,
        gradients: Callable[[], Tensor],
        host: Tensor,
    ) -> tuple[Packing, Tensor] | None:
        """Enqueues the packing and, unless it `reduces`, the copy into `host` (bytes, 4
        for each element). Returns what it packed, too.

        None: the bucket travels as a whole, or cannot be packed here.
        """
        elements = host.numel() // 4
        if bucket == 0:
            self._asked_bytes = 0
        kernels = self._kernels
        if kernels is None or self._path.kernels is None:
            return None
        plan = native.plan_bucket(bucket, elements, layout)
        if not plan.packed:
            if self.reduces:
                self._look(native)
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
            if not self.reduces:
                kept_of(host, plan).copy_(packed, non_blocking=True)
        except PacTrainError:
            raise  # The library's own, which no other way would mend.
        except RuntimeError as error:
            self._give_up(native, bucket, error)
            return None
        return Packing(plan, elements, image, totals), packed

    @property
    def path(self) -> DevicePath:
        """As it is now."""
        if self._path.name != "nccl" or (self.node is not None and self.node.open):
            return self._path
        why = "no bucket is packed yet" if self.node is None else self.node.reason
        return DevicePath("device", f"not by NCCL: {why}", self._kernels)

    @property
    def chosen(self) -> DevicePath:
        """The same, whatever became of NCCL."""
        return self._path

    @property
    def reduces(self) -> bool:
        """What pack() has packed is still to be handed to reduce()."""
        return self._path.name == "nccl"

    def reduce(
        self,
        native: NativeSession,
        bucket: int,
        layout: Digest,
        dtype: DType,
        packing: Packing,
        packed: Tensor,
        host: Tensor,
    ) -> NodePath:
        """Sums the bucket with the node's other GPUs, if that can be; enqueues the copy
        of what this rank is to submit into `host`.

        REQUIRES: pack() of the bucket has been waited for.
        """
        summed, path = packed, NodePath.HOST
        try:
            summed = self._new(packing.plan.kept, torch.float32)
        except RuntimeError as error:  # Nothing was staged: the others go by the host.
            if self.unstaged == 0:
                logger.warning("bucket %d is not summed by NCCL: %s", bucket, error)
            self.unstaged += 1
        else:
            path = self._reduce(native, bucket, layout, dtype, packing, packed, summed)
        if path != NodePath.FOLLOWER:
            source = packed if path == NodePath.HOST else summed
            kept_of(host, packing.plan).copy_(source, non_blocking=True)
        return path

    def _reduce(
        self,
        native: NativeSession,
        bucket: int,
        layout: Digest,
        dtype: DType,
        packing: Packing,
        packed: Tensor,
        summed: Tensor,
    ) -> NodePath:
        assert self._nccl_stream is not None
        try:
            path = native.reduce(
                bucket,
                packing.elements,
                packing.plan,
                dtype,
                layout,
                packed.data_ptr(),
                summed.data_ptr(),
                handle_of(self._nccl_stream),
            )
        except PacTrainError:
            self._left += [packed, summed]  # NCCL may still be at them.
            raise
        before = 0 if self.node is None else self.node.by_host
        now = self._look(native)
        if not now.open and now.by_host != before:
            self._left += [packed, summed]
        return path

    def _look(self, native: NativeSession) -> NodeReport:
        """What has become of NCCL; says what is new."""
        before, now = self.node, native.node_report
        self.node = now
        if now.open:
            if before is None or not before.open:
                logger.info("gradients are summed by NCCL on this node")
        elif not now.pending and (before is None or before.reason != now.reason):
            logger.warning("gradients are not summed by NCCL: %s", now.reason)
        return now

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
        new = torch.empty(elements, dtype=dtype, device=self._device)
        self._asked_bytes += new.nbytes
        masks = sum(image.nbytes for image in self._images.values())
        self.scratch_bytes = max(self.scratch_bytes, self._asked_bytes + masks)
        return new

    def _image(
        self,
        native: NativeSession,
        bucket: int,
        elements: int,
        layout: Digest,
        plan: Plan,
    ) -> Tensor | None:
        if plan.image_bytes == 0:
            return None
        if plan.mask_digest != self._masks:
            self._masks = plan.mask_digest
            self._images.clear()
        image = self._images.get(layout)
        if image is None:
            made = native.mask_image(bucket, elements, layout, plan)
            image = torch.from_numpy(made).to(self._device)
            self._images[layout] = image
        return image

    def _give_up(self, native: NativeSession, bucket: int, error: Exception) -> None:
        reason = f"bucket {bucket} was not packed there: {str(error).splitlines()[0]}"
        self._path = DevicePath("torch", reason)
        self.fallbacks += 1
        self._images.clear()
        native.forgo_nccl()
        logger.warning("gradients go by torch from now on: %s", reason)


def kept_of(host: Tensor, plan: Plan) -> Tensor:
    return host[: 4 * plan.kept].view(torch.float32)
