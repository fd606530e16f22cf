"""Keeps weights outside the masks in force where they belong.

That is at zero (gradient sparsity enforcement), or, for frozen parameters, at the
values they had when the masks were agreed on. Scripts and frameworks move a model to
the CPU to save it, or at the end: then masks and values go where the weights are.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer

from . import storage
from .errors import PacTrainError
from .masks import Declared, MaskSet, is_zero_outside, registry
from .optimizer_hook import parameters_of
from .parameters import ParameterTable, some_of
from .zeros import refit, unmasked

# Where the masks come from; "copied": whatever they were, weights have replaced others.
Origin = Literal["prune", "state", "masks", "copied"]
_UNFIT: dict[Origin, tuple[str, str]] = {
    "prune": (
        "weights were loaded after prune, without as many zeros elsewhere",
        "Call prune() again, now: it begins anew with the weights that are there. For "
        "the zeros that a checkpoint has, however many: prune(model, "
        "masks_from=state_dict).",
    ),
    "state": (
        "weights were loaded that do not belong to the session's state",
        "Load model and state of one checkpoint; or leave out the state and call "
        "prune(model, masks_from=state_dict).",
    ),
    "copied": (
        "they were put there by hand, without load_state_dict() and by more than a "
        "step, and there are not as many zeros elsewhere",
        "Call session.apply_masks() after each change of weights that is no checkpoint"
        "'s: it sets these to zero. For those of a checkpoint call prune() again, now: "
        "it begins anew with the weights that are there. For its zeros, however many: "
        "prune(model, masks_from=state_dict).",
    ),
    "masks": (
        "the masks that attach() was given are not those of these weights",
        "Give attach() no masks, after prune(model, amount) or, where a checkpoint has "
        "zeros, prune(model, masks_from=state_dict). Or set these weights to zero "
        "first: pactrain.apply_masks(model, masks).",
    ),
}

logger = logging.getLogger("pactrain")


@dataclass(frozen=True)
class _Entry:
    name: str
    parameter: Tensor
    mask: Tensor
    frozen: bool
    sample: Tensor  # Some places outside the mask, as flat indices.


class Enforcement:
    """The weights of one model.

    The values of frozen weights are taken only where all ranks have equal weights and
    equal masks: at attach, when weights are loaded, and at the committed step that puts
    other masks in force. Otherwise ranks could hold on to different values.

    Not thread-safe: called between steps.
    """

    def __init__(self, table: ParameterTable) -> None:
        self._table = table
        # The masks that the values of frozen weights were taken for.
        self.agreed: MaskSet | None = None
        self.values: Mapping[str, Tensor] = {}  # Of frozen parameters, by name.
        self._entries: dict[int, _Entry] = {}  # By id of the parameter.
        # And whose state that was: load_state_dict() makes another.
        self._cleaned: WeakKeyDictionary[Optimizer, object] = WeakKeyDictionary()
        self._due: set[int] = set()  # Entries not masked since the last step.

    def agree(self, masks: MaskSet) -> None:
        """Takes values for masks that all ranks have, maybe not in force yet.

        Weights that were frozen by the same mask stay where they were: others' masks
        may be new, as a checkpoint's, and until these act frozen weights train, too."""
        before = self.agreed
        if before is None or before.digest != masks.digest:
            self.agreed = masks
            self.take_values([n for n in masks.frozen if not _held(before, masks, n)])

    def take_values(self, names: Collection[str] | None = None) -> None:
        """Frozen weights stay where they are now. None: all of them."""
        frozen = frozenset() if self.agreed is None else self.agreed.frozen
        before = {} if names is None else self.values
        with torch.no_grad():
            self.values = {
                n: p.clone() if names is None or n in names else before[n]
                for n, p in self._table
                if n in frozen
            }

    def resume(
        self,
        agreed: MaskSet | None,
        values: Mapping[str, Tensor],
        active: MaskSet | None,
        optimizers: Iterable[Optimizer],
    ) -> None:
        """Goes on as another rank does, whose optimizers' states are masked already."""
        self._entries = {}
        if active is not None:
            self.activate(active)
        self.agreed = agreed
        self.values = dict(values)
        self._cleaned = WeakKeyDictionary({o: o.state for o in optimizers})

    def activate(self, masks: MaskSet) -> None:
        """From now on apply() enforces these masks."""
        self.agree(masks)
        before, self._entries = self._entries, {}
        due, self._due = self._due, set()
        for name, parameter in self._table:
            mask = masks.masks.get(name)
            if mask is None or name in masks.unenforced:
                continue
            frozen = name in masks.frozen
            entry = self._entries[id(parameter)] = _Entry(
                *(name, parameter, mask, frozen),
                storage.some_places(mask, value=False),
            )
            old = before.get(id(parameter))
            if old is None:  # Where all is zero, a gradient has to tell of changes.
                is_due = bool(self._strays(entry, entry.sample).any())
            else:
                is_due = old.mask is not mask or id(parameter) in due
            if is_due:
                self._due.add(id(parameter))
        self._cleaned = WeakKeyDictionary()

    def step_committed(self, parameters: Iterable[Tensor] | None = None) -> None:
        """Gradients are there: weights will be changed. None: of all."""
        if parameters is None:
            self._due = set(self._entries)
        else:
            self._due |= {id(p) for p in parameters if id(p) in self._entries}

    @property
    def first(self) -> Tensor | None:
        """A parameter whose weights are held, and that trains; None: there is none."""
        held = (entry.parameter for entry in self._entries.values())
        return next((parameter for parameter in held if parameter.requires_grad), None)

    @property
    def is_due(self) -> bool:
        """True if no apply() has followed the last step for some parameter."""
        return bool(self._due)

    def apply(self, optimizer: Optimizer | None = None) -> bool:
        """Also zeroes the optimizer's state outside the masks, once per activation and
        per state that it has loaded.

        Otherwise momentum and weight decay revive pruned weights. Without an
        optimizer: all weights of the model. False: it moves none of them.
        """
        parameters = None if optimizer is None else parameters_of(optimizer)
        entries = self.put_back(parameters)
        if optimizer is not None and (
            self._cleaned.get(optimizer) is not optimizer.state
        ):
            self._cleaned[optimizer] = optimizer.state
            with torch.no_grad():
                for entry in entries:
                    _mask_state(optimizer, entry)
        return bool(entries)

    def put_back(self, parameters: Iterable[Tensor] | None) -> list[_Entry]:
        """The weights alone. None: all of the model."""
        entries = self._of(parameters)
        with torch.no_grad():
            for entry in entries:
                self._put_back(entry)
                self._due.discard(id(entry.parameter))
        return entries

    def _of(self, parameters: Iterable[Tensor] | None) -> list[_Entry]:
        if parameters is None:
            return list(self._entries.values())
        ids = (id(parameter) for parameter in parameters)
        return [self._entries[i] for i in ids if i in self._entries]

    def _put_back(self, entry: _Entry) -> None:
        # Not a change that autograd has to hear of: a graph that is kept goes on.
        weights = entry.parameter.data
        if entry.frozen:
            mask = entry.mask.to(weights.device)
            held = self.values[entry.name].to(weights.device)
            torch.where(mask, weights, held, out=weights)
        else:
            storage.zero_outside(weights, entry.mask)

    def frozen_in(self, optimizer: Optimizer) -> set[int]:
        """The ids of frozen parameters that it moves."""
        entries = self._of(parameters_of(optimizer))
        return {id(entry.parameter) for entry in entries if entry.frozen}

    def sampled_outside(self, parameters: Iterable[Tensor] | None = None) -> list[str]:
        """Names of parameters of which a few weights were looked at, the same at all
        ranks, and some outside the mask are not where they belong. None: of all."""
        return [
            entry.name
            for entry in self._of(parameters)
            if bool(self._strays(entry, entry.sample).any())
        ]

    def sampled_unseen(self) -> bool:
        """Whether some of these few have been changed where no gradient told of it."""
        return bool(self.sampled_outside(entry.parameter for entry in self._unseen()))

    def changed_unseen(self, frozen: bool) -> list[str]:
        """Names of parameters with such weights, of all; that are frozen, or not."""
        return [
            entry.name
            for entry in self._unseen()
            if entry.frozen == frozen and self._outside(entry)
        ]

    def _unseen(self) -> list[_Entry]:
        return [e for e in self._entries.values() if id(e.parameter) not in self._due]

    def finish(self, left_alone: Collection[str]) -> None:
        """The masks in force hold for the weights that a step has left, except those
        of these parameters."""
        due, self._due = self._due, set()
        for entry in self._entries.values():
            if id(entry.parameter) in due and entry.name not in left_alone:
                with torch.no_grad():
                    self._put_back(entry)

    def count_outside(self) -> int:
        """All weights outside the masks that are not where they belong."""
        return sum(self._outside(entry) for entry in self._entries.values())

    def _outside(self, entry: _Entry) -> int:
        strays = self._strays(entry)
        return storage.count(strays & ~entry.mask.to(strays.device))

    def _strays(self, entry: _Entry, places: Tensor | None = None) -> Tensor:
        """None: everywhere."""
        found = _at(entry.parameter.detach(), places)
        if not entry.frozen:
            return found != 0
        wanted = _at(self.values[entry.name].to(found.device), places)
        return (found != wanted) & ~(found.isnan() & wanted.isnan())


def _at(values: Tensor, places: Tensor | None) -> Tensor:
    return values if places is None else torch.take(values, places.to(values.device))


def _held(before: MaskSet | None, masks: MaskSet, name: str) -> bool:
    if before is None or name not in before.frozen:
        return False
    mask, now = before.masks[name], masks.masks[name]
    return mask.device == now.device and torch.equal(mask, now)  # Else it was moved.


def zeroed(table: ParameterTable, masks: MaskSet) -> list[tuple[str, Tensor, Tensor]]:
    """Name, weights and mask, where these are, of what has to be zero outside its
    mask."""
    left_alone = masks.unenforced | masks.frozen
    return [
        (name, parameter, masks.masks[name].to(parameter.device))
        for name, parameter in table
        if name in masks.masks and name not in left_alone
    ]


def zero_outside(table: ParameterTable, masks: MaskSet) -> None:
    """Zeroes the weights outside their masks, except frozen ones."""
    with torch.no_grad():
        for _, parameter, mask in zeroed(table, masks):
            storage.zero_outside(parameter, mask)


@dataclass(frozen=True)
class Refitted:
    """Masks that are the zeros of the weights that are there, and of which parameters
    these had been pruned more than the masks before."""

    masks: Declared
    elsewhere: list[str]
    more: list[str]
    since: Sequence[str] = ()  # A session's state, which has other masks.

    def log(self, masks: MaskSet, rank: int) -> None:
        """`masks` is the set that they make."""
        for names, how in ((self.elsewhere, "elsewhere"), (self.more, "more")):
            if names:
                logger.log(
                    logging.WARNING if rank == 0 else logging.INFO,
                    "weights were loaded that had been pruned %s: their zeros are the "
                    "masks now, %s (%s)",
                    *(how, masks, some_of(names)),
                )
        if self.since:
            logger.log(
                logging.WARNING if rank == 0 else logging.INFO,
                "weights were pruned since the session's state was saved: their masks "
                "stay, %s (%s)",
                *(masks, some_of(self.since)),
            )


def zero_unfit(table: ParameterTable, masks: MaskSet) -> None:
    """Zeroes what is outside the masks of weights that were loaded and are not to be
    lost, unless they fit others: the script asks for it."""
    for _, parameter, mask in zeroed(table, masks):
        if registry.of(parameter).loaded and refit(parameter, mask) is None:
            storage.zero_outside(parameter, mask)
            registry.clear_loaded(parameter)


def refitted(
    table: ParameterTable, masks: MaskSet, origin: Origin, only_loaded: bool = False
) -> Refitted | None:
    """Masks that fit the weights that are there now; None if those given do.

    `only_loaded`: looks at parameters that have had no other mask since they were
    loaded.

    Raises:
      PacTrainError: a weight outside its mask is neither zero nor frozen, and there are
        not as many zeros elsewhere.
    """
    found, unfit = _refitted(table, masks, only_loaded, origin)
    if unfit:
        raise _unfit_error(unfit, origin)
    for _, parameter in table:
        registry.clear_loaded(parameter)
    return found


def refitted_where_possible(
    table: ParameterTable, masks: MaskSet, origin: Origin
) -> Refitted | None:
    """As refitted(), but what fits no mask is left for later."""
    return _refitted(table, masks, only_loaded=False, origin=origin)[0]


def log_unmasked(table: ParameterTable, masks: MaskSet, rank: int) -> None:
    names = unmasked(table, masks.masks)
    if names and rank == 0:
        logger.warning(
            "%s: many weights are zero, but no mask keeps them so; if they were "
            "pruned, call prune(model, masks_from=model.state_dict()) before training "
            "goes on",
            some_of(names),
        )


def _refitted(
    table: ParameterTable, masks: MaskSet, only_loaded: bool, origin: Origin
) -> tuple[Refitted | None, list[tuple[str, int]]]:
    """None: all fit. And what fits no mask: names and how many weights are not zero
    outside. Zeros inside a mask may have been pruned, too, but not where it is part of
    a state, or was given: that, no other masks take the place of."""
    given = origin == "masks" and not only_loaded
    others: dict[str, Tensor] = {}
    elsewhere: list[str] = []
    more: list[str] = []
    unfit: list[tuple[str, int]] = []
    since = _pruned_since(table, masks)
    others.update(since)
    for name, parameter, mask in zeroed(table, masks):
        loaded = registry.of(parameter).loaded
        if name in since or (only_loaded and not loaded):
            continue
        fitting = refit(parameter, mask, loaded and origin != "state" and not given)
        if fitting is None and registry.is_as_before_load(parameter):
            continue  # Masks that are not in force yet have weights outside.
        if fitting is None or (given and fitting is not mask):
            unfit.append((name, storage.count((parameter.detach() != 0) & ~mask)))
            registry.of(parameter).loaded = True  # prune() has to begin anew.
        elif fitting is not mask:
            others[name] = fitting
            (more if bool((fitting <= mask).all()) else elsewhere).append(name)
    if not others:
        return None, unfit
    masks_now = Declared({**masks.masks, **others}, masks.frozen, masks.unenforced)
    return Refitted(masks_now, elsewhere, more, list(since)), unfit


def _pruned_since(table: ParameterTable, masks: MaskSet) -> dict[str, Tensor]:
    """Masks of weights that were pruned more, after their session's state was saved and
    before it was given, and that have stayed so."""
    found: dict[str, Tensor] = {}
    for name, parameter in table:
        had, mask = registry.before_state(parameter), masks.masks.get(name)
        if had is None or name in masks.unenforced | masks.frozen:
            continue
        had = had.to(parameter.device)
        mask = None if mask is None else mask.to(parameter.device)
        both = had if mask is None else had & mask
        newer = mask is None or not torch.equal(both, mask)
        if newer and is_zero_outside(parameter, both):
            found[name] = both
    return found


def _unfit_error(unfit: list[tuple[str, int]], origin: Origin) -> PacTrainError:
    name, count = unfit[0]
    more = f", as {len(unfit) - 1} more parameters have some" if unfit[1:] else ""
    what, advice = _UNFIT[origin]
    found = f"{count:,} non-zero weights outside its mask"
    if origin == "copied":
        found = f"weights outside its mask that are not zero ({count:,})"
    return PacTrainError(f"{name} has {found}{more}: {what}.\n{advice}")


def _mask_state(optimizer: Optimizer, entry: _Entry) -> None:
    for value in optimizer.state.get(entry.parameter, {}).values():
        if isinstance(value, Tensor) and value.shape == entry.parameter.shape:
            storage.zero_outside(value, entry.mask)
