"""What a session does to the weights of its model: looks at those that were loaded or
copied, and keeps the rest where the masks in force have them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from . import enforcement, optimizer_hook
from .captured_passes import CapturedPasses
from .enforcement import Origin, Refitted
from .errors import PacTrainError
from .frozen_walks import FrozenWalks
from .masks import MaskSet, registry
from .optimizer_hook import StepWatcher, parameters_of
from .parameters import ParameterTable, some_of
from .replaced import ReplacedWeights
from .swapped import say_swapped

_UNSEEN = (
    "where no step was seen: by torch.autograd.grad, torch.func or an average, say. "
    "Masks did not act on that; where they should, call session.apply_masks() after "
    "each such change"
)

logger = logging.getLogger("pactrain")


class WeightKeeper(StepWatcher):
    """Not thread-safe: called between steps."""

    def __init__(self, module: nn.Module, table: ParameterTable, gse: bool) -> None:
        self.module = module
        self.origin: Origin = "prune"
        # Set for a checkpoint from before the masks were in force: its weights outside
        # them had moved, and are set to zero instead of refused.
        self.tolerate_outside = False
        # Weights are new, and were not checked yet.
        self.loaded = False
        # Of these, some came by hand.
        self.copied = False
        # Some came by hand, and ranks were not compared since.
        self.to_compare = False
        # The masks in force are older than the weights and would lose some.
        self.suspended = False
        self._table = table
        self._gse = gse
        self.enforced = enforcement.Enforcement(table)
        self._replaced = ReplacedWeights(table)
        self._captured = CapturedPasses(self._pass_was_captured)
        self._walks = FrozenWalks(table)
        self._seen = True  # A gradient or a step since acts_on_all() looked.
        self._acts_on_all = True
        self._active: MaskSet | None = None
        self._forward_hook: RemovableHandle | None = None
        self._forward_is_due = False
        self._strayed: set[str] = set()  # Parameters for which there is the hook.
        # Frozen ones that an optimizer of torch moves. Until its next step they are the
        # script's, which may round them for a pass, say, and put them back.
        self._resting: set[int] = set()

    def activate(self, masks: MaskSet) -> None:
        """They are in force."""
        self._active = masks
        self.enforced.activate(masks)
        self._watch_passes()

    def _watch_passes(self) -> None:
        first = self.enforced.first
        if self._gse and first is not None:
            self._captured.watch(first)
        else:
            self._captured.close()

    def go_on_from(self, before: WeightKeeper) -> None:
        """The same model's weights, some of which are other parameters now."""
        before._captured.close()
        self.origin, self.tolerate_outside = before.origin, before.tolerate_outside
        self.loaded, self.copied = before.loaded, before.copied
        self.to_compare, self.suspended = before.to_compare, before.suspended
        self._strayed, self._resting = before._strayed, before._resting
        self._walks.go_on_from(before._walks)
        if before._forward_hook is not None:
            before._forward_hook.remove()
            self._mask_before_forwards()
        self._forward_is_due = before._forward_is_due

    def follow(self, wanted: MaskSet) -> None:
        """This rank's masks are these, or others have come in force."""
        if self._gse:
            self._replaced.follow(wanted, self._active)

    def resume(
        self,
        agreed: MaskSet | None,
        values: Mapping[str, Tensor],
        active: MaskSet | None,
        optimizers: Iterable[Optimizer],
    ) -> None:
        """Goes on as another rank does, whose weights are there."""
        self._active = active
        self.enforced.resume(agreed, values, active, optimizers)
        self._watch_passes()
        self.loaded = self.copied = self.to_compare = False

    def taken(self) -> None:
        """Weights are others than they were, and not by the script."""
        self._replaced.taken()

    def step_committed(self) -> None:
        """Gradients are there: weights will be changed."""
        self._all_came()
        self._walks.step()
        self.state_is_there()

    def _all_came(self) -> None:
        self._forward_is_due = self._seen = True
        self.enforced.step_committed()
        self._replaced.gradient_came()

    def _pass_was_captured(self) -> None:
        """The script has the gradients, as it had those of the pass before."""
        self.check_enforced()
        if self._strayed:
            self._all_came()

    def state_is_there(self) -> None:
        """The weights of a state's masks have come by now. Its masks may come in force
        later: until then weights outside them train."""
        self.origin = "prune"
        if self._active is not None:
            self.tolerate_outside = False

    def gradient_came(self, parameter: Tensor) -> None:
        """The same of one parameter."""
        self._forward_is_due = self._seen = True
        self._walks.step([parameter])
        self.enforced.step_committed([parameter])
        self._replaced.gradient_came([parameter])

    def mark_all_loaded(self) -> None:
        for _, parameter in self._table:
            registry.of(parameter).loaded = True
        self.loaded = True

    def masks_come_from_state(self, in_force: bool) -> None:
        """Its weights are there, or come before the next step. Not `in_force`: those
        outside are zeroed."""
        self.origin = "state"
        self.tolerate_outside = not in_force

    def notice_copies(
        self,
        parameters: Collection[Tensor] | None = None,
        in_pass: bool = False,
        takes_frozen: bool = True,
    ) -> list[str]:
        """Weights that the script has copied into the model by hand count as loaded;
        frozen ones stay where they are now, unless a backward pass goes on, or are
        returned where it is not `takes_frozen`.

        Called before masks change and before weights are zeroed. None: all.
        """
        if not self._gse:
            return []
        loaded, frozen = self._replaced.notice(
            self.enforced.values, parameters, in_pass
        )
        if loaded:
            self.loaded = self.copied = True
        self.to_compare = self.to_compare or bool(loaded or frozen)
        if not frozen or not takes_frozen:
            return frozen
        self.enforced.take_values(frozen)
        self._walks.held_anew(frozen)
        return []

    def before_step(self, optimizer: Optimizer) -> None:
        """Before it moves weights, and they are masked: what was copied in since the
        backward pass began would be lost."""
        self._resting |= self.enforced.frozen_in(optimizer)
        self.notice_copies(parameters_of(optimizer))

    def will_move_loaded(self, optimizer: Optimizer) -> bool:
        """Weights that were not checked yet, by gradients that are older."""
        return self.loaded and any(
            parameter.grad is not None and registry.of(parameter).loaded
            for parameter in parameters_of(optimizer)
        )

    def pass_in_step(self, optimizer: Optimizer) -> None:
        """Its weights are as it has put them, by however much."""
        if self._gse:
            self._replaced.stepped(parameters_of(optimizer))

    def _moved_by_hand(
        self, parameters: Collection[Tensor] | None = None
    ) -> Collection[Tensor] | None:
        """Of these (None: all) those that are not `_resting`."""
        if not self._resting:
            return parameters
        if parameters is None:
            parameters = [parameter for _, parameter in self._table]
        return [p for p in parameters if id(p) not in self._resting]

    def warn(self, rank: int) -> None:
        """Of what came by hand. Its zeros may be pruned, or the script's own for a
        while (it rounds its weights, say), so they do not become the masks by
        themselves."""
        self._walks.warn(rank)
        names = self._replaced.names_with_zeros()
        if names and rank == 0:
            logger.warning(
                "%s: weights that were put there by hand have many zeros inside the "
                "mask, which train; if they were pruned, call prune(model, "
                "masks_from=model.state_dict()) before training goes on",
                some_of(names),
            )

    def tolerate(self, masks: MaskSet) -> None:
        """What is outside of masks that were not in force yet goes to zero."""
        if self.tolerate_outside:
            enforcement.zero_outside(self._table, masks)

    def refitted(self, masks: MaskSet, only_loaded: bool = False) -> Refitted | None:
        """The masks that weights have which were pruned elsewhere, or more; None: they
        fit these. `only_loaded`: of what was loaded since the last look.

        Raises:
          PacTrainError: a weight outside the masks is neither zero nor frozen, and they
            fit no others.
        """
        self.tolerate(masks)
        origin: Origin = "copied" if self.copied else self.origin
        return enforcement.refitted(self._table, masks, origin, only_loaded)

    def checked(self, masks: MaskSet, rank: int) -> None:
        """Weights are as they should be, and these are their masks."""
        enforcement.log_unmasked(self._table, masks, rank)
        say_swapped(self.module, rank)
        self.enforced.take_values()
        self.loaded = self.copied = False

    @property
    def _acts(self) -> bool:
        """Weights that were loaded are checked before anything is lost of them."""
        free = self.loaded or self.suspended
        return self._gse and bool(self._active) and not free

    def check_enforced(self, parameters: Collection[Tensor] | None = None) -> None:
        """A few weights outside the masks; they are masked before forward passes if
        there is another way to change them than an optimizer. None: of all.

        Raises:
          PacTrainError: not even that helps.
        """
        by_hand = self._moved_by_hand(parameters)
        strays = self.enforced.sampled_outside(by_hand) if self._acts else []
        again = [name for name in strays if name in self._strayed]
        self._strayed.update(strays)
        if strays and self._forward_hook is None:
            logger.info(
                "%s has weights outside the masks in force that are not zero, so they "
                "are changed by other means than an optimizer of torch: from now on "
                "weights are masked before each forward pass",
                strays[0],
            )
            self._mask_before_forwards()
        if not again:
            return
        raise PacTrainError(
            f"{again[0]} has weights outside the masks in force that are not where "
            "they belong, though the model is masked before its forward pass: it is "
            "not called as a whole, or is changed during the pass.\n"
            "Call session.apply_masks() after each change of weights, before the next "
            "forward pass."
        )

    def _mask_before_forwards(self) -> None:
        self._forward_hook = optimizer_hook.watch_forwards(self)

    def enforce(self, optimizer: Optimizer | None = None) -> None:
        """After an optimizer step: weights outside the masks go back where they were.

        Without an optimizer: all weights of the model.
        """
        if self._acts:
            self._seen = self.enforced.apply(optimizer) or self._seen
        self._replaced.stepped(None if optimizer is None else parameters_of(optimizer))

    def before_forward(self) -> None:
        """Where weights are changed by hand."""
        if self._forward_is_due:
            self._forward_is_due = False
            self._mask_by_hand()

    def before_save(self) -> None:
        """What is saved is masked, also where weights are changed by hand."""
        if self.enforced.is_due:
            self._mask_by_hand()

    def _mask_by_hand(self) -> None:
        by_hand = self._moved_by_hand()
        self.notice_copies(by_hand)
        if self._acts:
            self.enforced.put_back(by_hand)
        self._replaced.stepped(by_hand)

    def apply_masks(self, wanted: MaskSet) -> None:
        """The same where the script asks for it, also of what was copied by hand and
        fits no other masks."""
        self._walks.put_back(self.notice_copies(takes_frozen=False))
        if self.copied:
            enforcement.zero_unfit(self._table, wanted)
            self.copied = any(registry.of(p).loaded for _, p in self._table)
        self.enforce()

    def count_outside(self) -> int:
        """Weights outside the masks in force that are not where they belong."""
        return self.enforced.count_outside() if self._acts else 0

    def acts_on_all(self) -> bool:
        """False: weights outside the masks in force are changed where nobody sees it.
        Looks at a few, and only if no gradient came and nothing stepped since."""
        if self._seen:
            self._acts_on_all = True
        elif self._acts:
            self._acts_on_all = not self.enforced.sampled_unseen()
        self._seen = False
        return self._acts_on_all and not self.copied

    def shortfalls(self) -> list[str]:
        """What is to be said of it at the end."""
        lines = self._walks.shortfalls()
        unseen = self.enforced.changed_unseen(frozen=True) if self._acts else []
        if unseen:
            lines.append(f"frozen weights of {some_of(unseen)} were changed {_UNSEEN}")
        return lines

    def why_outside(self) -> str:
        """Where weights that should be zero are not; empty: nothing is known of it."""
        if self.copied:
            return f"they were put there by hand, or changed {_UNSEEN}"
        if self._acts and self.enforced.changed_unseen(frozen=False):
            return f"they were changed {_UNSEEN}"
        return ""

    def close(self) -> None:
        """The masks in force hold for the weights that are left."""
        self._captured.close()
        if self._forward_hook is not None:
            self._forward_hook.remove()
        frozen = self.notice_copies(takes_frozen=False)
        if self._acts:
            self.enforced.finish(frozen)
