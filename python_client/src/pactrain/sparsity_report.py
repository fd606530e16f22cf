"""How sparse a model is, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from .mask_source import MaskSource
from .masks import Declared
from .parameters import ParameterTable


@dataclass(frozen=True)
class SparsityReport:
    """What the masks of a model keep; str() is a table.

    `layers` are (name, elements, kept). Of frozen ones what is not kept has values, but
    does not train. A mask of torch.nn.utils.prune counts, too.
    """

    layers: tuple[tuple[str, int, int], ...]
    elements: int  # Of the whole model.
    frozen: frozenset[str] = frozenset()

    @property
    def kept(self) -> int:
        return self.elements - sum(total - kept for _, total, kept in self.layers)

    @property
    def sparsity(self) -> float:
        """Share of all elements that need a gradient which is not kept."""
        return 1 - self.kept / self.elements

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
        return "\n".join([head, *rows, whole])


def sparsity(model: nn.Module) -> SparsityReport:
    """Of all parameters with two or more dimensions that need a gradient.

    These are the masks that were declared here; on an attached model they act when all
    ranks have agreed (`session.masks_settled`).

    Raises:
      InvalidArgument: the model has no parameter that needs a gradient.
    """
    table = ParameterTable(model)
    declared = MaskSource(model, table).read()
    names = [name for name, p in table if p.dim() >= 2 or name in declared.masks]
    return report_of(table, declared, names)


def report_of(
    table: ParameterTable, declared: Declared, names: list[str]
) -> SparsityReport:
    """Of these parameters only."""
    layers = []
    for name, parameter in table:
        if name in names:
            mask = declared.masks.get(name)
            kept = parameter.numel() if mask is None else int(mask.sum())
            layers.append((name, parameter.numel(), kept))
    partly = {name for name, total, kept in layers if kept < total}
    return SparsityReport(tuple(layers), table.elements, declared.frozen & partly)
