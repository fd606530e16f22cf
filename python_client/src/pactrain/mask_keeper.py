"""Keeps one model's masks in step with the job: votes, and acts only when agreed.

`current` is what this rank wants; `active` what the job agreed on, by a decision that
a committed step put in force on all ranks at once. Weights and gradients are masked
with `active` only, so ranks cannot drift apart by masking on their own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from . import agreement, enforcement, optimizer_hook, storage, words
from .buffers import mask_buffers
from .dense_steps import DenseSteps
from .enforcement import Origin
from .errors import PacTrainError, RefusedError
from .layout import BucketLayout, StepLayout, bucket_mask, masks_in
from .mask_source import MaskSource
from .masks import Declared, MaskSet, make_mask_set, registry
from .parameters import ParameterTable, plain_name
from .replaced import ReplacedWeights
from .types import NO_DIGEST, Decision, Digest, Native

_KNOWN_SETS = 4  # As many as the trainer library holds.
_CHECK_STEPS = 8  # Between two looks at some of the weights outside the masks.
UNAGREED_STEPS = 50  # One epoch: agreement takes a few steps if all ranks vote alike.

logger = logging.getLogger("pactrain")


@dataclass(frozen=True)
class Transfer:
    """The masks of a rank: what it wants, and how far that is agreed on."""

    current: MaskSet
    active: MaskSet | None
    agreed: MaskSet | None
    settle_steps: int
    tolerate_outside: bool

    @property
    def frozen(self) -> frozenset[str]:
        """Whose values were taken when all agreed."""
        return self.agreed.frozen if self.agreed else frozenset()


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
        self._weights = enforcement.Enforcement(table)
        self._replaced = ReplacedWeights(table)
        self.dense_steps = DenseSteps(source.module, table)
        self._known = {self.current.digest: self.current}
        self._layout_digest = table.digest(native.digest_of)  # Of the masks' bits.
        self._steps_unchanged = 0
        self._version = -1  # Of the decision that was looked at last.
        self._in_force = NO_DIGEST  # Its masks.
        # By index of a bucket: the masks and the layout that the library has.
        self._given: dict[int, tuple[Digest, Digest]] = {}
        self._made_bits = False  # In this step.
        self._acting = b""  # What seen() said when masks changed last.
        self._has_news = False  # And ranks have not been compared since.
        self._inside = True
        self._origin: Origin = "prune"
        self._loaded = False  # Weights are new, and were not checked yet.
        self._copied = False  # By hand.
        self._newer = False  # Weights are newer than any masks but those wanted.
        self._forward_hook: RemovableHandle | None = None
        self._forward_is_due = False
        self._steps = 0
        self._changed_after = 0  # Steps of this session.
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
        """Why masks cannot be in force yet, whatever the others do; empty: they can.

        It is counted in steps alone, so equal runs have it alike.
        """
        if self.steps_unchanged >= self.settle_steps and not self.moving:
            return ""
        return (
            f"masks were the same for {self.steps_unchanged:,} steps, and settle asks "
            f"for {self.settle_steps:,}. It does so later; to have it in time, give a "
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
            bits = storage.pack((mask != 0).reshape(-1))
            digest = self._native.digest_of(bits).short
            kept = int(mask.count_nonzero())
            seen[name] = f"{digest} {kept:,} of {mask.numel():,}"
        return seen

    def seen_at_end(self) -> dict[str, str]:
        """As seen(), of all masks as they are now."""
        seen, wanted = MaskKeeper.seen(self), self.wanted_now()
        for name, mask in wanted.masks.items():
            place = plain_name(name).removesuffix("_orig")
            if place not in seen:
                bits = storage.pack(mask.contiguous().reshape(-1))
                kept, digest = storage.count(mask), self._native.digest_of(bits).short
                seen[place] = f"{digest} {kept:,} of {mask.numel():,}"
        return seen

    @property
    def has_new_weights(self) -> bool:
        """Some were loaded since the last step."""
        return self._loaded

    def news(self, always: bool) -> Digest | None:
        """Of the same masks, if some have changed since the last committed step or,
        where they are tracked, `always`: ranks are compared by it."""
        return self._native.digest_of(self._acting) if self._has_news else None

    def _look_at_buffers(self) -> None:
        self._acting = repr(MaskKeeper.seen(self)).encode()

    def look_anew(self) -> None:
        """Ranks did not have equal weights; from this step on they do."""

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

    def begin_step(self) -> bool:
        """Looks whether masks were changed since the last step, and weights are where
        they belong. True: weights were replaced by hand, so ranks have to be compared.

        Raises:
          PacTrainError: as check_weights(); or weights are changed that masks in force
            have at zero, and not even masking them before forward passes helps.
        """
        self.notice_copies()
        copied = self._copied
        if self._source.changed():
            before = self._acting
            self._look_at_buffers()
            self._has_news = self._has_news or self._acting != before
            # A broadcast may have committed another decision since the last step.
            self.obey(self._native.decision)
            self._take(self._read())
        if self._loaded:
            self.check_weights(only_loaded=True)
            self._loaded = self._copied = False
            self._newer = True
        elif self._weights.is_due or self._steps % _CHECK_STEPS == 0:
            self._check_enforced()
        return copied

    def notice_copies(self) -> None:
        """Weights that the script has copied into the model by hand count as loaded.

        Called before masks change and before weights are zeroed.
        """
        if self._gse and self._replaced.notice(self._weights.values):
            self._copied = True
            self.weights_loaded()

    def _check_enforced(self) -> None:
        strays = self._weights.sampled_outside() if self._enforces else []
        if not strays:
            return
        if self._forward_hook is None:
            logger.info(
                "%s has weights outside the masks in force that are not zero, so they "
                "are changed by other means than an optimizer of torch: from now on "
                "weights are masked before each forward pass",
                strays[0],
            )
            self._forward_hook = optimizer_hook.watch_forwards(self)
            return
        raise PacTrainError(
            f"{strays[0]} has weights outside the masks in force that are not where "
            "they belong, though the model is masked before its forward pass: it is "
            "not called as a whole, or is changed during the pass.\n"
            "Call session.apply_masks() after each change of weights, before the next "
            "forward pass."
        )

    def sync(self, rank: int, failed: bool = False) -> None:
        """Rank 0's masks become all ranks' own. Collective, between steps.

        Raises: as agreement.broadcast(), on all ranks; masks are as before.
        """
        mine = self._source.read()
        received = agreement.broadcast(self._native, self._table, mine, rank, failed)
        self.obey(self._native.decision)
        self.adopt(received)

    def _take(self, masks: MaskSet) -> None:
        if masks.digest != self.current.digest:
            logger.info("masks changed from %s to %s", self.current, masks)
            self._replace(masks)

    def start(self, origin: Origin = "prune") -> None:
        """Before the first step: all ranks have equal weights and masks.

        Where masks come from a session's state weights may be loaded until the first
        step.

        Raises:
          PacTrainError: as check_weights().
        """
        self._origin = origin
        self._look_at_buffers()
        self._weights.agree(self.current)
        if origin == "state" and not self.tolerate_outside:
            for _, parameter in self._table:
                registry.mark_loaded(parameter)
            self.weights_loaded()
        else:
            self.check_weights()
        # A generation may begin with masks from before the weights were loaded.
        self._newer = True
        self.obey(self._native.decision)
        self._follow_masks()
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
        return 2 + 3 * (1 + agreement.packed_words(self._table) + self._name_words)

    @property
    def _name_words(self) -> int:
        return -(-len(self._table) // 32)

    def transfer(self) -> tuple[words.Words, list[Tensor]]:
        """For a rank that comes later: what is wanted, and how far it is agreed on;
        and the values of frozen weights.

        Words: settle_steps, tolerate_outside, and of each mask set whether there is
        one, its masks, and whose are unenforced.
        """
        weights, head = self._weights, [self.settle_steps, self.tolerate_outside]
        packed = [np.array(head, dtype=np.uint32)]
        for masks in (self.wanted(), self.active, weights.agreed):
            packed += [
                np.array([masks is not None], dtype=np.uint32),
                agreement.pack_masks(self._table, masks),
                agreement.name_bits(self._table, masks.unenforced if masks else ()),
            ]
        values = [weights.values[n] for n in self._table.names if n in weights.values]
        return np.concatenate(packed), values

    def unpack_transfer(self, data: npt.NDArray[np.uint8]) -> Transfer:
        """What transfer() gave at another rank of the same model.

        Raises:
          RefusedError: it is too short, or has no masks.
        """
        if data.size != 4 * self.transfer_words:
            raise RefusedError(
                f"The masks that came have {data.size} bytes; allowed are "
                f"{4 * self.transfer_words}.\nUse one release of pactrain on all ranks."
            )
        packed = data.copy().view(np.uint32)
        sets: list[MaskSet | None] = []
        for one in packed[2:].reshape(3, -1):
            declared = agreement.unpack_masks(self._table, one[1 : -self._name_words])
            unenforced = agreement.named_bits(self._table, one[-self._name_words :])
            declared = Declared(declared.masks, declared.frozen, unenforced)
            sets.append(self._made(declared) if one[0] else None)
        current, active, agreed = sets
        return Transfer(
            current or self._made(Declared({})),
            *(active, agreed),
            *(int(packed[0]), bool(packed[1])),
        )

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
        known = (s for s in (self.active, self.current) if s is not None)
        self._known = {masks.digest: masks for masks in known}
        self._inside = self.active is None or self.current.is_inside(self.active)
        self._loaded = self._newer = False
        self.settle_steps = taken.settle_steps
        self.tolerate_outside = taken.tolerate_outside
        names = [name for name in self._table.names if name in taken.frozen]
        by_name = dict(zip(names, values, strict=True))
        self._weights.resume(taken.agreed, by_name, self.active, optimizers)
        self._follow_masks()
        self._replaced.taken()

    def _replace(self, masks: MaskSet) -> None:
        self.current = masks
        self._known.pop(masks.digest, None)
        self._known[masks.digest] = masks
        while len(self._known) > _KNOWN_SETS:
            oldest = next(d for d in self._known if not self._is_active(d))
            del self._known[oldest]
        self._steps_unchanged = 0
        self._inside = self.active is None or masks.is_inside(self.active)
        self._follow_masks()
        self._changed_after = self._steps
        if self.active and not masks:
            self._say_removed()
        self._vote()  # Too young to count: withdraws the last vote.

    def _follow_masks(self) -> None:
        if self._gse:
            self._replaced.follow(self.current, self.active)

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
        self._steps += 1
        self._forward_is_due = True
        self._weights.step_committed()
        self._replaced.gradient_came()
        self._origin = "prune"  # The weights of a state's masks are there by now.
        self._count_step()
        if self._made_bits:
            self._made_bits = False
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
        self, dense: bool, layout: StepLayout, buffers: Sequence[Tensor]
    ) -> None:
        """After a committed step, before committed(): whether all was sent although
        masks are in force."""
        if dense and not self._gse and self.active and self.settled:
            rank = self._native.rank
            self.dense_steps.add(self.active, layout, buffers, rank)
        else:
            self.dense_steps.add_other()

    def before_submit(self, index: int, layout: BucketLayout) -> None:
        """Gives the library a bucket's bits of the masks in force.

        Buckets are known only when they come: DDP rebuilds its own after a step or two.
        """
        key = (self._in_force, layout.digest)
        masks = self._known.get(self._in_force)
        if not self._in_force or masks is None or self._given.get(index) == key:
            return
        bits = storage.pack(bucket_mask(layout, self._table, masks))
        self._native.set_masks(
            masks.digest, index, [layout.digest], [layout.elements], [bits]
        )
        self._given[index] = key
        self._made_bits = True

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
        self._weights.activate(masks)
        self.tolerate_outside = False
        self._inside = self.current.is_inside(masks)
        self._newer = self._newer and not self._inside
        self._follow_masks()
        logger.info("masks %s are in force", masks)

    def _forget_before(self, masks: MaskSet) -> None:
        """A later decision names none of the sets voted for before this one: whoever
        wants one back votes for it anew."""
        for digest in list(self._known):
            if digest == masks.digest:
                break
            if digest != self.current.digest:
                del self._known[digest]

    def mask_gradients(self, layout: StepLayout, buffers: Sequence[Tensor]) -> None:
        """Zeroes what a FULL step brought outside the masks in force."""
        if not self._gse or not self.active or self._suspended:
            return
        for bucket, buffer in zip(layout.buckets, buffers, strict=True):
            for place, mask in masks_in(bucket, self._table, self.active):
                buffer[place].masked_fill_(~mask, 0)

    @property
    def _suspended(self) -> bool:
        """True while the masks in force are older than the weights and would lose
        some."""
        return self._newer and not self._inside

    @property
    def _enforces(self) -> bool:
        """Weights that were loaded are checked before anything is lost of them."""
        free = self._loaded or self._suspended
        return self._gse and bool(self.active) and not free

    def enforce(self, optimizer: Optimizer | None = None) -> None:
        """After an optimizer step: weights outside the masks go back where they were.

        Without an optimizer: all weights of the model.
        """
        if self._enforces:
            self._weights.apply(optimizer)
        self._replaced.stepped(optimizer)

    def before_forward(self) -> None:
        """Where weights are changed by hand."""
        if self._forward_is_due:
            self._forward_is_due = False
            self.notice_copies()
            self.enforce()

    def apply_masks(self) -> None:
        """The same where the script asks for it, also of what was copied by hand and
        fits no other masks."""
        self.notice_copies()
        if self._copied:
            enforcement.zero_unfit(self._table, self.current)
        self.enforce()

    def masks_come_from_state(self, in_force: bool) -> None:
        """Its weights are there, or come before the next step. Not `in_force`: those
        outside are zeroed."""
        self._origin = "state"
        self.tolerate_outside = not in_force

    def weights_loaded(self) -> None:
        """They are checked before the next step, and left alone until then."""
        self._loaded = True

    def check_weights(self, only_loaded: bool = False) -> None:
        """At the start and after each load, at all ranks: takes the zeros of loaded
        weights as masks if they were pruned as much, elsewhere.

        Raises:
          PacTrainError: else, if a weight outside the current masks is neither zero nor
            frozen.
        """
        if self.tolerate_outside:
            enforcement.zero_outside(self._table, self.current)
        origin: Origin = "copied" if self._copied else self._origin
        found = enforcement.refitted(self._table, self.current, origin, only_loaded)
        if found is not None:
            self.adopt(found.masks)
            found.log(self.current, self._native.rank)
        enforcement.log_unmasked(self._table, self.current, self._native.rank)
        self._weights.take_values()

    def close(self) -> None:
        """The masks in force hold for the weights that are left."""
        if self._forward_hook is not None:
            self._forward_hook.remove()
        self.notice_copies()
        if self._enforces:
            self._weights.finish()

    def state(self) -> dict[str, Any]:
        """For a checkpoint: the masks that are wanted as bits, in the order of indices,
        also if they were changed since the last step; and if they are in force."""
        wanted = self.wanted()
        # Weights that were changed by hand may not be masked yet.
        in_force = self._is_active(wanted.digest) and not (
            self._enforces and self._weights.count_outside()
        )
        return {
            "masks": packed_masks(wanted),
            "frozen": sorted(wanted.frozen),
            "masks_active": in_force,
        }


def packed_masks(masks: Declared) -> dict[str, Tensor]:
    """Bits in the order of indices."""
    return {
        name: torch.from_numpy(storage.pack(mask.contiguous().reshape(-1)))
        for name, mask in masks.masks.items()
    }
