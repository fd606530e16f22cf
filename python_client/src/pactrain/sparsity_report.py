"""How sparse a model is, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from . import storage
from .mask_source import MaskSource
from .masks import Declared, registry
from .parameters import ParameterTable


@dataclass(frozen=True)
class SparsityReport:
    """What a model keeps; str() is a table.

    `layers` are (name, elements, kept): of sparsity() what is not zero, counted; of
    prune() what the masks keep. Of frozen ones what is not kept has values, but does
    not train. `outside` are weights outside the masks that are not zero; `exempt` says
    by name why prune() left others alone.
    """

    layers: tuple[tuple[str, int, int], ...]
    elements: int  # Of the whole model.
    frozen: frozenset[str] = frozenset()
    outside: int = 0
    exempt: Mapping[str, str] = field(default_factory=dict)

    @property
    def pruned(self) -> int:
        return sum(total - kept for _, total, kept in self.layers)

    @property
    def kept(self) -> int:
        return self.elements - self.pruned

    @property
    def sparsity(self) -> float:
        """Share of `elements` that is not kept."""
        return self.pruned / self.elements

    def kind(self, layer: str) -> str:
        """ "freeze", "zero", or "-" for a layer that is kept whole."""
        if layer in self.frozen:
            return "freeze"
        return "zero" if any(n == layer and k < t for n, t, k in self.layers) else "-"

    def __str__(self) -> str:
        width = max([len(name) for name, _, _ in self.layers] + [5])
        head = f"{'layer':<{width}} {'elements':>12} {'kept':>12} {'sparsity':>9}  kind"
        rows = [
            f"{name:<{width}} {total:>12,} {kept:>12,} {1 - kept / total:>9.1%}  "
            f"{self.kind(name)}"
            for name, total, kept in self.layers
        ]
        whole = (
            f"{'model':<{width}} {self.elements:>12,} {self.kept:>12,} "
            f"{self.sparsity:>9.1%}"
        )
        if self.outside:
            whole += f"\n{self.outside:,} weights outside the masks are not zero"
        return "\n".join([head, *rows, whole])


def sparsity(model: nn.Module) -> SparsityReport:
    """Of all parameters with two or more dimensions that need a gradient or have a
    mask; of all of them, where none does.

    Where a parametrization does not keep a parameter's zeros, what it makes is counted.
    Weights are counted: those that are zero, whatever masks say, and of frozen ones
    those outside their mask. On an attached model masks act when all ranks have agreed
    (`session.masks_settled`).

    Raises:
      InvalidArgument: the model has no parameter.
    """
    table = ParameterTable(model, also=registry.has)
    declared = MaskSource(model, table).read()
    layers = []
    outside = 0
    rewritten = table.rewritten()
    for name, parameter in table:
        if name in rewritten:
            seen = rewritten[name]
            unseen = parameter.numel() - seen.numel()
            layers.append((name, parameter.numel(), storage.count(seen != 0) + unseen))
            continue
        if parameter.dim() < 2 and name not in declared.masks:
            continue
        if parameter.numel() == 0:
            continue
        mask = declared.masks.get(name)
        kept, beyond = _counted(parameter, mask, name in declared.frozen)
        layers.append((name, parameter.numel(), kept + beyond))
        if name in declared.unenforced:  # Its forward pass applies the mask.
            layers[-1] = (name, parameter.numel(), kept)
        else:
            outside += beyond
    return _report(table, declared, layers, outside, {})


def _counted(weights: Tensor, mask: Tensor | None, frozen: bool) -> tuple[int, int]:
    """Weights that are not zero, inside the mask and outside."""
    if frozen and mask is not None:
        return storage.count(mask), 0
    values = weights.detach() != 0
    if mask is None:
        return storage.count(values), 0
    inside = storage.count(values & mask.to(values.device))
    return inside, storage.count(values) - inside


def report_of(
    table: ParameterTable,
    declared: Declared,
    names: list[str],
    exempt: Mapping[str, str],
) -> SparsityReport:
    """By the masks, of these parameters only."""
    layers = []
    for name, parameter in table:
        if name in names:
            mask = declared.masks.get(name)
            kept = parameter.numel() if mask is None else storage.count(mask)
            layers.append((name, parameter.numel(), kept))
    return _report(table, declared, layers, 0, exempt)


def _report(
    table: ParameterTable,
    declared: Declared,
    layers: list[tuple[str, int, int]],
    outside: int,
    exempt: Mapping[str, str],
) -> SparsityReport:
    partly = {name for name, total, kept in layers if kept < total}
    return SparsityReport(
        tuple(layers), table.elements, declared.frozen & partly, outside, exempt
    )
