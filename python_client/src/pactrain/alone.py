"""The session of a model that one process trains: nothing is exchanged, masks act."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from . import optimizer_hook, storage
from ._library import digest_of
from .checks import attached_already
from .copies import follow
from .enforcement import (
    Enforcement,
    Origin,
    log_unmasked,
    refitted,
    zero_outside,
    zero_unfit,
)
from .mask_keeper import packed_masks
from .mask_source import MaskSource
from .masks import Declared, make_mask_set, named_masks, of_kind, registry
from .null_session import NullSession, as_number, no_copy, tracked_error
from .outsiders import Outsiders
from .parameters import ParameterTable
from .replaced import ReplacedWeights
from .session import STATE_VERSION, after_load, unpack_state
from .summary import weights_outside
from .zeros import load_pruned

logger = logging.getLogger("pactrain")


class AloneSession(NullSession):
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
          RefusedError: the model is attached already.
          PacTrainError: a weight outside the masks is neither zero nor frozen, and they
            do not fit another mask.
        """
        if any(registry.owner(parameter) is not None for _, parameter in table):
            raise attached_already()
        self._module = module
        self._table = table
        self._source = source
        self._gse = gse
        self._tracks = tracks
        self._steps = 0
        self._first_step = 0 if state is None else int(state["step"])
        self._reported: dict[str, float] = {}
        self._weights = Enforcement(table)
        self._masks = make_mask_set(table, source.read(), digest_of)
        self._origin = origin
        self._loaded = False  # Weights are new, and were not checked yet.
        self._copied = False  # By hand.
        self._replaced = ReplacedWeights(table)
        if state is not None and not state["masks_active"]:
            zero_outside(table, self._masks)
        self._activate()
        if origin == "state":
            self._all_loaded()
        else:
            self._check_weights()
        follow(module)
        self._hooks: list[RemovableHandle] = [
            part.register_load_state_dict_post_hook(after_load)  # type: ignore[no-untyped-call]
            for part in module.modules()
        ]
        self._own()
        self._outsiders = Outsiders(module, table, exchanged=False)
        self._outsiders.watch()
        optimizer_hook.watch(self)
        alone.add(self)

    def _own(self) -> None:
        for name, parameter in self._table:
            if registry.owner(parameter) is not self:
                registry.attach(parameter, self)
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
            self._replaced.follow(self._masks, None)

    def _hook(self, name: str) -> Callable[[Tensor], None]:
        def on_gradient(parameter: Tensor) -> None:
            self._notice_copies([parameter])
            self._before_step()
            self._replaced.gradient_came([parameter])
            mask = self._masks.masks.get(name) if self._gse else None
            if mask is None or parameter.grad is None:
                return
            if parameter.grad.layout == torch.strided:
                parameter.grad.masked_fill_(~mask, 0)
            else:  # Of an embedding.
                parameter.grad = parameter.grad * mask

        return on_gradient

    def _notice_copies(self, parameters: Collection[Tensor] | None = None) -> None:
        """As MaskKeeper.notice_copies()."""
        if self._replaced.notice(self._weights.values, parameters):
            self._copied = True
            self.weights_loaded()

    def _before_step(self) -> None:
        """Raises:
        PacTrainError: weights were loaded that are not those of the masks.
        """
        if any(parameter.requires_grad for parameter in self._resting):
            self._table = ParameterTable(self._module)  # Layers were unfrozen.
            self._source = MaskSource(self._module, self._table)
            self._weights = Enforcement(self._table)
            self._replaced = ReplacedWeights(self._table)
            self._own()
            self._read_masks()
        if self._source.changed():
            self._read_masks()
        if self._loaded:
            self._check_weights(only_loaded=True)
            self._loaded = self._copied = False

    def _read_masks(self) -> None:
        self._masks = make_mask_set(self._table, self._source.read(), digest_of)
        self._activate()

    def _check_weights(self, only_loaded: bool = False) -> None:
        """As MaskKeeper.check_weights()."""
        origin: Origin = "copied" if self._copied else self._origin
        found = refitted(self._table, self._masks, origin, only_loaded)
        if found is not None:
            self._source.write(found.masks)
            self._read_masks()
            found.log(self._masks, rank=0)
        log_unmasked(self._table, self._masks, rank=0)
        self._weights.take_values()

    def enforce(self, optimizer: Optimizer | None = None) -> None:
        """After a step of any optimizer of this process."""
        if optimizer is not None and not self._moves(optimizer):
            return
        self._before_step()
        self._steps += optimizer is not None
        self._origin = "prune"  # The weights of a state's masks are there by now.
        self._weights.apply(optimizer)
        self._replaced.stepped(optimizer)

    def _moves(self, optimizer: Optimizer) -> bool:
        parameters = {id(parameter) for _, parameter in self._table}
        return any(
            id(p) in parameters for g in optimizer.param_groups for p in g["params"]
        )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise no_copy()

    def stats(self) -> dict[str, float]:
        keep, acts = self._masks.keep, self._gse and bool(self._masks)
        return {
            "pactrain/steps": float(self._steps),
            "pactrain/keep": keep,
            "pactrain/active_keep": keep if acts else 1.0,
            "pactrain/masks_active": float(acts),
            **self._reported,
        }

    def report(self, loss: float | None = None, lr: float | None = None) -> None:
        for name, value in (("loss", loss), ("lr", lr)):
            if value is not None:
                self._reported[f"pactrain/{name}"] = as_number(name, value)

    def _words(self) -> str:
        zeros = sum(storage.count(p.detach() == 0) for _, p in self._table)
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
        self._notice_copies()  # Masks that come now are newer.

    def set_masks(self, masks: Mapping[str, Tensor], kind: str = "zero") -> None:
        self.check_declares("set_masks()")
        self._source.write(of_kind(named_masks(self._table, masks), kind))
        self._source.mark_changed()

    def apply_masks(self) -> None:
        self._notice_copies()
        if self._copied:
            zero_unfit(self._table, self._masks)
        self._before_step()
        self._weights.apply()
        self._replaced.stepped()

    def state_dict(self) -> dict[str, Any]:
        """As a Session's: it may be continued by several ranks."""
        wanted: Declared = self._masks
        if self._source.pending:
            wanted = make_mask_set(self._table, self._source.read(), digest_of)
        return {
            "version": STATE_VERSION,
            "step": self._first_step + self._steps,
            "masks": packed_masks(wanted),
            "frozen": sorted(wanted.frozen),
            "masks_active": wanted is self._masks,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._source.write(unpack_state(self._table, state))
        self._source.mark_changed()
        self._origin = "state"
        self._all_loaded()

    def load(self, weights: Mapping[str, Any]) -> None:
        """As a Session's."""
        masks = load_pruned(self._module, self._table, weights)
        if not self._tracks:
            self.set_masks(masks)
        self._all_loaded()

    def close(self) -> None:
        self._notice_copies()
        if self in alone:
            if not self._loaded:
                self._before_step()  # Masks may be newer than the last one.
                self._weights.finish()
            if self._steps:
                logger.info("%s", self.summary())
            for line in weights_outside(self._table, self._masks) if self._gse else ():
                logger.warning("not reached: %s", line)
        alone.discard(self)
        optimizer_hook.unwatch(self)
        self._outsiders.close()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        for _, parameter in self._table:
            registry.detach(parameter)

    def _all_loaded(self) -> None:
        for _, parameter in self._table:
            registry.mark_loaded(parameter)
        self.weights_loaded()

    def weights_loaded(self) -> None:
        """They are checked before the next step, and left alone until then."""
        self._loaded = True


# Strong: the script may drop what attach() returned.
alone: set[AloneSession] = set()
