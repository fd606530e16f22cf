"""What attach(masks=, gse=, settle=) say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor, nn

from .config import check_flag
from .enforcement import Origin
from .errors import InvalidArgument
from .mask_source import MaskSource
from .masks import Declared, named_masks
from .parameters import ParameterTable, shown
from .session import unpack_state
from .tracking import DEFAULT_SETTLE_STEPS, TrackedSource
from .zeros import masks_from_weights

_SETTLE_STEPS = {"weights": 3, "track": DEFAULT_SETTLE_STEPS}
_MOST_SETTLE_STEPS = 1_000_000

Masks = Mapping[str, Tensor] | Literal["weights", "track"] | None


def uses_gse(masks: Masks, gse: bool | None) -> bool:
    """What gse is where the script does not say it.

    Raises:
      InvalidArgument: it says something else than True or False.
    """
    if gse is None:
        return masks != "track"
    check_flag("gse", gse)
    return gse


def declare_masks(
    module: nn.Module,
    table: ParameterTable,
    masks: Masks,
    state: Mapping[str, Any] | None,
    settle: int | None,
) -> tuple[MaskSource, int]:
    """Where they come from, and how many steps they have to stay the same.

    Raises:
      InvalidArgument: masks, state or settle are not what is allowed.
    """
    declared = None if state is not None and masks == "weights" else masks
    steps = _settle_steps(declared, settle)
    if not isinstance(masks, Mapping) and masks == "track":
        tracked = TrackedSource(module, table, steps)
        if state is not None:
            unpack_state(table, state)  # Of this model, or refused.
        return tracked, steps
    source = MaskSource(module, table)
    if state is not None:
        source.write_state(unpack_state(table, state))
    elif isinstance(masks, Mapping):
        source.write(Declared(named_masks(table, masks)))
    elif masks == "weights":
        source.write(Declared(masks_from_weights(table)))
    elif masks is not None:
        raise InvalidArgument(
            f"masks is {shown(masks)}; allowed are None, 'weights', 'track' and "
            "{name: mask}.\nGive one of them."
        )
    return source, steps


def _settle_steps(masks: Masks, settle: int | None) -> int:
    if settle is None:
        if isinstance(masks, str):
            return _SETTLE_STEPS.get(masks, 1)
        return 1
    if isinstance(settle, bool) or not (
        isinstance(settle, int) and 1 <= settle <= _MOST_SETTLE_STEPS
    ):
        raise InvalidArgument(
            f"settle is {settle!r}; allowed are 1 to {_MOST_SETTLE_STEPS:,}.\n"
            "Give the number of steps for which masks have to stay the same."
        )
    return settle


def origin_of(masks: Masks, state: Mapping[str, Any] | None) -> Origin:
    if state is not None:
        return "state"
    return "masks" if isinstance(masks, Mapping) else "prune"
