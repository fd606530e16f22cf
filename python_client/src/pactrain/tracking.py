"""The Mask Tracker (PacTrain, section III-B): masks that somebody else makes.

With attach(masks="track") the masks are what is not zero, however it became so. Ranks
have equal weights, so each finds the same for itself. A look is
one pass over a quarter of the weights in memory. Of a step's compute on one core it
took 0.04 % for a ResNet of 5.5 M elements (32 images of 32 x 32), and 0.2 % for a
transformer of 66 M (512 tokens).
"""

from __future__ import annotations

import ctypes
import logging
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from . import _abi, storage
from ._library import NativeSession
from .buffers import mask_buffers
from .effective_weights import EffectiveWeights
from .enforcement import Origin
from .errors import InvalidArgument, PacTrainError
from .layout import BucketLayout
from .mask_keeper import UNAGREED_STEPS, MaskKeeper
from .mask_source import MaskSource
from .masks import Declared, MaskSet, make_mask_set, registry
from .parameters import ParameterTable, some_of
from .roles import is_vector
from .types import Decision, Digest, Digester

DEFAULT_SETTLE_STEPS = 10
_SHOWN = 3
_SHRINKS = 2  # In a row: one may be the script's only pruning.
_MOVING_STEPS = 2 * UNAGREED_STEPS

_ADVICE = (
    "Masks are tracked: they are what is not zero in the weights, and pactrain keeps "
    "nothing at zero.\nLeave out masks='track' for masks of pactrain's; or prune by "
    "torch.nn.utils.prune or by hand."
)

_WITH_GSE = (
    "masks are tracked with gse=True: once they are in force the script does not see "
    "gradients outside them, and weights that are zero there stay zero until the "
    "script gives them a value. Weights that grow by their gradients (RigL), or from "
    "zero, need gse=False"
)

logger = logging.getLogger("pactrain")


class NativeTracker:
    """pt_tracker of the trainer library, for parameters in a fixed order."""

    def __init__(
        self, parameters: Sequence[tuple[str, int]], settle_steps: int
    ) -> None:
        self._library = _abi.load_library()
        count = len(parameters)
        handle = self._library.pt_tracker_new(
            count,
            (ctypes.c_char_p * count)(*(name.encode() for name, _ in parameters)),
            (ctypes.c_uint64 * count)(*(elements for _, elements in parameters)),
            settle_steps,
        )
        if not handle:
            raise PacTrainError(
                f"masks cannot be tracked in {sum(n for _, n in parameters):,} "
                "elements; allowed are less than 2^31, and memory for a bit for each."
                "\nLeave out masks='track'."
            )
        self._elements = [elements for _, elements in parameters]
        self._handle = handle
        weakref.finalize(self, self._library.pt_tracker_free, handle)

    def due(self) -> list[tuple[int, int, int]]:
        """Parameter, first element and number of elements of each look."""
        library, handle = self._library, self._handle
        ranges = (
            library.pt_tracker_range(handle, index)
            for index in range(library.pt_tracker_due(handle))
        )
        return [(r.parameter, r.first, r.elements) for r in ranges]

    def look(self, index: int, values: Tensor) -> int:
        """How many elements moved since they were looked at last.

        REQUIRES: plain float32, as many as due()[index] says.
        """
        library = self._library
        here = values.cpu()
        return int(library.pt_tracker_look(self._handle, index, here.data_ptr()))

    def end_step(self) -> None:
        self._library.pt_tracker_end_step(self._handle)

    def restart(self) -> None:
        self._library.pt_tracker_restart(self._handle)

    @property
    def state(self) -> Any:
        """steps, steps_unchanged, settle_steps, last_change."""
        return self._library.pt_tracker_state(self._handle)

    def packed(self, parameter: int) -> npt.NDArray[np.uint8]:
        """A bit for each element, in whole words of 64."""
        packed = storage.empty_bits(self._elements[parameter])
        self._library.pt_tracker_bits(self._handle, parameter, packed.ctypes.data)
        return packed

    def bits(self, parameter: int) -> Tensor:
        """A flat bool tensor."""
        return storage.unpack(self.packed(parameter), self._elements[parameter])

    def moves(self, parameter: int) -> int:
        return int(self._library.pt_tracker_moves(self._handle, parameter))

    @property
    def moved(self) -> str:
        """What moved since the masks were settled last; empty: nothing."""
        text: bytes = self._library.pt_tracker_moved(self._handle)
        return text.decode("utf-8", "replace")


class TrackedSource(MaskSource):
    """The masks that the weights have: reading looks, and writing is left to others."""

    tracks = True

    def __init__(
        self, module: nn.Module, table: ParameterTable, settle_steps: int
    ) -> None:
        """
        Raises:
          InvalidArgument: a parameter has a mask of pactrain's.
        """
        super().__init__(module, table)
        self._check_registry()
        self._candidates = [
            (index, name, parameter)
            for index, (name, parameter) in enumerate(table)
            if not is_vector(parameter)
        ]
        self._weights = EffectiveWeights(module, table)
        self._changes = registry.changes
        self._looked = False
        self._beside: bytes | None = None  # Masks that the tracker does not see.
        # Something has moved, and ranks have not been compared since.
        self.has_news = False
        self._given = Declared({})
        self.settle_steps = settle_steps
        self.tracker = NativeTracker(
            [(name, p.numel()) for _, name, p in self._candidates], settle_steps
        )

    @property
    def pending(self) -> bool:
        return False

    def changed(self) -> bool:
        return False

    def mark_changed(self) -> None:
        """Weights say so themselves."""

    def write(self, declared: Declared) -> None:
        """They count until the weights are looked at."""
        self._given = declared

    def look(self) -> bool:
        """At what is due in this step. True: something has moved.

        Raises:
          InvalidArgument: a parameter was given a mask of pactrain's.
        """
        if registry.changes != self._changes:
            self._check_registry()
            self._changes = registry.changes
        moved = False
        for look, (candidate, first, elements) in enumerate(self.tracker.due()):
            index = self._candidates[candidate][0]
            piece = self._weights.piece(index, first, elements)
            if not self.tracker.look(look, piece):
                continue
            moved = True
            if self._weights.forget(index):
                piece = self._weights.piece(index, first, elements)
                self.tracker.look(look, piece)
        beside = b"".join(raw.tobytes() for _, raw in self._masks_beside())
        if self._looked and (moved or beside != self._beside):
            self.has_news = True
        self._looked, self._beside = True, beside
        return moved

    def _masks_beside(self) -> Iterator[tuple[str, npt.NDArray[np.uint8]]]:
        """Of torch.nn.utils.prune, on vectors and on what is not trained."""
        tracked = {id(parameter) for _, _, parameter in self._candidates}
        for name, mask, parameter in mask_buffers(self._named):
            if id(parameter) not in tracked:
                yield name, storage.raw_bytes(mask != 0)

    def seen(self) -> dict[str, tuple[npt.NDArray[np.uint8], int, int]]:
        """By name each mask as it was looked at last, what it keeps, and of how many
        elements. C++ ranks have the first ones, in this order."""
        tracked = (
            (name, self.tracker.packed(candidate), parameter.numel())
            for candidate, (_, name, parameter) in enumerate(self._candidates)
        )
        seen = {
            name: (bits, int(np.unpackbits(bits).sum()), elements)
            for name, bits, elements in tracked
        }
        for name, raw in self._masks_beside():
            seen[name] = (raw, int(raw.sum()), raw.size)
        return seen

    def digest(self, digest_of: Digester) -> Digest:
        """Of what was seen: equal where ranks train the same network."""
        packed = [
            self.tracker.packed(candidate)
            for candidate, _ in enumerate(self._candidates)
        ]
        beside = [raw for _, raw in self._masks_beside()]
        return digest_of(np.concatenate([*packed, *beside, np.empty(0, np.uint8)]))

    def read(self) -> Declared:
        """As they were when they were looked at."""
        if not self._looked:
            return self._given
        return self._declared(
            storage.unflatten(self.tracker.bits(candidate), parameter)
            for candidate, (_, _, parameter) in enumerate(self._candidates)
        )

    def read_now(self) -> Declared:
        """As the weights are."""
        return self._declared(
            self._weights.whole(index) for index, _, _ in self._candidates
        )

    def _declared(self, found: Any) -> Declared:
        # What is all zero was not pruned: LoRA's B before training, say.
        masks = {
            name: mask
            for (_, name, _), mask in zip(self._candidates, found, strict=True)
            if bool(mask.any()) and not bool(mask.all())
        }
        return Declared(masks, unenforced=frozenset(masks))

    def moved_most(self) -> str:
        """Of the whole session, in words; empty: nothing has moved."""
        counts = [
            (self.tracker.moves(candidate), name)
            for candidate, (_, name, _) in enumerate(self._candidates)
        ]
        most = sorted((c for c in counts if c[0]), key=lambda c: -c[0])[:_SHOWN]
        return ", ".join(f"{name} {count:,}" for count, name in most)

    def _check_registry(self) -> None:
        names = [n for n, p in self._table if registry.get(p) is not None]
        if names:
            raise InvalidArgument(
                f"{some_of(names)}: masks of prune() or set_masks(), while masks is "
                f"'track'; allowed is one of the two.\n{_ADVICE}"
            )


class TrackingKeeper(MaskKeeper):
    """Votes for what it sees; weights are never touched.

    `current` is what was seen when the masks began to move, or were settled again. A
    decision without masks ends those in force, since more weights may count by now.
    """

    def __init__(
        self,
        table: ParameterTable,
        source: TrackedSource,
        native: NativeSession,
        gse: bool,
    ) -> None:
        super().__init__(table, source, native, gse)
        self._tracked = source
        self._moving = True  # Not settled yet, or not any more.
        self._steps_moving = 0
        self._is_first_look = True  # Of this generation.
        # With gse: share that was kept each time masks were settled inside those in
        # force; None once a weight has come back.
        self._shrunk: list[float] | None = [] if gse else None

    @property
    def settled(self) -> bool:
        return not self._moving and super().settled

    @property
    def moving(self) -> bool:
        return self._moving

    @property
    def steps_unchanged(self) -> int:
        return int(self._tracked.tracker.state.steps_unchanged)

    @property
    def last_change(self) -> int:
        return int(self._tracked.tracker.state.last_change)

    @property
    def _moved(self) -> str:
        return self._tracked.tracker.moved

    @property
    def moved_most(self) -> str:
        return "; ".join(
            part for part in (self._tracked.moved_most(), self._shrinking) if part
        )

    def wanted_now(self) -> MaskSet:
        now = self._tracked.read_now()
        return make_mask_set(self._table, now, self._native.digest_of)

    def start(self, origin: Origin = "prune") -> None:
        self.weights.tolerate_outside = False
        if self._gse and self._native.rank == 0:
            logger.info("%s", _WITH_GSE)
        self._look()
        super().start("masks")

    def begin_step(self) -> bool:
        self._look()
        return super().begin_step()

    def _look(self) -> None:
        moved = self._tracked.look()
        # What is seen first of a movement is voted for, and what the masks are when
        # they are settled. In between only while masks are in force that have room
        # for all that was seen: something may have come back outside of them.
        held = self.active is not None and self._inside
        if self._is_first_look or (moved and (held or not self._moving)):
            self._moving = True
            self.obey(self._native.decision)
            self._steps_unchanged = 0
            self._take(self._read())
        self._is_first_look = False

    def seen(self) -> dict[str, str]:
        return {
            name: f"{self._native.digest_of(bits).short} {kept:,} of {elements:,}"
            for name, (bits, kept, elements) in self._tracked.seen().items()
        }

    def _look_at_buffers(self) -> None:
        """They are among what is tracked."""

    def news(self, always: bool) -> Digest | None:
        if not (always or self._tracked.has_news):
            return None
        return self._tracked.digest(self._native.digest_of)

    def look_anew(self) -> None:
        self._tracked.tracker.restart()

    def _count_step(self) -> None:
        self._tracked.has_news = False
        tracker = self._tracked.tracker
        tracker.end_step()
        if not self._inside:
            self._shrunk = None
        self._steps_unchanged = self.steps_unchanged
        self._steps_moving = self._steps_moving + 1 if self._moving else 0
        too_long = self._steps_moving == _MOVING_STEPS + self.settle_steps
        if too_long and self._native.rank == 0:
            self._warn_of_moves()
        if not self._moving:
            if self._steps_unchanged == UNAGREED_STEPS + self.settle_steps:
                self._warn_if_not_agreed()
            return
        if self._steps_unchanged >= self.settle_steps:
            self._moving = False
            before = self.active
            self._take(self._read())
            self._note_shrinking(before)
            self._steps_unchanged = self.steps_unchanged
        self._vote()

    def _note_shrinking(self, before: MaskSet | None) -> None:
        """Weights that a script grows from zero are not seen, since they get no
        gradients; that masks only shrink then is."""
        if before is None or self._shrunk is None:
            return
        if self.current.kept < before.kept:
            self._shrunk = (self._shrunk or [before.keep]) + [self.current.keep]
            if len(self._shrunk) == 1 + _SHRINKS and self._native.rank == 0:
                logger.warning("%s", self._shrinking)

    @property
    def _shrinking(self) -> str:
        """Empty: fewer than _SHRINKS times, or not always."""
        shrunk = self._shrunk or []
        if len(shrunk) <= _SHRINKS:
            return ""
        return (
            f"with gse=True masks shrank {len(shrunk) - 1} times (keep {shrunk[0]:.3f} "
            f"to {shrunk[-1]:.3f}) and no weight came back. Weights at zero get no "
            "gradients: if the script grows weights (RigL), they are held at zero, and "
            "it needs gse=False. If it only prunes, all is well"
        )

    def _warn_of_moves(self) -> None:
        most = self.moved_most
        logger.warning(
            "tracked masks have moved for %d steps without being the same for %d, as "
            "settle asks for%s; until then no others come in force. In force is %s.\n"
            "Prune less often, or give a smaller settle.",
            self._steps_moving,
            self.settle_steps,
            f"; elements that moved most: {most}" if most else "",
            self._native.decision,
        )

    def renew(self) -> None:
        self.look_anew()
        self._moving = self._is_first_look = True
        super().renew()

    def obey(self, decision: Decision) -> None:
        inside = self._inside
        super().obey(decision)
        if not decision.mask_digest:
            self.active, self._inside = None, True
            self._set_newer(False)
        if inside and not self._inside:
            self._vote()

    def mask_gradients(
        self, layouts: Sequence[BucketLayout], buffers: Sequence[Tensor]
    ) -> None:
        if self._inside:
            super().mask_gradients(layouts, buffers)

    def _say_removed(self) -> None:
        """They end those in force."""

    def weights_loaded(self) -> None:
        """The next looks see what they are."""

    def check_weights(self, only_loaded: bool = False) -> None:
        """Whatever they are, they have the right masks."""
        self.weights.enforced.take_values()
        self.weights.loaded = self.weights.copied = False

    def state(self) -> dict[str, Any]:
        """The masks that the weights have now, so that weights outside are zero."""
        wanted = self._tracked.read_now()
        return {"masks": wanted.packed(), "frozen": [], "masks_active": True}
