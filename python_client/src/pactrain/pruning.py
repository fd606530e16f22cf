"""Pruning in place, with a registry instead of changed state_dict keys."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from . import scores, storage
from .copies import follow
from .errors import InvalidArgument, PacTrainError
from .exemptions import (
    TIED,
    Entries,
    Exempt,
    Names,
    Selection,
    choose,
    nothing_to_prune,
    reasons_text,
)
from .mask_source import MaskSource
from .masks import Owner, check_kind, named_masks, registry
from .parameters import ParameterTable, check_module, shown
from .ratios import SCOPES, keep_highest
from .saying import say
from .scores import Loss, Scores
from .sparsity_report import SparsityReport, report_of
from .swapped import note_pruned
from .zeros import NOTABLE, looks_pruned, masks_from_state, refit_loaded

METHODS = ("magnitude", "random", "grasp")
SHARES = ("layers", "model")  # What an amount is a share of.
_NOTABLE = 0.05  # How much less than the amount is worth a hint.
_MIN_SEED, _MAX_SEED = -(2**63), 2**64 - 1  # What torch.Generator takes.

logger = logging.getLogger("pactrain")


@dataclass(frozen=True)
class PruneOptions:
    """The arguments of prune(), checked."""

    scope: str | None = None
    selection: Selection = field(default_factory=Selection)
    method: str = "magnitude"
    kind: str = "zero"
    seed: int = 0
    of: str = "layers"
    loss: Loss | None = None
    batch: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        """Raises InvalidArgument."""
        if self.method not in METHODS:
            raise InvalidArgument(
                f"method is {self.method!r}; allowed are 'magnitude', 'random' and "
                "'grasp'.\nGive one of them; how weights are spread over layers is "
                "scope."
            )
        if self.scope is not None and self.scope not in SCOPES:
            raise InvalidArgument(
                f"scope is {self.scope!r}; allowed are 'layer', 'global' and 'erk'.\n"
                "Give one of them."
            )
        if self.of not in SHARES:
            raise InvalidArgument(
                f"of is {self.of!r}; allowed are 'layers' and 'model'.\n"
                "Give 'model' where amount is a share of all weights of the model."
            )
        check_kind(self.kind)
        integer = isinstance(self.seed, int) and not isinstance(self.seed, bool)
        if not integer or not _MIN_SEED <= self.seed <= _MAX_SEED:
            raise InvalidArgument(
                f"seed is {self.seed!r}; allowed is an integer from -2^63 to 2^64 - 1."
                "\n"
                "Give the same one on all ranks."
            )
        self._check_loss()

    def _check_loss(self) -> None:
        if self.method != "grasp":
            if self.loss is not None or self.batch is not None:
                raise InvalidArgument(
                    f"loss and batch were given, but method is {self.method!r}.\n"
                    "Give method='grasp', or leave them out."
                )
            return
        if not callable(self.loss):
            raise InvalidArgument(
                f"loss is {self.loss!r}; allowed for method 'grasp' is a function.\n"
                "Give loss=cross_entropy and batch=(inputs, labels), or a function of "
                "the model."
            )
        batch = self.batch
        if batch is not None and not (
            isinstance(batch, (tuple, list)) and len(batch) == 2
        ):
            raise InvalidArgument(
                f"batch is {type(batch).__name__}; allowed is (inputs, target).\n"
                "Give a pair, or leave it out and give a loss of the model."
            )

    @property
    def effective_scope(self) -> str:
        """GraSP compares all layers, as in the paper."""
        return self.scope or ("global" if self.method == "grasp" else "layer")


def prune(
    model: nn.Module,
    amount: float | None = None,
    scope: str | None = None,
    exempt: Exempt = None,
    *,
    include: Names = (),
    exclude: Names = (),
    of: str = "layers",
    method: str = "magnitude",
    kind: str = "zero",
    seed: int = 0,
    loss: Loss | None = None,
    batch: Sequence[Any] | None = None,
    masks_from: Mapping[str, Any] | None = None,
) -> SparsityReport:
    """Prunes weights in place and remembers which; says in one line what came of it.

    Only parameters that need a gradient, with two or more dimensions above 1; not
    norms, not embeddings of positions, and not what a parametrization mixes. Nor those
    whose weights cannot be told apart by their scores, as before training (all ones,
    all zeros).

    Weights pruned before stay pruned and count towards `amount`, unless other weights
    were loaded since: then it begins anew, or with the zeros of what was loaded. If the
    model is attached, weights change when all ranks have agreed on the new masks; all
    ranks have to prune between the same two steps.

    Args:
      amount: share of the weights to prune, 0 <= a < 1.
      scope: how it is spread: "layer", the same share of each (default); "global", the
        worst of all (default of GraSP); "erk", less from small layers (Erdos-Renyi
        kernel).
      exempt: names, patterns ("head.*"), modules, or a function of (name, parameter);
        () exempts none. Default: the first and the last layer.
      include: names, patterns, modules that are pruned although they would be exempt.
      exclude: the same that are exempt, too.
      of: what `amount` is a share of: "layers", those that are pruned; "model", all
        its weights, so that layers lose more where others are exempt.
      method: which go first: "magnitude", the smallest; "random"; "grasp", those whose
        loss leaves the gradient's norm highest, by a batch. GraSP on an attached model
        is collective: all ranks get rank 0's masks at once.
      kind: "zero" sets weights to zero. "freeze" leaves their values: only the kept
        ones train. A parameter has one kind, that of its last pruning.
      seed: of "random"; equal on all ranks.
      loss, batch: of "grasp": loss(model), or with batch=(inputs, target)
        loss(model(inputs), target), a scalar.
      masks_from: state_dict() of a pruned model: its zeros become the masks, and all
        arguments but `kind` only say what was expected.

    Raises:
      InvalidArgument: a value out of range, nothing to prune, or the model is attached
        with masks="track".
      PacTrainError: GraSP on an attached model, and it failed on another rank, or the
        exchange did; masks are as before.
    """
    try:
        check_module(model)
        check_declares(model, "prune()")
        selection = Selection(exempt, include, exclude)
        options = PruneOptions(scope, selection, method, kind, seed, of, loss, batch)
        if masks_from is not None:
            return _take_masks(model, amount, options, masks_from)
        pruned = _choose_masks(model, amount, options)
    except Exception:
        if method == "grasp":
            _tell_failure(model)
        raise
    chosen = pruned.chosen
    before = [(p, registry.get(p), registry.of(p).frozen) for _, p in chosen]
    _declare(model, pruned, options.kind)
    if method == "grasp":
        _share(model, before)
    report = _finished(model, pruned)
    say(_line(report, pruned, options))
    return report


def prune_by(model: nn.Module, amount: float, options: PruneOptions) -> SparsityReport:
    """prune() with checked options, by a method that is not collective; silent."""
    pruned = _choose_masks(model, amount, options)
    _declare(model, pruned, options.kind)
    return _finished(model, pruned)


@dataclass(frozen=True)
class _Pruned:
    """Masks for what was chosen, why others were not, and what was asked for."""

    chosen: Entries
    masks: Sequence[Tensor]
    exempt: Mapping[str, str]
    amount: float | None


def _choose_masks(model: nn.Module, amount: Any, options: PruneOptions) -> _Pruned:
    share = share_of(amount)
    table = ParameterTable(model)
    choice = choose(model, table, options.selection)
    entries, exempt = choice.chosen, dict(choice.exempt)
    follow(model)
    make_scores = _scorer(model, entries, options, share)
    takes = [True] * len(entries)
    while True:
        entries = list(itertools.compress(choice.chosen, takes))
        part = share
        if options.of == "model":
            part = _share_of_layers(share, table, entries)
        seconds = None  # Units that a batch leaves dead have equal scores in GraSP.
        if options.method == "grasp":
            seconds = scores.magnitude([parameter for _, parameter in entries])
        scored = itertools.compress(make_scores(), takes)
        kept = keep_highest(scored, part, options.effective_scope, seconds)
        if not kept.tied:
            return _Pruned(entries, kept.masks, exempt, share)
        exempt |= {entries[i][0]: TIED for i in kept.tied}
        takes = [name not in exempt for name, _ in choice.chosen]
        if not any(takes):
            raise nothing_to_prune(model, exempt)


def _share_of_layers(share: float, table: ParameterTable, entries: Entries) -> float:
    """Of the weights of these layers, so that `share` of the model's are pruned."""
    ids = {id(parameter) for _, parameter in entries}
    size = sum(parameter.numel() for _, parameter in entries)
    masks = (registry.get(p) for _, p in table if id(p) not in ids)
    gone = sum(storage.count(~mask) for mask in masks if mask is not None)
    part = (share * table.elements - gone) / size
    if part >= 1:
        raise InvalidArgument(
            f"amount is {share:g} of the model, but all that may be pruned holds "
            f"{(size + gone) / table.elements:.1%} of its weights; allowed is less.\n"
            "Give a smaller amount, or more layers by exempt=() and include=(...)."
        )
    return max(part, 0.0)


def _take_masks(
    model: nn.Module, amount: Any, options: PruneOptions, state: Mapping[str, Any]
) -> SparsityReport:
    asked = None if amount is None else share_of(amount)
    table = ParameterTable(model)
    masks = masks_from_state(table, state)
    follow(model)
    MaskSource(model, table).write_zeros(masks, options.kind)
    for _, parameter in table:
        if registry.of(parameter).owner is None:
            _zero_outside(parameter)
    chosen = [(name, parameter) for name, parameter in table if name in masks]
    pruned = _Pruned(chosen, [masks[name] for name, _ in chosen], {}, asked)
    report = _finished(model, pruned)
    wanted = "" if asked is None else f"{asked:.1%} asked, but "
    say(
        f"prune: {wanted}masks are taken from masks_from: {report.pruned:,} of the "
        f"model's {report.elements:,} weights ({report.sparsity:.1%}), in "
        + _count(chosen)
    )
    return report


def _finished(model: nn.Module, pruned: _Pruned) -> SparsityReport:
    """What came of it; from now on layers in the place of these are noticed."""
    table = ParameterTable(model)
    note_pruned(model, table)
    names = [name for name, _ in pruned.chosen]
    report = report_of(table, MaskSource(model, table).read(), names, pruned.exempt)
    for name, _, kept in report.layers:
        if kept == 0:
            logger.warning("prune: %s has no weight left", name)
    return report


def _line(report: SparsityReport, pruned: _Pruned, options: PruneOptions) -> str:
    """What was asked for, what came of it, and what was exempt and why."""
    assert pruned.amount is not None
    of = "the model" if options.of == "model" else _count(report.layers)
    verb = "frozen" if options.kind == "freeze" else "pruned"
    text = (
        f"prune: {pruned.amount:.1%} of {of} asked; {verb} are {report.pruned:,} of "
        f"the model's {report.elements:,} weights ({report.sparsity:.1%})"
    )
    if any(registry.of(parameter).owner is not None for _, parameter in pruned.chosen):
        text += " when all ranks agree"
    if pruned.exempt:
        text += f". Exempt: {reasons_text(pruned.exempt)}"
    layers = sum(total for _, total, _ in report.layers)
    if options.of == "layers" and report.pruned > (pruned.amount + _NOTABLE) * layers:
        text += ". What was pruned before stays pruned"
    if options.of == "layers" and report.sparsity < pruned.amount - _NOTABLE:
        text += '. of="model" reaches the amount over the whole model'
    return text


def _count(layers: Sequence[object]) -> str:
    return "1 layer" if len(layers) == 1 else f"{len(layers)} layers"


def apply_masks(
    model: nn.Module, masks: Mapping[str, Tensor] | None = None, kind: str = "zero"
) -> None:
    """Sets the weights outside the masks to zero, except frozen ones.

    With `masks` ({name: mask}) these become the model's masks, of this kind; without,
    the ones it has are used, or the zeros of weights that were pruned elsewhere, or
    more, and loaded since.

    Also of parameters that need no gradient any more, as where LoRA was merged. An
    average of a model (AveragedModel) has the masks that the model has by now.

    Raises:
      InvalidArgument: an unknown name or kind, a wrong shape or value, or the model is
        attached with masks="track".
    """
    check_kind(kind)
    check_module(model)
    check_declares(model, "apply_masks()")
    table = ParameterTable(model, also=registry.has)
    if masks is not None:
        for name, mask in named_masks(table, masks).items():
            found = table.find(name)
            assert found is not None
            registry.set(found[1], mask, kind == "freeze")
        follow(model)
    enforce(model, table, new=masks is not None)
    note_pruned(model, table)
    if masks is None and not MaskSource(model, table).read().masks:
        logger.warning(
            "apply_masks: model (%s) has no masks, so nothing was done; prune it, or "
            "give masks",
            type(model).__name__,
        )


def enforce(model: nn.Module, table: ParameterTable, new: bool = False) -> None:
    """Sets weights outside the masks to zero. Unless these are `new`, they are the
    zeros of weights that were loaded since."""
    MaskSource(model, table).read()  # They go along where parameters are replaced.
    for _, parameter in table:
        mask_of = registry.get(parameter)
        if mask_of is None:
            continue
        fitting = None if new else refit_loaded(parameter)
        if fitting is not None and fitting is not mask_of:
            registry.set(parameter, fitting)
        else:
            _zero_outside(parameter)
            registry.clear_loaded(parameter)


def share_of(amount: Any) -> float:
    """The amount, which may be a scalar of numpy or torch.

    Raises:
      InvalidArgument: out of range, or not a number.
    """
    share = math.nan
    if hasattr(amount, "__float__") and not isinstance(amount, bool):
        with contextlib.suppress(TypeError, ValueError, ArithmeticError, RuntimeError):
            share = float(amount)
    if not 0 <= share < 1:
        raise InvalidArgument(
            f"amount is {shown(amount)}; allowed is a share of at least 0 and below 1."
            "\nGive 0.7 to prune 70 % of the weights."
        )
    return share


def _scorer(
    model: nn.Module, chosen: Entries, options: PruneOptions, share: float
) -> Callable[[], Iterator[Scores]]:
    """Gives the scores anew at each call, the same ones."""
    parameters = [parameter for _, parameter in chosen]
    if options.method == "random":
        return lambda: _checked(chosen, scores.random(parameters, options.seed), share)
    if options.method == "magnitude":
        return lambda: _checked(chosen, scores.magnitude(parameters), share)
    assert options.loss is not None
    values = scores.grasp(model, parameters, options.loss, options.batch)
    return lambda: _checked(chosen, values, share)


def _checked(
    chosen: Entries, values: Iterable[Tensor | Scores], share: float
) -> Iterator[Scores]:
    """What was pruned before has the lowest scores, whatever its weights are: outside
    the mask, or, where a checkpoint was loaded and nothing pruned since, its zeros."""
    enough = min(share or NOTABLE, NOTABLE)
    for (name, parameter), value in zip(chosen, values, strict=True):
        score = Scores.of(value)
        if not all(bool(piece.isfinite().all()) for piece in score()):
            raise InvalidArgument(
                f"{name} has weights or gradients that are not finite, so they cannot "
                "be compared.\nPrune before training diverges, or with method='random'."
            )
        before = refit_loaded(parameter)
        if before is None and looks_pruned(parameter, enough):
            before = parameter.detach() != 0
        if before is not None:
            score = score.without(before)
        yield score


def _declare(model: nn.Module, pruned: _Pruned, kind: str) -> None:
    for (_, parameter), mask in zip(pruned.chosen, pruned.masks, strict=True):
        registry.set(parameter, mask, kind == "freeze")
        if registry.of(parameter).owner is None:
            _zero_outside(parameter)
    for _, parameter in ParameterTable(model):  # Those that were not chosen.
        mask_of, fitting = registry.get(parameter), refit_loaded(parameter)
        if fitting is None:
            registry.remove(parameter)
        elif fitting is not mask_of:
            registry.set(parameter, fitting)
    storage.give_back_memory()  # Of the scores.


def _zero_outside(parameter: nn.Parameter) -> None:
    mask = registry.get(parameter)
    if mask is not None and not registry.of(parameter).frozen:
        with torch.no_grad():
            parameter.masked_fill_(~mask, 0)


def _owners(model: nn.Module) -> list[Owner]:
    """In the same order on all ranks; of all parameters, since a rank that fails may
    not know which ones the others chose."""
    owners: list[Owner] = []
    for parameter in model.parameters():
        owner = registry.of(parameter).owner
        if owner is not None and owner not in owners:
            owners.append(owner)
    return owners


def check_declares(model: nn.Module, call: str) -> None:
    """Raises InvalidArgument, which names the call, where a session tracks masks."""
    for owner in _owners(model):
        owner.check_declares(call)


def _tell_failure(model: object) -> None:
    """The other ranks would wait in vain; they fail at the first owner."""
    for owner in _owners(model)[:1] if isinstance(model, nn.Module) else ():
        with contextlib.suppress(PacTrainError):  # This rank has an error of its own.
            owner.sync_masks(failed=True)


def _share(
    model: nn.Module, before: list[tuple[nn.Parameter, Tensor | None, bool]]
) -> None:
    """Other batches choose other weights: rank 0's choice is everyone's."""
    try:
        for owner in _owners(model):
            owner.sync_masks()
    except BaseException:
        for parameter, mask, frozen in before:
            if mask is None:
                registry.remove(parameter)
            else:
                registry.set(parameter, mask, frozen)
        raise
