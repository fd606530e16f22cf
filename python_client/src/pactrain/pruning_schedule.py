"""Pruning little by little: masks shrink while the model trains."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from .errors import InvalidArgument
from .exemptions import Exempt, Names, Selection, choose
from .masks import registry
from .parameters import ParameterTable, check_module, plain_name, shown
from .pruning import (
    PruneOptions,
    check_declares,
    enforce,
    prune_by,
    share_of,
)
from .sparsity_report import SparsityReport

_PATIENCE_STEPS = 200

logger = logging.getLogger("pactrain")


class PruningSchedule:
    """Prunes a model in ceil(steps / every) changes, fast at first and slower later.

    After t steps of T the share of pruned weights is amount * (1 - (1 - t/T)^3) (Zhu
    and Gupta, arXiv 1710.01878, equation 1). Call step() once after each optimizer
    step, on all ranks. Each set lies inside the one before, so an attached job goes
    from COMPACTED to COMPACTED. A change waits until the one before is in force, which
    all ranks see after the same step; so a job that agrees slowly prunes later than
    planned, but never skips a change.

    Not thread-safe.
    """

    def __init__(
        self,
        model: nn.Module,
        amount: float,
        steps: int,
        every: int,
        *,
        start: int = 0,
        scope: str | None = None,
        exempt: Exempt = None,
        include: Names = (),
        exclude: Names = (),
        of: str = "layers",
        method: str = "magnitude",
        kind: str = "zero",
        seed: int = 0,
    ) -> None:
        """All ranks have to give the same values.

        Args:
          amount: share that is pruned at the end.
          steps: from the first to the last change, counted in step() calls.
          every: steps between two changes, at least.
          start: step() calls before the schedule begins.
          scope, exempt, include, exclude, of, method, kind, seed: as in prune(); not
            "grasp".

        Raises:
          InvalidArgument: a value out of range, nothing to prune, or the model is
            attached with masks="track".
        """
        check_module(model)
        check_declares(model, "PruningSchedule()")
        share = share_of(amount)
        _check_steps("steps", steps, 1)
        _check_steps("every", every, 1)
        _check_steps("start", start, 0)
        if every > steps:
            raise InvalidArgument(
                f"every is {every}; allowed is at most steps, which is {steps}.\n"
                "Give for example every=steps // 10."
            )
        if method == "grasp":
            raise InvalidArgument(
                "method is 'grasp', which chooses once, before training; allowed here "
                "are 'magnitude' and 'random'.\nCall prune(method='grasp') instead."
            )
        if method not in ("magnitude", "random"):
            raise InvalidArgument(
                f"method is {method!r}; allowed are 'magnitude' and 'random'.\n"
                "Give one of them."
            )
        selection = Selection(exempt, include, exclude)
        self._options = PruneOptions(scope, selection, method, kind, seed, of)
        chosen = choose(model, ParameterTable(model), selection).chosen
        self._parameters = [p for _, p in chosen]
        self._made_with: dict[str, Any] = {
            "amount": share,
            "steps": steps,
            "every": every,
            "start": start,
            "scope": self._options.effective_scope,
            "method": method,
            "kind": kind,
            "seed": seed,
            "parameters": [plain_name(name) for name, _ in chosen],  # Without exempt.
        }
        if of != "layers":  # States of earlier releases have no such field.
            self._made_with["of"] = of
        self._model = model
        self._amount = share
        self._steps = steps
        self._every = every
        self._start = start
        self._taken = 0
        self._changes = 0
        self._waited = 0
        registry.plans.add(self)

    @property
    def parameters(self) -> Sequence[Tensor]:
        """Those that it prunes."""
        return self._parameters

    def shortfall(self) -> str:
        """What is to be said where training ends now; empty: nothing."""
        if self._changes == self.total_changes:
            return ""
        return (
            f"a PruningSchedule was to prune {self._amount:.1%}: of its "
            f"{self.total_changes} changes {self._changes} were made "
            f"({self.amount:.1%}), as its step() was called {self._taken:,} times, and "
            f"the last one is due after {self._start + self._steps:,}. Call it after "
            "each optimizer step, on all ranks, and let it be as long as training"
        )

    @property
    def amount(self) -> float:
        """Share of the weights that was asked for so far."""
        return self._amount_after(self._changes)

    @property
    def changes(self) -> int:
        """Changes that were declared so far."""
        return self._changes

    @property
    def total_changes(self) -> int:
        return -(-self._steps // self._every)

    @property
    def done(self) -> bool:
        """True if the last change was declared and is in force."""
        return (
            self._changes == self.total_changes
            and self._settled()
            and not self._masks_are_lost()
        )

    def step(self) -> SparsityReport | None:
        """Counts a step; declares masks and returns a report if a change is due.

        Raises:
          InvalidArgument: changes were made, but the model has no masks; or it was
            attached with masks="track".
        """
        check_declares(self._model, "PruningSchedule.step()")
        if self._masks_are_lost():
            raise InvalidArgument(
                f"model has no masks, but its schedule has made {self._changes} of "
                f"{self.total_changes} changes: weights that were pruned would come "
                "back.\nBring the masks back, too: attach(ddp, state=...) with the "
                "session's state, or apply_masks(model, masks) without a session."
            )
        self._taken += 1
        if not self._attached():
            # Nobody else undoes what momentum revives.
            enforce(self._model, ParameterTable(self._model))
        if self._changes == self.total_changes or self._taken < self._due():
            return None
        if not self._settled():
            self._wait()
            return None
        self._waited = 0
        self._changes += 1
        return prune_by(self._model, self.amount, self._options)

    def state_dict(self) -> dict[str, Any]:
        """Plain values, for torch.save; the masks are in the session's state."""
        return {
            "steps": self._taken,
            "changes": self._changes,
            "made_with": dict(self._made_with),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where the schedule that made the state was.

        The masks have to be there by the next step(): attach(ddp, state=) brings
        them, or apply_masks().

        Raises:
          InvalidArgument: not made by state_dict(), or of another schedule.
        """
        if not isinstance(state, Mapping):
            raise InvalidArgument(
                f"state is {shown(state)}; allowed is a dict.\n"
                "Give what PruningSchedule.state_dict() returned."
            )
        made_with = state.get("made_with")
        if not isinstance(made_with, Mapping):
            raise InvalidArgument(
                f"state['made_with'] is {made_with!r}; allowed is a dict.\n"
                "Give what PruningSchedule.state_dict() returned."
            )
        for field, mine in self._made_with.items():
            _check_equal(field, made_with.get(field), mine)
        taken, changes = state.get("steps"), state.get("changes")
        _check_steps("state['steps']", taken, 0)
        _check_steps("state['changes']", changes, 0)
        assert isinstance(taken, int) and isinstance(changes, int)
        if changes > self.total_changes:
            raise InvalidArgument(
                f"state['changes'] is {changes}; allowed is at most "
                f"{self.total_changes}.\nMake the schedule as the one that was saved."
            )
        self._taken, self._changes = taken, changes

    def _amount_after(self, changes: int) -> float:
        passed = min(changes * self._every, self._steps) / self._steps
        return float(self._amount * (1 - (1 - passed) ** 3))

    def _due(self) -> int:
        return self._start + min((self._changes + 1) * self._every, self._steps)

    def _attached(self) -> bool:
        return any(registry.of(p).owner is not None for p in self._parameters)

    def _settled(self) -> bool:
        owners = [registry.of(parameter).owner for parameter in self._parameters]
        return all(owner is None or owner.masks_settled for owner in owners)

    def _masks_are_lost(self) -> bool:
        largest = max(parameter.numel() for parameter in self._parameters)
        pruned = round(self.amount * largest) > 0
        return pruned and all(registry.get(p) is None for p in self._parameters)

    def _wait(self) -> None:
        self._waited += 1
        if self._waited == _PATIENCE_STEPS:
            logger.warning(
                "pruning schedule: change %d of %d is not in force after %d steps; "
                "the coordinator's reason for its last decision says why",
                self._changes,
                self.total_changes,
                self._waited,
            )


def _check_equal(field: str, saved: object, mine: object) -> None:
    if saved == mine:
        return
    if isinstance(saved, list) and isinstance(
        mine, list
    ):  # Names: the few that differ.
        saved, mine = (
            [name for name in saved if name not in mine],
            [name for name in mine if name not in saved],
        )
        field = f"{field} (those that only one has)"
    raise InvalidArgument(
        f"{field}: the state was saved by a schedule with {saved!r}, this one has "
        f"{mine!r}.\nMake the schedule as the one that was saved, or do not load the "
        "state."
    )


def _check_steps(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidArgument(
            f"{name} is {shown(value)}; allowed is an integer of at least {least}.\n"
            "Give a number of steps."
        )
