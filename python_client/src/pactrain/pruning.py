"""Magnitude pruning in place, with a registry instead of changed state_dict keys."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from .errors import InvalidArgument
from .masks import named_masks, registry
from .parameters import ParameterTable

Exempt: TypeAlias = (
    "Iterable[str | nn.Module] | Callable[[str, nn.Parameter], bool] | None"
)

_NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.LocalResponseNorm,
    nn.RMSNorm,
)


@dataclass(frozen=True)
class PruneReport:
    """What prune() did; str() is a table."""

    layers: tuple[tuple[str, int, int], ...]  # Name, elements, kept.
    elements: int  # Of the whole model.

    @property
    def kept(self) -> int:
        return self.elements - sum(total - kept for _, total, kept in self.layers)

    @property
    def sparsity(self) -> float:
        """Pruned share of all elements that need a gradient."""
        return 1 - self.kept / self.elements

    def __str__(self) -> str:
        width = max([len(name) for name, _, _ in self.layers] + [5])
        lines = [f"{'layer':<{width}} {'elements':>12} {'kept':>12} {'sparsity':>9}"]
        lines += [
            f"{name:<{width}} {total:>12,} {kept:>12,} {1 - kept / total:>8.1%}"
            for name, total, kept in self.layers
        ]
        lines.append(
            f"{'model':<{width}} {self.elements:>12,} {self.kept:>12,} "
            f"{self.sparsity:>8.1%}"
        )
        return "\n".join(lines)


def prune(
    model: nn.Module,
    amount: float,
    scope: str = "layer",
    exempt: Exempt = None,
) -> PruneReport:
    """Zeroes the smallest weights in place and remembers which.

    Only parameters with at least two dimensions that need a gradient. Weights pruned
    before stay pruned and count towards `amount`. If the model is attached, weights
    change when all ranks have agreed on the new masks.

    Args:
      amount: share of each layer ("layer") or of all of them ("global"), 0 <= a < 1.
      exempt: names, patterns ("head.*"), modules, or a function of (name, parameter);
        () exempts nothing. Default: the first and the last layer, and norms.

    Raises:
      InvalidArgument: a value out of range, or nothing to prune.
    """
    _check_amount(amount)
    if scope not in ("layer", "global"):
        raise InvalidArgument(
            f"scope is {scope!r}; allowed are 'layer' and 'global'.\nGive one of them."
        )
    table = ParameterTable(model)
    chosen = _choose(model, table, exempt)
    groups = [chosen] if scope == "global" else [[entry] for entry in chosen]
    for group in groups:
        for (_, parameter), mask in zip(
            group, _smallest_out(group, amount), strict=True
        ):
            _declare(parameter, mask)
    layers = [(name, p.numel(), _kept(p)) for name, p in chosen]
    return PruneReport(layers=tuple(layers), elements=table.elements)


def apply_masks(model: nn.Module, masks: Mapping[str, Tensor] | None = None) -> None:
    """Sets the weights outside the masks to zero.

    With `masks` ({name: mask}) these become the model's masks; without, the ones it
    has are used: for weights that were loaded after prune().

    Raises:
      InvalidArgument: an unknown name or a wrong shape.
    """
    table = ParameterTable(model)
    if masks is not None:
        for name, mask in named_masks(table, masks).items():
            found = table.find(name)
            assert found is not None
            registry.set(found[1], mask)
    for _, parameter in table:
        mask_of = registry.get(parameter)
        if mask_of is not None:
            _zero_outside(parameter, mask_of)


def _check_amount(amount: float) -> None:
    number = isinstance(amount, (int, float)) and not isinstance(amount, bool)
    if not number or not 0 <= amount < 1:
        raise InvalidArgument(
            f"amount is {amount!r}; allowed is a share of at least 0 and below 1.\n"
            "Give 0.7 to prune 70 % of the weights."
        )


def _choose(
    model: nn.Module, table: ParameterTable, exempt: Exempt
) -> list[tuple[str, nn.Parameter]]:
    candidates = [(n, p) for n, p in table if p.dim() >= 2 and p.is_floating_point()]
    for name, _ in candidates:
        if name.endswith("_orig"):
            raise InvalidArgument(
                f"{name} is already pruned by torch.nn.utils.prune.\n"
                "Attach as it is: its mask is found. Or prune with pactrain only."
            )
    if not candidates:
        raise InvalidArgument(
            f"model ({type(model).__name__}) has no parameter with two or more "
            "dimensions, so that there is nothing to prune.\n"
            "Attach it without prune(), or give {name: mask} to attach()."
        )
    is_exempt = _exemption(model, candidates, exempt)
    chosen = [(name, p) for name, p in candidates if not is_exempt(name, p)]
    if not chosen:
        raise InvalidArgument(
            f"model ({type(model).__name__}) has nothing to prune: all of its "
            f"{len(candidates)} parameters with two or more dimensions are exempt (by "
            "default those of the first layer, the last layer and norms).\n"
            "Give exempt=() to prune all of them."
        )
    return chosen


def _exemption(
    model: nn.Module, candidates: list[tuple[str, nn.Parameter]], exempt: Exempt
) -> Callable[[str, nn.Parameter], bool]:
    if callable(exempt):
        return exempt
    if isinstance(exempt, (str, nn.Module)):
        exempt = (exempt,)
    if exempt is None:
        ids = {
            id(p)
            for m in model.modules()
            if isinstance(m, _NORMS)
            for p in m.parameters()
        }
        layers = [(n, p) for n, p in candidates if id(p) not in ids]
        ids |= {id(p) for _, p in layers[:1] + layers[-1:]}
        return lambda name, parameter: id(parameter) in ids
    patterns: list[str] = []
    exempt_ids: set[int] = set()
    for item in exempt:
        if isinstance(item, nn.Module):
            exempt_ids |= {id(p) for p in item.parameters()}
        elif isinstance(item, str):
            patterns.append(item)
        else:
            raise InvalidArgument(
                f"exempt has {item!r}; allowed are names, patterns and modules.\n"
                "Give for example exempt=('head.*', model.stem)."
            )
    return lambda name, parameter: (
        id(parameter) in exempt_ids
        or any(
            fnmatch.fnmatchcase(name, pattern) or name.startswith(pattern + ".")
            for pattern in patterns
        )
    )


def _smallest_out(group: list[tuple[str, nn.Parameter]], amount: float) -> list[Tensor]:
    sizes = [parameter.numel() for _, parameter in group]
    magnitudes = []
    for _, parameter in group:
        magnitude = parameter.detach().abs().float()
        before = registry.get(parameter)
        if before is not None:  # Pruned weights go first, whatever their value is.
            magnitude = magnitude.masked_fill(~before, -1.0)
        magnitudes.append(magnitude.reshape(-1))
    flat = torch.cat(magnitudes)
    count = max(round(amount * flat.numel()), int((flat < 0).sum()))
    keep = torch.ones_like(flat, dtype=torch.bool)
    keep[flat.topk(count, largest=False, sorted=False).indices] = False
    pieces: Any = keep.split(sizes)  # type: ignore[no-untyped-call]
    return [piece.reshape(p.shape) for piece, (_, p) in zip(pieces, group, strict=True)]


def _declare(parameter: nn.Parameter, mask: Tensor) -> None:
    registry.set(parameter, mask)
    if not registry.is_attached(parameter):
        _zero_outside(parameter, mask)


def _zero_outside(parameter: nn.Parameter, mask: Tensor) -> None:
    with torch.no_grad():
        parameter.masked_fill_(~mask, 0)


def _kept(parameter: nn.Parameter) -> int:
    mask = registry.get(parameter)
    return parameter.numel() if mask is None else int(mask.sum())
