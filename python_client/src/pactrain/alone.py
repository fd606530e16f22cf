"""The session of a model that one process trains: nothing is exchanged, masks act."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from . import optimizer_hook, storage
from ._library import digest_of
from .copies import follow
from .enforcement import Origin, log_unmasked
from .errors import CLOSED, PacTrainError
from .mask_source import MaskSource, carry_over
from .masks import Declared, make_mask_set, named_masks, of_kind, registry
from .null_session import NullSession, as_number, no_copy, tracked_error
from .outsiders import Outsiders
from .parameters import ParameterTable, some_of
from .session import STATE_VERSION, state_hooks, unpack_state
from .summary import resting_outside, unfinished, weights_outside
from .weight_keeper import WeightKeeper
from .zeros import load_pruned

logger = logging.getLogger("pactrain")


class AloneSession(NullSession, optimizer_hook.StepWatcher):
    """What attach() returns in a world of one for a model without a wrapper.

    Masks act as in a job of one rank, from the start: gradients outside them are zero,
    and weights go back where they were after each step of an optimizer, which is what
    `steps` counts here.

    Used by the thread that trains.
    """

    mode = "alone"

    def __init__(
        self,
        module: nn.Module,
        table: ParameterTable,
        source: MaskSource,
        state: Mapping[str, Any] | None,
        gse: bool,
        origin: Origin = "prune",
        tracks: bool = False,
    ) -> None:
        """Where masks come from a state weights may be loaded until the first step.

        Raises:
          PacTrainError: a weight outside the masks is neither zero nor frozen, and they
            do not fit another mask.
        """
        self._module = module
        self._table = table
        self._source = source
        source.keeps_zeros = gse and not tracks
        self._gse = gse
        self._tracks = tracks
        self._pid = os.getpid()
        self._at_close: list[Callable[[], None]] = []
        self.reporters: list[Callable[[], None]] = []  # Called after each step.
        self._steps = 0
        self._first_step = 0 if state is None else int(state["step"])
        self._reported: dict[str, float] = {}
        self._weights = WeightKeeper(module, table, gse)
        self._weights.origin = origin
        if state is not None:
            self._weights.tolerate_outside = not state["masks_active"]
        self._came: set[Tensor] = set()  # Gradients since weights or masks were others.
        self._masks = make_mask_set(table, source.read(), digest_of)
        self._weights.tolerate(self._masks)
        self._activate()
        if origin == "state":
            self._weights.mark_all_loaded()
        else:
            self._check_weights()
        follow(module)
        self._hooks = state_hooks(module.modules())
        self._own()
        self._outsiders = self._watched_loads()
        optimizer_hook.watch(self)
        alone.add(self)

    def _own(self) -> None:
        for name, parameter in self._table:
            if registry.of(parameter).owner is not self:
                registry.of(parameter).owner = self
                self._hooks.append(
                    parameter.register_post_accumulate_grad_hook(self._hook(name))  # type: ignore[no-untyped-call]
                )
        self._resting = [
            parameter
            for parameter in self._module.parameters()
            if not parameter.requires_grad and registry.get(parameter) is not None
        ]

    def _activate(self) -> None:
        if self._gse:
            self._weights.activate(self._masks)
            self._weights.follow(self._masks)
        self._came.clear()

    def _hook(self, name: str) -> Callable[[Tensor], None]:
        def on_gradient(parameter: Tensor) -> None:
            self._weights.notice_copies([parameter], in_pass=True)
            self._weights.warn(rank=0)
            if parameter in self._came:  # And no optimizer has stepped.
                self._weights.check_enforced([parameter])
            self._before_step()
            self._came.add(parameter)
            self._weights.state_is_there()
            self._weights.gradient_came(parameter)
            mask = self._masks.masks.get(name) if self._gse else None
            if mask is None or parameter.grad is None:
                return
            if parameter.grad.layout == torch.strided:
                parameter.grad.masked_fill_(~mask, 0)
            else:  # Of an embedding.
                parameter.grad = parameter.grad * mask

        return on_gradient

    def _before_step(self) -> None:
        """Raises:
        PacTrainError: weights were loaded that are not those of the masks.
        """
        if any(parameter.requires_grad for parameter in self._resting):
            self._take_parameters()
        if self._source.changed():
            self._read_masks()
        if self._weights.loaded:
            self._check_weights(only_loaded=True)

    def _take_parameters(self) -> None:
        """Those that the model has now; masks go with their places. Nobody has seen
        what was put into those that were frozen or replaced."""
        before = self._weights
        before.notice_copies(in_pass=True)
        for parameter in self._resting:
            if parameter.requires_grad:
                registry.of(parameter).loaded = True
        old, self._table = self._table, ParameterTable(self._module)
        there = {id(parameter) for _, parameter in self._table}
        for _, parameter in old:
            if id(parameter) not in there:
                registry.of(parameter).owner = None
        keeps_zeros = self._source.keeps_zeros
        self._source = MaskSource(self._module, self._table)
        self._source.keeps_zeros = keeps_zeros
        self._source.read()
        if unfit := carry_over(old, self._table):
            logger.warning(
                "%s: other parameters are in their place, which the masks do not fit: "
                "these masks are gone",
                some_of(unfit),
            )
        self._weights = WeightKeeper(self._module, self._table, self._gse)
        self._weights.go_on_from(before)
        self._outsiders.close()
        self._outsiders = self._watched_loads()
        self._own()
        self._read_masks()
        log_unmasked(self._table, self._masks, rank=0)
        news = any(registry.of(parameter).loaded for _, parameter in self._table)
        self._weights.loaded = self._weights.loaded or news

    def _watched_loads(self) -> Outsiders:
        outsiders = Outsiders(self._module, self._table)
        outsiders.watch_loads()
        return outsiders

    def _read_masks(self) -> None:
        self._masks = make_mask_set(self._table, self._source.read(), digest_of)
        self._source.say_removed(rank=0)
        self._activate()

    def _check_weights(self, only_loaded: bool = False) -> None:
        """As MaskKeeper.check_weights()."""
        found = self._weights.refitted(self._masks, only_loaded)
        if found is not None:
            self._source.write(found.masks)
            self._read_masks()
            found.log(self._masks, rank=0)
        self._weights.checked(self._masks, rank=0)

    def check_step(self, optimizer: Optimizer) -> None:
        """As MaskKeeper.check_step()."""
        if self._outsiders.unknown_in(optimizer):
            self._take_parameters()
        self._weights.before_step(optimizer)
        if self._weights.will_move_loaded(optimizer):
            self._before_step()

    def pass_in_step(self, optimizer: Optimizer) -> None:
        self._weights.pass_in_step(optimizer)

    def enforce(self, optimizer: Optimizer | None = None) -> None:
        """After a step of any optimizer of this process."""
        if optimizer is not None and not self._moves(optimizer):
            return
        self._before_step()
        self._steps += optimizer is not None
        self._weights.state_is_there()
        self._weights.enforce(optimizer)
        self._came.clear()
        if optimizer is not None:
            for report in self.reporters:
                report()

    def _moves(self, optimizer: Optimizer) -> bool:
        parameters = {id(parameter) for _, parameter in self._table}
        return any(id(p) in parameters for p in optimizer_hook.parameters_of(optimizer))

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise no_copy()

    def stats(self) -> dict[str, float]:
        keep, acts = self._masks.keep, self._gse and bool(self._masks)
        return {
            "pactrain/steps": float(self._steps),
            "pactrain/keep": keep,
            "pactrain/active_keep": keep if acts else 1.0,
            "pactrain/masks_active": float(acts and self._weights.acts_on_all()),
            **self._reported,
        }

    def report(self, loss: float | None = None, lr: float | None = None) -> None:
        for name, value in (("loss", loss), ("lr", lr)):
            if value is not None:
                self._reported[f"pactrain/{name}"] = as_number(name, value)

    def _words(self) -> str:
        seen = self._table.rewritten()
        zeros = sum(storage.count(seen.get(n, p.detach()) == 0) for n, p in self._table)
        elements = self._table.elements
        return (
            f"PacTrain: {self._steps:,} optimizer steps in one process: nothing was "
            f"exchanged. Of {elements:,} weights {1 - self._masks.keep:.1%} are "
            f"masked, {zeros / elements:.1%} are zero."
        )

    def check_declares(self, call: str) -> None:
        """As a Session's: a script is refused alike, however many ranks there are."""
        if self._tracks:
            raise tracked_error(call)
        self._weights.notice_copies()  # Masks that come now are newer.

    def set_masks(self, masks: Mapping[str, Tensor], kind: str = "zero") -> None:
        self._check_open()
        self.check_declares("set_masks()")
        self._source.write(of_kind(named_masks(self._table, masks), kind))
        self._source.mark_changed()

    def apply_masks(self) -> None:
        self._weights.apply_masks(self._masks)
        self._before_step()
        self._weights.enforce()

    def state_dict(self) -> dict[str, Any]:
        """As a Session's: it may be continued by several ranks."""
        self.before_save()
        wanted: Declared = self._masks
        if self._source.pending:
            wanted = make_mask_set(self._table, self._source.read(), digest_of)
        return {
            "version": STATE_VERSION,
            "step": self._first_step + self._steps,
            "masks": wanted.packed(),
            "frozen": sorted(wanted.frozen),
            "masks_active": wanted is self._masks,
        }

    def before_save(self) -> None:
        if self in alone:
            self._weights.before_save()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._check_open()
        self._source.write_state(unpack_state(self._table, state))
        self._source.mark_changed()
        self._weights.masks_come_from_state(bool(state["masks_active"]))
        self._weights.mark_all_loaded()

    def load(self, weights: Mapping[str, Any]) -> None:
        """As a Session's."""
        self._check_open()
        masks = load_pruned(self._module, self._table, weights)
        if not self._tracks:
            self.check_declares("load()")
            self._source.write_zeros(masks)
        self._weights.mark_all_loaded()

    def _check_open(self) -> None:
        if self not in alone:
            raise PacTrainError(CLOSED)

    @property
    def closed(self) -> bool:
        return self not in alone

    @property
    def steps(self) -> int:
        """Of optimizers, since attach()."""
        return self._steps

    def at_close(self, call: Callable[[], None]) -> None:
        """As a Session's."""
        self._at_close.append(call)

    def close(self) -> None:
        if os.getpid() != self._pid:
            return  # A forked child's.
        try:
            if self in alone:
                self._finish()
        finally:
            alone.discard(self)
            optimizer_hook.unwatch(self)
            self._outsiders.close()
            for hook in self._hooks:
                hook.remove()
            self._hooks = []
            for _, parameter in self._table:
                registry.of(parameter).owner = None

    def _finish(self) -> None:
        self._weights.notice_copies(takes_frozen=False)
        if {id(p) for p in self._module.parameters() if p.requires_grad} != {
            id(parameter) for _, parameter in self._table
        }:
            self._take_parameters()  # They may be others than at the last step.
        if not self._weights.loaded:
            self._before_step()  # Masks may be newer than the last one.
        self._weights.close()
        for call in self._at_close:
            call()
        if self._steps:
            logger.info("%s", self.summary())
        for line in self._shortfalls():
            logger.warning("not reached: %s", line)
        if self._gse and self._masks:
            _Farewell(self._table).watch()

    def _shortfalls(self) -> list[str]:
        if not self._gse:
            return []
        why = self._weights.why_outside()
        outside = weights_outside(self._table, self._masks, why)
        resting = resting_outside(self._module)
        plans = unfinished(self._table)
        return [*outside, *self._weights.shortfalls(), *resting, *plans]

    def owns(self, module: nn.Module) -> bool:
        return module is self._module

    def weights_loaded(self) -> None:
        """They are checked before the next step, and left alone until then."""
        self._weights.loaded = True


class _Farewell(optimizer_hook.StepWatcher):
    """Says once that training goes on where masks act no more."""

    def __init__(self, table: ParameterTable) -> None:
        self._parameters: Any = WeakIdKeyDictionary()
        for _, parameter in table:
            self._parameters[parameter] = True

    def watch(self) -> None:
        _farewells.add(self)
        optimizer_hook.watch(self)

    def check_step(self, optimizer: Optimizer) -> None:
        moved = [
            p
            for p in optimizer_hook.parameters_of(optimizer)
            if p.grad is not None and p in self._parameters
        ]
        if not moved:
            return
        optimizer_hook.unwatch(self)
        _farewells.discard(self)
        if any(registry.of(parameter).owner is None for parameter in moved):
            logger.warning(
                "training goes on after close(): masks act no more, and zeros come "
                "back. Call close() after the last step, or attach the model anew"
            )


_farewells: set[_Farewell] = set()

# Strong: the script may drop what attach() returned.
alone: set[AloneSession] = set()


def _close_all() -> None:
    for session in list(alone):
        try:
            session.close()
        except Exception as error:  # At exit there is nobody to handle it.
            logger.warning("not reached: %s", error)


atexit.register(_close_all)
