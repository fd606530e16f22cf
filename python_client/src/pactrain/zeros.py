"""Masks that are read from the zeros of weights which were pruned before.

Weights that trained are hardly ever exactly zero, so the zeros of a checkpoint say what
was pruned. Those of weights that have not trained yet do not: a layer that is all zero
(LoRA's B, the last gain of a block) is kept whole.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from . import storage
from .errors import InvalidArgument
from .masks import registry
from .parameters import ParameterTable, plain_name, some_of
from .roles import is_vector

_NESTED = ("state_dict", "model_state_dict", "model", "module")  # In checkpoints.
NOTABLE = 0.1  # Share of zeros that weights do not have by chance.

logger = logging.getLogger("pactrain")


def masks_from_weights(table: ParameterTable) -> dict[str, Tensor]:
    """weight != 0 of all parameters that are no vectors (PacTrain, GSE); those that
    have no zeros, or nothing else, are left out."""
    rewritten = table.rewritten()
    return _masks(
        (name, p.detach() != 0)
        for name, p in table
        if not is_vector(p) and name not in rewritten
    )


def masks_from_state(
    table: ParameterTable, state: Mapping[str, Any], field: str = "masks_from"
) -> dict[str, Tensor]:
    """The same of the weights in a state_dict(), also one of torch.nn.utils.prune.

    Raises:
      InvalidArgument: no state_dict() of this model, or no weight in it was pruned.
    """
    kept = _kept_in(table, state, field)
    masks = _masks((name, kept[name]) for name, p in table if name in kept)
    if not masks:
        raise InvalidArgument(
            f"{field} has no zeros in {some_of(list(kept))}: nothing was pruned.\n"
            "Load it with load_state_dict(), then call prune(model, amount)."
        )
    return masks


def load_pruned(
    module: nn.Module, table: ParameterTable, weights: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Loads a state_dict(), with the names of the model wrapped or not; returns the
    masks in it.

    Raises: as masks_from_state(), before anything is loaded.
    """
    masks = masks_from_state(table, weights, "weights")
    names = {plain_name(name): name for name in module.state_dict()}
    module.load_state_dict(
        {names.get(plain_name(name), name): v for name, v in weights.items()}
    )
    return masks


def _kept_in(
    table: ParameterTable, state: Mapping[str, Any], field: str
) -> dict[str, Tensor]:
    if not isinstance(state, Mapping) or not state:
        what = "empty" if isinstance(state, Mapping) else f"a {type(state).__name__}"
        raise InvalidArgument(
            f"{field} is {what}; allowed is a state_dict().\n"
            "Give model.state_dict(), or that of a checkpoint."
        )
    values = {plain_name(str(name)): value for name, value in state.items()}
    kept: dict[str, Tensor] = {}
    found = False
    rewritten = table.rewritten()
    for name, parameter in table:
        plain = plain_name(name)
        value = values.get(f"{plain}_mask", values.get(plain))
        found = found or isinstance(value, Tensor)
        if not isinstance(value, Tensor) or is_vector(parameter) or name in rewritten:
            continue
        if value.shape != parameter.shape:
            raise InvalidArgument(
                f"{field}[{name!r}] has shape {tuple(value.shape)}; allowed is "
                f"{tuple(parameter.shape)}.\nGive a state_dict() of this model."
            )
        kept[name] = value.detach() != 0
    if not found:
        nested = [key for key in _NESTED if isinstance(state.get(key), Mapping)]
        raise InvalidArgument(
            f"{field} has {some_of([repr(key) for key in state])}, none of which is "
            f"a parameter of this model; those are {some_of(table.names)}.\n"
            + (
                f"Give checkpoint[{nested[0]!r}]."
                if nested
                else "Give a state_dict() of this model."
            )
        )
    return kept


def _masks(kept: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    masks: dict[str, Tensor] = {}
    whole: list[str] = []
    for name, mask in kept:
        if not bool(mask.any()):
            whole.append(name)
        elif not bool(mask.all()):
            masks[name] = mask
    if whole:
        logger.warning(
            "%s: all weights are zero, as before training, so they are kept whole",
            some_of(whole),
        )
    return masks


def unmasked(table: ParameterTable, masks: Mapping[str, Tensor]) -> list[str]:
    """What looks pruned, but has no mask: training would bring its zeros back."""
    names = []
    rewritten = table.rewritten()
    for name, parameter in table:
        if name in masks or is_vector(parameter) or name in rewritten:
            continue
        if looks_pruned(parameter):
            names.append(name)
    return names


def looks_pruned(weights: Tensor, share: float = NOTABLE) -> bool:
    """At least this share is zero, and not all."""
    zeros = weights.numel() - storage.count(weights.detach())
    return share * weights.numel() <= zeros < weights.numel()


def refit(weights: Tensor, mask: Tensor, loaded: bool = False) -> Tensor | None:
    """The mask, if the weights outside it are zero; else that of the weights' own zeros
    if they were pruned as much elsewhere, as in a checkpoint; else None.

    Weights that were `loaded` may also have been pruned more: if a hundredth or more of
    what the mask keeps is zero, their zeros are the mask. Fewer are there by chance (a
    row of padding), and train; so do zeros that the script has made itself.

    Weights that momentum or the like brought back have no zeros elsewhere.
    """
    kept, there = weights.detach() != 0, mask.to(weights.device)
    outside = storage.count(kept > there)
    if outside == 0 and not loaded:
        return mask
    elsewhere = storage.count(there > kept)
    if outside == 0:
        pruned = 100 * elsewhere >= storage.count(there) and bool(kept.any())
        return kept if pruned else mask
    return kept if 100 * elsewhere >= 99 * outside and bool(kept.any()) else None


def refit_loaded(parameter: Tensor) -> Tensor | None:
    """The mask that a parameter has, or should have instead if its weights are newer;
    None if it has none that fits.

    While a session owns it, weights outside a wanted mask may be anything; they are
    newer if they were loaded since.
    """
    mask = registry.get(parameter)
    if mask is None or registry.of(parameter).frozen:
        return mask
    if registry.of(parameter).owner is not None and not registry.of(parameter).loaded:
        return mask
    return refit(parameter, mask, registry.of(parameter).loaded)
