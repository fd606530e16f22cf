"""Which weights a script replaced by hand, as by `p.data.copy_(checkpoint[name])`.

No hook tells of that, and weights outside the masks would be set to zero with the next
step. So a few weights of each masked parameter, inside the mask and outside, are looked
at before anything is zeroed. They count as loaded if they moved much further than by
the steps before: a checkpoint's weights lie further away. Scripts that step by hand,
with a momentum of their own or with noise, leave outside the masks what one step makes;
that is masked again.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from . import storage
from .masks import MaskSet, registry
from .parameters import ParameterTable
from .zeros import refit

_STEPS = 4  # As far as so many of the largest steps lately is no checkpoint's doing.
_FIRST_STEP = 1 / 8  # Of the weights' own size; nothing is known of steps yet.
_SAMPLE = 512  # So a hundredth of a layer is hardly ever overlooked.
_FADING = 0.9  # Of the size of a step, with each later one.


class _Watched:
    def __init__(
        self, name: str, parameter: Tensor, wanted: Tensor, kept: Tensor, frozen: bool
    ) -> None:
        """`wanted` is this rank's mask. Outside of `kept` weights may be lost."""
        self.name = name
        self.parameter = parameter
        self.wanted = wanted
        self.kept = kept
        self.frozen = frozen
        self.usual = 0.0  # Root mean square of what a step changes.
        self.due = False  # A gradient has come since the last look.
        self.has_zeros = False  # Inside the mask, by hand.
        inside = storage.some_places(wanted, _SAMPLE)
        self._inside = inside.numel()  # The first ones.
        outside = storage.some_places(wanted, _SAMPLE, value=False)
        self.places = torch.cat([inside, outside])
        self._values = self._left = self.now()

    def go_on_from(self, before: _Watched) -> None:
        self.usual, self.due = before.usual, before.due
        if before.wanted is self.wanted:  # The same places, then.
            self._values, self._left = before._values, before._left

    def now(self) -> Tensor:
        """What is there, on the CPU."""
        taken = self.taken()
        return taken if taken.device.type == "cpu" else taken.float().cpu()

    def taken(self) -> Tensor:
        """The same where the weights are: a model may have been moved since."""
        weights = self.parameter.detach()
        return torch.take(weights, self.places.to(weights.device))

    def take(self, now: Tensor) -> None:
        self._values = self._left = now

    def step(self, now: Tensor) -> None:
        """A step has made the values that are there."""
        before = self._values
        self.take(now)
        change = self._size_of(self._values - before, self._unmasked())
        self.usual = max(change, _FADING * self.usual)
        self.due = False

    def was_replaced(
        self, now: Tensor, frozen_values: Mapping[str, Tensor], in_pass: bool
    ) -> bool:
        """Looks, and goes on from what is there. A frozen one may be put back as long
        as it is `in_pass`."""
        before = self._values
        if torch.equal(now, before):
            return False
        change = self._size_of(now - before)
        # Loaded: that is known, and checked later.
        if registry.of(self.parameter).loaded or (
            not in_pass and self._is_nothing_new(now, change)
        ):
            self._values = now
            return False
        if self._is_step(change, before):
            if self.due:
                self.step(now)
            self._values = now
            return False
        if in_pass and self.frozen:
            return False
        self._values, self.due = now, False
        changed = now != before
        most = 2 * storage.count(changed[: self._inside]) > self._inside
        if most and not self.frozen:
            fitting = refit(self.parameter, self.wanted)
            if fitting is not None and fitting is not self.wanted:
                return True
            if refit(self.parameter, self.wanted, loaded=True) is not fitting:
                self.has_zeros = True
        looks = most or bool(changed[self._inside :].any())
        return looks and self._is_far_beyond(frozen_values.get(self.name))

    def _is_nothing_new(self, now: Tensor, change: float) -> bool:
        """It was for a pass only, or is no number and nothing that could be lost."""
        return torch.equal(now, self._left) or not math.isfinite(change)

    def _is_step(self, change: float, before: Tensor) -> bool:
        size = self._size_of(before)
        if is_step(change, self.usual, size if self.due else 0.0):
            return True
        # Until the mask is in force what is outside trains, and is as large as weights
        # are: only how far it moved tells.
        trains = not self.frozen and bool(before[self._inside :].any())
        return trains and change <= _FIRST_STEP * size

    def _is_far_beyond(self, held: Tensor | None) -> bool:
        """Whether more is outside the mask than a step leaves there; `held` are those
        that frozen weights have to be."""
        weights = self.parameter.detach()
        if self.frozen and held is not None:
            weights = weights - held.to(weights.device)
        beyond = (weights != 0) > self.kept.to(weights.device)
        if not bool(beyond.any()):
            return False
        # Also if it is no number.
        return not _size(weights[beyond]) <= _STEPS * self.usual

    def _unmasked(self) -> Tensor:
        """Outside the mask, what is not zero: the rest no step has made so."""
        return self._values[self._inside :] != 0

    def _size_of(self, values: Tensor, counted: Tensor | None = None) -> float:
        """The larger one of inside and outside; `counted` outside, None: all."""
        outside = values[self._inside :]
        outside = outside if counted is None else outside[counted]
        return max(_size(values[: self._inside]), _size(outside))


def is_step(change: float, usual: float, size: float) -> bool:
    """Whether weights of this size may have changed so much by one step, or by noise of
    that order, where steps lately changed `usual` (0: there were none). All are root
    mean squares."""
    return change <= (_STEPS * usual if usual else _FIRST_STEP * size)


class ReplacedWeights:
    """Those of one model. What is in force elsewhere, or masked in the forward pass, is
    not watched: nothing is lost there.

    Not thread-safe: used between steps.
    """

    def __init__(self, table: ParameterTable) -> None:
        self._table = table
        self._watched: dict[int, _Watched] = {}  # By id of the parameter.
        self._told: set[str] = set()
        self._may_have_zeros = False  # Since names were asked for.

    def follow(self, wanted: MaskSet, active: MaskSet | None) -> None:
        """From now on these masks count."""
        before, self._watched = self._watched, {}
        for name, parameter in self._table:
            mine, held = _enforced(wanted, name), _enforced(active, name)
            mask = held if mine is None else mine
            if mask is None:
                continue
            watched = _Watched(
                name,
                parameter,
                wanted=mask,
                kept=mask if held is None or held is mask else mask & held,
                frozen=name in wanted.frozen,
            )
            if id(parameter) in before:
                watched.go_on_from(before[id(parameter)])
            self._watched[id(parameter)] = watched

    def gradient_came(self, parameters: Iterable[Tensor] | None = None) -> None:
        """None: of all parameters."""
        for watched in self._of(parameters):
            watched.due = True

    def stepped(self, parameters: Iterable[Tensor] | None = None) -> None:
        """Weights are as a step has left them. None: of all parameters."""
        for watched, now in _read(self._of(parameters)):
            watched.step(now)

    def taken(self) -> None:
        """Weights are as they are by other means, which needs no notice."""
        for watched, now in _read(list(self._watched.values())):
            watched.take(now)

    def notice(
        self,
        frozen_values: Mapping[str, Tensor],
        parameters: Collection[Tensor] | None = None,
        in_pass: bool = False,
    ) -> tuple[bool, list[str]]:
        """Marks what was replaced since the last look as loaded. Whether something was,
        and names of frozen ones, which are not marked: they fit any mask.

        Args:
          frozen_values: of frozen parameters, by name: what is held outside the masks.
          parameters: None: all.
          in_pass: a backward pass goes on, for which scripts round weights, say.
        """
        found = []
        for watched, now in _read(self._of(parameters)):
            if watched.was_replaced(now, frozen_values, in_pass):
                found.append(watched)
            self._may_have_zeros = self._may_have_zeros or watched.has_zeros
        loaded = [watched.parameter for watched in found if not watched.frozen]
        for parameter in loaded:
            registry.of(parameter).loaded = True
        return bool(loaded), [watched.name for watched in found if watched.frozen]

    def names_with_zeros(self) -> list[str]:
        """Those that were replaced by weights with zeros inside their masks, as if they
        had been pruned more; each once."""
        if not self._may_have_zeros:
            return []
        self._may_have_zeros = False
        found = [w.name for w in self._watched.values() if w.has_zeros]
        found = [name for name in found if name not in self._told]
        self._told.update(found)
        return found

    def _of(self, parameters: Iterable[Tensor] | None) -> list[_Watched]:
        if parameters is None:
            return list(self._watched.values())
        ids = (id(parameter) for parameter in parameters)
        return [self._watched[i] for i in ids if i in self._watched]


def _read(several: Sequence[_Watched]) -> Iterator[tuple[_Watched, Tensor]]:
    """Each with what is there now. An accelerator is waited for once."""
    if not several or several[0].parameter.device.type == "cpu":
        for watched in several:
            yield watched, watched.now()
        return
    parts = [watched.taken().float() for watched in several]
    sizes = [part.numel() for part in parts]
    values = torch.split(torch.cat(parts).cpu(), sizes)
    yield from zip(several, values, strict=True)


def _enforced(masks: MaskSet | None, name: str) -> Tensor | None:
    if masks is None or name in masks.unenforced:
        return None
    return masks.masks.get(name)


def _size(values: Tensor) -> float:
    """Root mean square."""
    if values.is_complex():
        values = torch.view_as_real(values)
    flat = values.reshape(-1).float().cpu().numpy()  # Faster than torch for so few.
    return math.sqrt(float(np.dot(flat, flat)) / flat.size) if flat.size else 0.0
