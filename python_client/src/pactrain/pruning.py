"""Pruning in place, with a registry instead of changed state_dict keys."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from . import scores
from .copies import follow
from .errors import InvalidArgument, PacTrainError
from .exemptions import Entries, Exempt, choose
from .mask_source import MaskSource
from .masks import Owner, check_kind, named_masks, registry
from .parameters import ParameterTable
from .ratios import SCOPES, keep_highest
from .scores import Loss
from .sparsity_report import SparsityReport, report_of

METHODS = ("magnitude", "random", "grasp")
_MIN_SEED, _MAX_SEED = -(2**63), 2**64 - 1  # What torch.Generator takes.

logger = logging.getLogger("pactrain")


@dataclass(frozen=True)
class PruneOptions:
    """The arguments of prune(), checked."""

    scope: str | None = None
    exempt: Exempt = None
    method: str = "magnitude"
    kind: str = "zero"
    seed: int = 0
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
    amount: float,
    scope: str | None = None,
    exempt: Exempt = None,
    *,
    method: str = "magnitude",
    kind: str = "zero",
    seed: int = 0,
    loss: Loss | None = None,
    batch: Sequence[Any] | None = None,
) -> SparsityReport:
    """Prunes weights in place and remembers which.

    Only parameters with at least two dimensions that need a gradient. Weights pruned
    before stay pruned and count towards `amount`. If the model is attached, weights
    change when all ranks have agreed on the new masks; all ranks have to prune between
    the same two steps.

    Args:
      amount: share of the weights of these layers, 0 <= a < 1.
      scope: how it is spread: "layer", the same share of each (default); "global", the
        worst of all (default of GraSP); "erk", less from small layers (Erdos-Renyi
        kernel).
      exempt: names, patterns ("head.*"), modules, or a function of (name, parameter);
        () exempts nothing. Default: the first and the last layer, and norms.
      method: which go first: "magnitude", the smallest; "random"; "grasp", those whose
        loss leaves the gradient's norm highest, by a batch. GraSP on an attached model
        is collective: all ranks get rank 0's masks at once.
      kind: "zero" sets weights to zero. "freeze" leaves their values: only the kept
        ones train. A parameter has one kind, that of its last pruning.
      seed: of "random"; equal on all ranks.
      loss, batch: of "grasp": loss(model), or with batch=(inputs, target)
        loss(model(inputs), target), a scalar.

    Raises:
      InvalidArgument: a value out of range, or nothing to prune.
      PacTrainError: GraSP on an attached model, and it failed on another rank, or the
        exchange did; masks are as before.
    """
    try:
        options = PruneOptions(scope, exempt, method, kind, seed, loss, batch)
        chosen, masks = _choose_masks(model, amount, options)
    except Exception:
        if method == "grasp":
            _tell_failure(model)
        raise
    before = [(p, registry.get(p), registry.is_frozen(p)) for _, p in chosen]
    _declare(chosen, masks, options.kind)
    if method == "grasp":
        _share(model, before)
    return _report(model, chosen)


def prune_by(model: nn.Module, amount: float, options: PruneOptions) -> SparsityReport:
    """prune() with checked options, by a method that is not collective."""
    chosen, masks = _choose_masks(model, amount, options)
    _declare(chosen, masks, options.kind)
    return _report(model, chosen)


def _choose_masks(
    model: nn.Module, amount: float, options: PruneOptions
) -> tuple[Entries, list[Tensor]]:
    share = share_of(amount)
    chosen = choose(model, ParameterTable(model), options.exempt)
    follow(model)
    scored = _scores(model, chosen, options)
    return chosen, keep_highest(scored, share, options.effective_scope)


def _report(model: nn.Module, chosen: Entries) -> SparsityReport:
    table = ParameterTable(model)
    names = [name for name, _ in chosen]
    report = report_of(table, MaskSource(model, table).read(), names)
    for name, _, kept in report.layers:
        if kept == 0:
            logger.warning("prune: %s has no weight left", name)
    return report


def apply_masks(
    model: nn.Module, masks: Mapping[str, Tensor] | None = None, kind: str = "zero"
) -> None:
    """Sets the weights outside the masks to zero, except frozen ones.

    With `masks` ({name: mask}) these become the model's masks, of this kind; without,
    the ones it has are used: for weights that were loaded after prune().

    Raises:
      InvalidArgument: an unknown name or kind, or a wrong shape or value.
    """
    check_kind(kind)
    table = ParameterTable(model)
    if masks is not None:
        for name, mask in named_masks(table, masks).items():
            found = table.find(name)
            assert found is not None
            registry.set(found[1], mask, kind == "freeze")
        follow(model)
    for _, parameter in table:
        mask_of = registry.get(parameter)
        if mask_of is not None:
            _zero_outside(parameter, mask_of)


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
            f"amount is {amount!r}; allowed is a share of at least 0 and below 1.\n"
            "Give 0.7 to prune 70 % of the weights."
        )
    return share


def _scores(model: nn.Module, chosen: Entries, options: PruneOptions) -> list[Tensor]:
    parameters = [parameter for _, parameter in chosen]
    if options.method == "random":
        values = scores.random(parameters, options.seed)
    elif options.method == "grasp":
        assert options.loss is not None
        values = scores.grasp(model, parameters, options.loss, options.batch)
    else:
        values = scores.magnitude(parameters)
    for (name, parameter), score in zip(chosen, values, strict=True):
        if not bool(score.isfinite().all()):
            raise InvalidArgument(
                f"{name} has weights or gradients that are not finite, so they cannot "
                "be compared.\nPrune before training diverges, or with method='random'."
            )
        before = registry.get(parameter)
        if before is not None:  # Pruned weights go first, whatever their value is.
            score.masked_fill_(~before, -torch.inf)
    return values


def _declare(chosen: Entries, masks: Sequence[Tensor], kind: str) -> None:
    for (_, parameter), mask in zip(chosen, masks, strict=True):
        registry.set(parameter, mask, kind == "freeze")
        if registry.owner(parameter) is None:
            _zero_outside(parameter, mask)


def _zero_outside(parameter: nn.Parameter, mask: Tensor) -> None:
    if not registry.is_frozen(parameter):
        with torch.no_grad():
            parameter.masked_fill_(~mask, 0)


def _owners(model: nn.Module) -> list[Owner]:
    """In the same order on all ranks; of all parameters, since a rank that fails may
    not know which ones the others chose."""
    owners: list[Owner] = []
    for parameter in model.parameters():
        owner = registry.owner(parameter)
        if owner is not None and owner not in owners:
            owners.append(owner)
    return owners


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
