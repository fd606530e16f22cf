"""Keeps one model's masks in step with the job: votes, and acts only when agreed.

`current` is what this rank wants; `active` what the job agreed on, by a decision that
a committed step put in force on all ranks at once. Weights and gradients are masked
with `active` only, so ranks cannot drift apart by masking on their own.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from weakref import WeakSet

import torch
from torch import Tensor
from torch.optim import Optimizer

from . import storage
from .errors import PacTrainError
from .layout import StepLayout, bucket_bitmaps, bucket_masks
from .masks import MaskSet, MaskSource, make_mask_set
from .parameters import ParameterTable
from .types import Decision, Native

_KNOWN_SETS = 4  # As many as the trainer library holds.
_UNAGREED_STEPS = 50  # One epoch: agreement takes a few steps if all ranks vote alike.

logger = logging.getLogger("pactrain")


class MaskKeeper:
    """Not thread-safe: called between steps, by the hook or by the waiter."""

    def __init__(
        self,
        table: ParameterTable,
        source: MaskSource,
        native: Native,
        gse: bool,
    ) -> None:
        self._table = table
        self._source = source
        self._native = native
        self._gse = gse
        self.settle_steps = 1
        # Set for a checkpoint from before the masks were in force: its weights outside
        # them had moved, and are set to zero instead of refused.
        self.tolerate_outside = False
        self.current = self._read()
        self.active: MaskSet | None = None
        self._factors: dict[int, tuple[Tensor, Tensor]] = {}  # By id of the parameter.
        self._known = {self.current.digest: self.current}
        self._layout: StepLayout | None = None
        self._steps_unchanged = 0
        self._version = -1  # Of the decision that was looked at last.
        self._inside = True
        self._cleaned: WeakSet[Optimizer] = WeakSet()
        self._bucket_masks: tuple[StepLayout, MaskSet, list[Tensor]] | None = None

    def _read(self) -> MaskSet:
        masks, unenforced = self._source.read()
        return make_mask_set(self._table, masks, self._native.digest_of, unenforced)

    def adopt(self, masks: Mapping[str, Tensor]) -> None:
        """Makes `masks` this rank's, before the first step."""
        self._source.write(masks)
        self._replace(self._read())

    def begin_step(self) -> None:
        """Looks whether masks were changed since the last step."""
        if not self._source.changed():
            return
        changed = self._read()
        if changed.digest != self.current.digest:
            logger.info("masks changed from %s to %s", self.current, changed)
            self._replace(changed)

    def _replace(self, masks: MaskSet) -> None:
        self.current = masks
        self._known.pop(masks.digest, None)
        self._known[masks.digest] = masks
        while len(self._known) > _KNOWN_SETS:
            oldest = next(d for d in self._known if not self._is_active(d))
            del self._known[oldest]
        self._steps_unchanged = 0
        self._inside = self.active is None or masks.is_inside(self.active)
        if self.active and not masks:
            logger.warning(
                "the masks were removed: those in force stay until the model is "
                "attached again"
            )
        if self._layout is not None:
            self._vote(self._layout)  # Too young to count: withdraws the last vote.

    def _is_active(self, digest: object) -> bool:
        return self.active is not None and self.active.digest == digest

    def committed(self, layout: StepLayout, next_decision: Decision) -> None:
        """After a committed step: votes if there is news, obeys the next decision."""
        self.obey(next_decision)
        if layout is self._layout:
            self._steps_unchanged += 1
        else:
            self._layout = layout
            self._steps_unchanged = 0
        if self._steps_unchanged == 1:
            self._set_masks(layout)
        if 1 <= self._steps_unchanged <= self.settle_steps:
            self._vote(layout)
        if self._steps_unchanged == _UNAGREED_STEPS:
            self._warn_if_not_agreed()

    def _warn_if_not_agreed(self) -> None:
        if self.current and not self._is_active(self.current.digest):
            whole = "every step is sent whole, FULL or dense"
            logger.warning(
                "masks %s were set at this rank %d steps ago and are still not agreed "
                "on: other ranks have others, or the coordinator is away; %s. In force "
                "is %s.\nChange masks at all ranks alike.",
                self.current,
                _UNAGREED_STEPS,
                "those in force go on" if self.active and self._inside else whole,
                self._native.decision,
            )

    def _set_masks(self, layout: StepLayout) -> None:
        # Those in force first: the library forgets the oldest.
        sets = {s.digest: s for s in (self.active, self.current) if s}
        for masks in sets.values():
            self._native.set_masks(
                masks.digest,
                layout.digest,
                [bucket.digest for bucket in layout.buckets],
                [bucket.elements for bucket in layout.buckets],
                bucket_bitmaps(layout, self._table, masks),
            )

    def _vote(self, layout: StepLayout) -> None:
        self._native.vote(
            layout.digest,
            self.current.digest,
            self._steps_unchanged,
            self.settle_steps,
            self._inside,
            self.current.kept,
            self.current.elements,
        )

    def obey(self, decision: Decision) -> None:
        """Activates the decision's masks if it is a new one."""
        if decision.version == self._version:
            return
        self._version = decision.version
        if not decision.mask_digest:
            return  # What was agreed on stays in force until something else is.
        masks = self._known.get(decision.mask_digest)
        if masks is None or self._is_active(masks.digest):
            return
        self.active = masks
        # Multiplying by bools takes seven times as long as by the weights' own type.
        self._factors = {
            key: (parameter, mask.to(parameter.dtype))
            for key, (parameter, mask) in self._enforced(masks).items()
        }
        self.tolerate_outside = False
        self._inside = self.current.is_inside(masks)
        self._cleaned = WeakSet()
        logger.info("masks %s are in force", masks)

    def mask_gradients(self, layout: StepLayout, buffers: Sequence[Tensor]) -> None:
        """Zeroes what a FULL step brought outside the masks in force."""
        if not self._gse or not self.active:
            return
        cached = self._bucket_masks
        if cached is None or cached[0] is not layout or cached[1] is not self.active:
            dropped = [~m for m in bucket_masks(layout, self._table, self.active)]
            cached = self._bucket_masks = (layout, self.active, dropped)
        for buffer, mask in zip(buffers, cached[2], strict=True):
            buffer.masked_fill_(mask, 0)

    def enforce(self, optimizer: Optimizer | None = None) -> None:
        """Weights times mask, and once per activation the optimizer's state, too.

        Otherwise momentum and weight decay revive pruned weights. Without an
        optimizer: all weights of the model.
        """
        if not self._gse or not self.active:
            return
        ours = self._factors
        if optimizer is None:
            entries = list(ours.values())
        else:
            entries = [
                ours[id(p)]
                for group in optimizer.param_groups
                for p in group["params"]
                if id(p) in ours
            ]
        with torch.no_grad():
            for parameter, mask in entries:
                parameter.mul_(mask)
            if optimizer is not None and optimizer not in self._cleaned:
                self._cleaned.add(optimizer)
                for parameter, mask in entries:
                    _mask_state(optimizer, parameter, mask)

    def _enforced(self, masks: MaskSet) -> dict[int, tuple[Tensor, Tensor]]:
        return {
            id(parameter): (parameter, masks.masks[name])
            for name, parameter in self._table
            if name in masks.masks and name not in masks.unenforced
        }

    def check_weights(self) -> None:
        """Before the first step and after each load.

        Raises:
          PacTrainError: a weight outside the current masks is not zero.
        """
        if self.tolerate_outside:
            with torch.no_grad():
                for weights, kept in self._enforced(self.current).values():
                    weights.mul_(kept)
            return
        for name, parameter in self._table:
            mask = self.current.masks.get(name)
            if mask is None or name in self.current.unenforced:
                continue
            count = int(((parameter.detach() != 0) & ~mask).sum())
            if count:
                raise PacTrainError(
                    f"{name} has {count:,} non-zero weights outside its mask: weights "
                    "were loaded after prune.\nPrune again after loading, or call "
                    "pactrain.apply_masks(model) to set them to zero."
                )

    def packed(self) -> dict[str, Tensor]:
        """The current masks as bits, in the order of indices, for a checkpoint."""
        return {
            name: torch.from_numpy(storage.pack(mask.contiguous().reshape(-1)))
            for name, mask in self.current.masks.items()
        }


def _mask_state(optimizer: Optimizer, parameter: Tensor, mask: Tensor) -> None:
    for value in optimizer.state.get(parameter, {}).values():
        if isinstance(value, Tensor) and value.shape == parameter.shape:
            value.mul_(mask)
