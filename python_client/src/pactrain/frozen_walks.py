"""Frozen weights that a script changes by hand after each step: each time they count as
a copy, which is what stays from then on, so that they walk."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from torch import Tensor

from .parameters import ParameterTable, some_of

_SOON = 16  # Gradients, and steps or fewer.
_OFTEN = 3

logger = logging.getLogger("pactrain")


class FrozenWalks:
    """Not thread-safe."""

    def __init__(self, table: ParameterTable) -> None:
        self._table = table
        # By name how many gradients have come since they were held where they are.
        self._held: dict[str, int] = {}
        self._walked: dict[str, int] = {}  # How often soon after the time before.
        self._back: Sequence[str] = ()  # Put back by apply_masks(), not told yet.
        self._told = False

    def go_on_from(self, before: FrozenWalks) -> None:
        self._held, self._walked = before._held, before._walked
        self._back, self._told = before._back, before._told

    def step(self, parameters: Iterable[Tensor] | None = None) -> None:
        """Gradients came. None: to all."""
        if not self._held:
            return
        names = list(self._held)
        if parameters is not None:
            places = [self._table.index_of(parameter) for parameter in parameters]
            names = [self._table.names[i] for i in places]
        for name in names:
            if name in self._held:
                self._held[name] += 1
                if self._held[name] > _SOON:
                    del self._held[name]

    def held_anew(self, names: Sequence[str]) -> None:
        """They were changed by hand, and stay where they are now."""
        for name in names:
            if self._held.get(name):
                self._walked[name] = self._walked.get(name, 1) + 1
        self._held.update(dict.fromkeys(names, 0))

    def put_back(self, names: Sequence[str]) -> None:
        """They were changed by hand, and the script asks for masks."""
        self._back = self._back or names

    def warn(self, rank: int) -> None:
        """Once, of one or the other; rank 0 does."""
        if self._told or not (self._walked or self._back):
            return  # Asked for each gradient, in one process.
        lines = self.shortfalls()
        if self._back:
            lines.append(
                f"{some_of(self._back)}: frozen weights were changed by hand, and "
                "apply_masks() has put them back where they were. If those of a "
                "checkpoint are to stay, load it with load_state_dict()"
            )
        if lines:
            self._told = True
            if rank == 0:
                logger.warning("%s", lines[0])

    def shortfalls(self) -> list[str]:
        """What is to be said of it at the end."""
        walked = {n: count for n, count in self._walked.items() if count >= _OFTEN}
        if not walked:
            return []
        return [
            f"frozen weights of {some_of(list(walked))} were changed by hand "
            f"{max(walked.values()):,} times, soon one after the other: each time they "
            "count as copied there, and stay there, so that they are not where they "
            "were at first. If that is not what the script means, call "
            "session.apply_masks() after each such change: it puts them back"
        ]
