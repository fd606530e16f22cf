"""A model with what attach() was given for it: what a rank does without the others."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import enforcement
from ._library import digest_of
from .copies import follow
from .device_path import choose
from .devices import DeviceCopies, accelerator_of
from .mask_choice import Masks, declare_masks, origin_of
from .mask_source import MaskSource
from .masks import MaskSet, make_mask_set
from .parameters import ParameterTable
from .wrapped import WrappedModel


@dataclass(frozen=True)
class DeclaredModel:
    model: WrappedModel
    table: ParameterTable
    source: MaskSource
    settle_steps: int
    state: Mapping[str, Any] | None
    origin: enforcement.Origin
    copies: DeviceCopies | None = None  # None: on the CPU.


def declare(
    model: WrappedModel,
    masks: Masks,
    state: Mapping[str, Any] | None,
    settle: int | None,
) -> DeclaredModel:
    """What a rank does without the others.

    Raises:
      InvalidArgument: an argument is out of range, or of another model.
      RefusedError, PacTrainError: the model is on devices that cannot be taken, or that
        have failed; or PACTRAIN_DEVICE_PATH asks for a path that cannot be had.
    """
    table = ParameterTable(model.module, model.ignored)
    device = accelerator_of(table)
    path = choose(device, os.environ)
    copies = None if device is None else DeviceCopies(device, table, path)
    follow(model.module)
    source, settle_steps = declare_masks(model.module, table, masks, state, settle)
    source.read()  # What is wrong with masks is said before ranks wait.
    origin = origin_of(masks, state)
    return DeclaredModel(model, table, source, settle_steps, state, origin, copies)


def refitted_where_possible(
    table: ParameterTable,
    source: MaskSource,
    masks: MaskSet,
    origin: enforcement.Origin,
    rank: int,
) -> MaskSet:
    """If the weights were pruned elsewhere and loaded since, their zeros are the masks.

    What fits no mask is refused later, when all ranks are there.
    """
    found = enforcement.refitted_where_possible(table, masks, origin)
    if found is None:
        return masks
    source.write(found.masks)
    masks = make_mask_set(table, source.read(), digest_of)
    found.log(masks, rank)
    return masks
