"""Keeps one model's masks in step with the job: votes, and acts only when agreed.

`current` is what this rank wants; `active` what the job agreed on, by a decision that
a committed step put in force on all ranks at once. Weights and gradients are masked
with `active` only, so ranks cannot drift apart by masking on their own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn
from torch.optim import Optimizer

from . import agreement, mask_transfer, storage, words
from ._library import NativeSession
from .buffers import mask_buffers
from .dense_steps import DenseSteps
from .enforcement import Origin
from .layout import BucketLayout, bucket_bits, masks_in
from .mask_source import MaskSource
from .mask_transfer import Transfer
from .masks import Declared, MaskSet, make_mask_set
from .optimizer_hook import StepWatcher
from .parameters import ParameterTable, plain_name
from .types import NO_DIGEST, Decision, Digest
from .weight_keeper import WeightKeeper

_CHECK_STEPS = 8  # Between two looks at some of the weights outside the masks.
_MOST_KNOWN = 4  # Mask sets: as many as the trainer library holds.
UNAGREED_STEPS = 50  # One epoch: agreement takes a few steps if all ranks vote alike.

logger = logging.getLogger("pactrain")


class MaskKeeper(StepWatcher):
    """Not thread-safe: called between steps, by the hook or by the waiter."""

    def __init__(
        self,
        table: ParameterTable,
        source: MaskSource,
        native: NativeSession,
        gse: bool,
    ) -> None:
        self._table = table
        self._source = source
        source.keeps_zeros = gse
        self._native = native
        self._gse = gse
        self.settle_steps = 1
        self.current = self._read()
        self.active: MaskSet | None = None
        self.weights = WeightKeeper(source.module, table, gse)
        self.dense_steps = DenseSteps(source.module, table)
        # What a decision may name: what this rank voted for lately, the oldest first.
        self._known: dict[Digest, MaskSet] = {self.current.digest: self.current}
        self._layout_digest = table.digest(native.digest_of)  # Of the masks' bits.
        self._steps_unchanged = 0
        self._version = -1  # Of the decision that was looked at last.
        self._in_force = NO_DIGEST  # Its masks.
        # By index of a bucket: the masks and the layout whose bits the library has.
        # Buckets are known only when they come: DDP rebuilds its own after some steps.
        self._given: dict[int, tuple[Digest, Digest]] = {}
        self._gave_bits = False  # In this step.
        self._acting = b""  # What seen() said when masks changed last.
        self._has_news = False  # And ranks have not been compared since.
        self._inside = True
        self._newer = False  # Weights are newer than any masks but those wanted.
        self.steps = 0  # Committed ones of this session.
        self._changed_after = 0  # Steps of this session.
        self._told = (0, NO_DIGEST)  # Whose keep was told: generation, mask set.
        # What is to be said of ranks that did not end alike.
        self.apart: list[str] = []

    @property
    def tracks(self) -> bool:
        """True if the masks are what the weights say."""
        return self._source.tracks

    @property
    def moving(self) -> bool:
        """True while tracked masks have not been the same for long enough."""
        return False

    @property
    def unsettled(self) -> str:
        """Why no decision can be in force for the next step, whatever the others do;
        empty: one can. While votes have not settled none is made, on masks or a pin.

        It is counted in steps alone, so equal runs have it alike.
        """
        count = f"{self.steps_unchanged:,} step" + "s" * (self.steps_unchanged != 1)
        agreed = self.steps_unchanged > self.settle_steps or not self.current
        if agreed and not self.moving:
            return ""
        if self.steps_unchanged == self.settle_steps and not self.moving:
            return (
                f"masks were the same for {count}, as settle asks for, and all ranks "
                "agree in the step after that. It does so with the next step that is "
                "due"
            )
        return (
            f"masks were the same for {count}, and settle asks for "
            f"{self.settle_steps:,}. It does so later; to have it in time, give a "
            "later step or a smaller settle="
        )

    @property
    def steps_unchanged(self) -> int:
        return self._steps_unchanged

    @property
    def last_change(self) -> int:
        """The step of this session after which the masks changed last; 0: before."""
        return self._changed_after

    @property
    def _moved(self) -> str:
        """What moved lately, for the coordinator."""
        return ""

    @property
    def moved_most(self) -> str:
        """Parameters whose masks moved most, in words; empty: masks are declared."""
        return ""

    def seen(self) -> dict[str, str]:
        """Of masks that act without being agreed on, since weights are zero or torch
        multiplies by them: by name a text that is equal at ranks that see the same, as
        in "1a2b3c4d 512 of 1,024"."""
        seen = {}
        for name, mask, _ in mask_buffers(self.module.named_modules()):
            seen[name] = self._text_of(mask != 0)
        return seen

    def _text_of(self, mask: Tensor) -> str:
        digest = self._native.digest_of(storage.pack(mask.reshape(-1))).short
        return f"{digest} {storage.count(mask):,} of {mask.numel():,}"

    def seen_at_end(self) -> dict[str, str]:
        """As seen(), of all masks as they are now."""
        seen, wanted = MaskKeeper.seen(self), self.wanted_now()
        for name, mask in wanted.masks.items():
            place = plain_name(name).removesuffix("_orig")
            if place not in seen:
                seen[place] = self._text_of(mask)
        return seen

    def news(self, always: bool) -> Digest | None:
        """Of the same masks, if some have changed since the last committed step or,
        where they are tracked, `always`: ranks are compared by it."""
        return self._native.digest_of(self._acting) if self._has_news else None

    def _look_at_buffers(self) -> None:
        self._acting = repr(MaskKeeper.seen(self)).encode()

    def look_anew(self) -> None:
        """Ranks did not have equal weights; from this step on they do."""

    @property
    def table(self) -> ParameterTable:
        return self._table

    @property
    def module(self) -> nn.Module:
        return self._source.module

    def _read(self) -> MaskSet:
        return make_mask_set(self._table, self._source.read(), self._native.digest_of)

    def wanted(self) -> MaskSet:
        """Also if masks were changed since the last step."""
        return self._read() if self._source.pending else self.current

    def wanted_now(self) -> MaskSet:
        """The same, and where masks are tracked as the weights are."""
        return self.wanted()

    @property
    def settled(self) -> bool:
        """True if nothing is wanted but what is in force: so at all ranks at once,
        where all want the same."""
        if self._source.pending:
            return False
        return not self.current or self._is_active(self.current.digest)

    def adopt(self, declared: Declared) -> None:
        """Makes these masks this rank's, between steps."""
        self._source.write(declared)
        self._look_at_buffers()
        self._take(self._read())
        self._source.say_removed(self._native.rank)  # sync() has read them, too.

    def begin_step(self) -> bool:
        """Looks whether masks were changed since the last step, and weights are where
        they belong. True: weights were replaced by hand, so ranks have to be compared.

        Raises:
          PacTrainError: as check_weights(); or weights are changed that masks in force
            have at zero, and not even masking them before forward passes helps.
        """
        self.weights.notice_copies(in_pass=True)
        self.weights.warn(self._native.rank)
        copied, self.weights.to_compare = self.weights.to_compare, False
        if not self._take_news() and (
            self.weights.enforced.is_due or self.steps % _CHECK_STEPS == 0
        ):
            self.weights.check_enforced()
        return copied

    def check_step(self, optimizer: Optimizer) -> None:
        """Before it moves weights: what was loaded since the backward pass began is
        looked at now, as gradients from before would change it.

        Raises:
          PacTrainError: as check_weights().
        """
        self.weights.before_step(optimizer)
        if self.weights.will_move_loaded(optimizer):
            self._take_news()

    def _take_news(self) -> bool:
        """Masks and weights that the script has changed; True: weights were."""
        if self._source.changed():
            before = self._acting
            self._look_at_buffers()
            self._has_news = self._has_news or self._acting != before
            # A broadcast may have committed another decision since the last step.
            self.obey(self._native.decision)
            self._take(self._read())
            self._source.say_removed(self._native.rank)
        if self.weights.loaded:
            self.check_weights(only_loaded=True)
            self._set_newer(self.active is None or not self._inside)
            return True
        return False

    def sync(self, failed: bool = False) -> None:
        """Rank 0's masks become all ranks' own. Collective, between steps.

        Raises: as agreement.broadcast(), on all ranks; masks are as before.
        """
        mine = self._source.read()
        received = agreement.broadcast(self._native, self._table, mine, failed)
        self.obey(self._native.decision)
        self.adopt(received)

    def _take(self, masks: MaskSet) -> None:
        if masks.digest != self.current.digest:
            logger.info("masks changed from %s to %s", self.current, masks)
            self._replace(masks)
        elif masks.unenforced != self.current.unenforced:
            self._enforce_others(masks)

    def _enforce_others(self, masks: MaskSet) -> None:
        """The same masks, but others are torch's to enforce."""
        self.current = masks
        self._known[masks.digest] = masks
        if self.active is not None and self._is_active(masks.digest):
            self.active = masks
            self.weights.activate(masks)
        self.weights.follow(masks)

    def start(self, origin: Origin = "prune") -> None:
        """Before the first step: all ranks have equal weights and masks.

        Where masks come from a session's state weights may be loaded until the first
        step.

        Raises:
          PacTrainError: as check_weights().
        """
        self.weights.origin = origin
        self._look_at_buffers()
        self.weights.enforced.agree(self.current)
        if origin == "state":
            self.weights.tolerate(self.current)
            self.weights.mark_all_loaded()
        else:
            self.check_weights()
        self.obey(self._native.decision)
        # A generation may begin with masks from before the weights were loaded.
        self._set_newer(self.active is not None and not self._inside)
        self.weights.follow(self.current)
        self.weights.taken()  # All ranks have rank 0's by now.
        self._count_step()  # These masks were declared before the first one.

    def renew(self) -> None:
        """A new generation knows no masks and no votes; those in force stay so."""
        self._given.clear()
        self._steps_unchanged = 0
        self._has_news = False  # All have the donor's masks.
        self._version = -1
        self.obey(self._native.decision)

    @property
    def transfer_words(self) -> int:
        return mask_transfer.words_of(self._table)

    def transfer(self) -> tuple[words.Words, list[Tensor]]:
        """For a rank that comes later: what is wanted, and how far it is agreed on;
        and the values of frozen weights."""
        enforced = self.weights.enforced
        given = Transfer(
            *(self.wanted(), self.active, enforced.agreed, self.settle_steps),
            *(self.weights.tolerate_outside, self._newer),
        )
        values = enforced.values
        ordered = [values[name] for name in self._table.names if name in values]
        return mask_transfer.pack(self._table, given), ordered

    def unpack_transfer(self, data: npt.NDArray[np.uint8]) -> Transfer:
        """What transfer() gave at another rank of the same model.

        Raises:
          RefusedError: it is too short, or has no masks.
        """
        return mask_transfer.unpack(self._table, data, self._made)

    def _made(self, declared: Declared) -> MaskSet:
        return make_mask_set(self._table, declared, self._native.digest_of)

    def take_transfer(
        self,
        taken: Transfer,
        values: Sequence[Tensor],
        optimizers: Iterable[Optimizer],
    ) -> None:
        """Goes on as the rank that gave it. `values` are those of taken.frozen in the
        table's order, `optimizers` those that have that rank's state now."""
        self._source.write(taken.current)
        self._look_at_buffers()
        self.current = self._read()
        self.active = taken.active
        known = (masks for masks in (self.active, self.current) if masks is not None)
        self._known = {masks.digest: masks for masks in known}
        self._inside = self.active is None or self.current.is_inside(self.active)
        self.settle_steps = taken.settle_steps
        names = [name for name in self._table.names if name in taken.frozen]
        by_name = dict(zip(names, values, strict=True))
        self.weights.resume(taken.agreed, by_name, self.active, optimizers)
        self.weights.tolerate_outside = taken.tolerate_outside
        self._set_newer(taken.newer)
        self.weights.follow(self.current)
        self.weights.taken()

    def _replace(self, masks: MaskSet) -> None:
        self.current = masks
        self._add_known(masks)
        self._steps_unchanged = 0
        self._inside = self.active is None or masks.is_inside(self.active)
        self._set_newer(self._newer)
        self.weights.follow(masks)
        self._changed_after = self.steps
        if self.active and not masks:
            self._say_removed()
        self._vote()  # Too young to count: withdraws the last vote.

    def _set_newer(self, newer: bool) -> None:
        self._newer = newer
        self.weights.suspended = newer and not self._inside

    def _say_removed(self) -> None:
        logger.warning(
            "the masks were removed: those in force stay until the model is "
            "attached again"
        )

    def _is_active(self, digest: object) -> bool:
        return self.active is not None and self.active.digest == digest

    def committed(self, next_decision: Decision) -> None:
        """After a committed step: votes if there is news, obeys the next decision."""
        self.obey(next_decision)
        self._has_news = False
        self.steps += 1
        self.weights.step_committed()
        self._count_step()
        if self._gave_bits:
            self._gave_bits = False
            storage.give_back_memory()

    def _count_step(self) -> None:
        self._steps_unchanged += 1
        if self._steps_unchanged <= self.settle_steps:
            self._vote()
        if self._steps_unchanged == UNAGREED_STEPS:
            self._warn_if_not_agreed()

    def _warn_if_not_agreed(self) -> None:
        if self.current and not self._is_active(self.current.digest):
            decision = self._native.decision
            inside = decision.mask_digest and self._inside
            logger.warning(
                "masks %s have been the same at this rank for %d steps and are still "
                "not agreed on: other ranks have others, or the coordinator is away; "
                "until then %s. In force is %s.\nChange masks at all ranks alike.",
                self.current,
                self._steps_unchanged,
                "those in force go on" if inside else "every step sends all elements",
                decision,
            )

    def note_dense(
        self, dense: bool, layouts: Sequence[BucketLayout], buffers: Sequence[Tensor]
    ) -> None:
        """After a committed step, before committed(): whether all was sent although
        masks are in force."""
        if dense and not self._gse and self.active and self.settled:
            rank = self._native.rank
            self.dense_steps.add(self.active, layouts, buffers, rank)
        else:
            self.dense_steps.add_other()

    def before_submit(self, index: int, layout: BucketLayout) -> None:
        """Gives the library a bucket's bits of the masks in force."""
        masks = self._known.get(self._in_force)
        if not self._in_force or masks is None:
            return
        key = (masks.digest, layout.digest)
        if self._given.get(index) == key:
            return
        bits = bucket_bits(layout, self._table, masks)
        self._native.set_masks(
            masks.digest, index, [layout.digest], [layout.elements], [bits]
        )
        self._given[index] = key
        self._gave_bits = True

    def _vote(self) -> None:
        self._native.vote(
            self._layout_digest,
            self.current.digest,
            self._steps_unchanged,
            self.settle_steps,
            self._inside,
            self.current.kept,
            self.current.elements,
            self._moved,
        )
        self._tell_keep()

    def _tell_keep(self) -> None:
        """What each parameter keeps, for people at the coordinator: of a mask set that
        settled, once in a generation, by rank 0."""
        native, masks = self._native, self.current
        told = (native.generation, masks.digest)
        settled = self._steps_unchanged >= self.settle_steps
        if native.rank or not masks or not settled or told == self._told:
            return
        self._told = told
        native.keep(masks.digest, masks.by_parameter(self._table))

    def obey(self, decision: Decision) -> None:
        """Activates the decision's masks if it is a new one."""
        if decision.version == self._version:
            return
        self._version = decision.version
        self._in_force = decision.mask_digest
        if not decision.mask_digest:
            return  # What was agreed on stays in force until something else is.
        masks = self._known.get(decision.mask_digest)
        if masks is None or self._is_active(masks.digest):
            return
        self.active = masks
        self._forget_before(masks)
        self.weights.activate(masks)
        self._inside = self.current.is_inside(masks)
        self._set_newer(self._newer and not self._inside)
        self.weights.follow(self.current)
        logger.info("masks %s are in force", masks)

    def _add_known(self, masks: MaskSet) -> None:
        """The newest one; those in force, and this one, are not forgotten."""
        self._known.pop(masks.digest, None)
        self._known[masks.digest] = masks
        held = None if self.active is None else self.active.digest
        while len(self._known) > _MOST_KNOWN:
            del self._known[next(d for d in self._known if d != held)]

    def _forget_before(self, masks: MaskSet) -> None:
        """A later decision names none of the sets voted for before this one: whoever
        wants one back votes for it anew."""
        for digest in list(self._known):
            if digest == masks.digest:
                break
            if digest != self.current.digest:
                del self._known[digest]

    def mask_gradients(
        self, layouts: Sequence[BucketLayout], buffers: Sequence[Tensor]
    ) -> None:
        """Zeroes what a FULL step brought outside the masks in force."""
        if not self._gse or not self.active or self.weights.suspended:
            return
        for bucket, buffer in zip(layouts, buffers, strict=True):
            for _, place, mask in masks_in(bucket, self._table, self.active):
                storage.zero_outside(buffer[place], mask)

    def weights_loaded(self) -> None:
        """They are checked before the next step, and left alone until then."""
        self.weights.loaded = True

    def check_weights(self, only_loaded: bool = False) -> None:
        """At the start and after each load, at all ranks: takes the zeros of loaded
        weights as masks if they were pruned as much, elsewhere.

        Raises:
          PacTrainError: else, if a weight outside the current masks is neither zero nor
            frozen.
        """
        found = self.weights.refitted(self.current, only_loaded)
        if found is not None:
            self.adopt(found.masks)
            found.log(self.current, self._native.rank)
        self.weights.checked(self.current, self._native.rank)

    def state(self) -> dict[str, Any]:
        """For a checkpoint: the masks that are wanted as bits, in the order of indices,
        also if they were changed since the last step; and if they are in force."""
        wanted = self.wanted()
        # Weights that were changed by hand may not be masked yet.
        in_force = self._is_active(wanted.digest) and not self.weights.count_outside()
        return {
            "masks": wanted.packed(),
            "frozen": sorted(wanted.frozen),
            "masks_active": in_force,
        }
