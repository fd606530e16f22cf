"""What stands for a session where nothing is exchanged; what all kinds say alike."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any

from torch import Tensor

from .errors import InvalidArgument, PacTrainError
from .summary import path_of

logger = logging.getLogger("pactrain")


def as_number(name: str, value: Any) -> float:
    """Raises InvalidArgument, which names the field."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"{name} is {value!r}; allowed is a number.\nGive loss.item()."
        ) from None


def no_copy() -> PacTrainError:
    return PacTrainError(
        "A session cannot be copied, pickled or saved: it is a connection of this "
        "process.\nSave session.state_dict(), and give it to attach(state=)."
    )


def tracked_error(call: str) -> InvalidArgument:
    return InvalidArgument(
        f"{call} was called while masks are tracked (masks='track'): they are what is "
        "not zero in the weights, and nobody declares them.\n"
        "Set weights to zero instead, by hand or by torch.nn.utils.prune, on all ranks "
        "alike. For masks of pactrain's: session.close(), then prune, then attach "
        "without masks='track'."
    )


class NullSession:
    """What an adapter has before its model is attached: does nothing."""

    decision = None
    device_path = None
    last_error = None
    mode = "off"
    masks_settled = True

    def stats(self) -> dict[str, float]:
        return {}

    def summary(self, to: str | PathLike[str] | None = None) -> str:
        """As a Session's, but nothing was exchanged: there is no course to write."""
        if to is not None:
            logger.warning(
                "summary(to=%r) wrote no file: nothing was exchanged, so there is no "
                "course to draw",
                str(path_of(to)),
            )
        return self._words()

    def _words(self) -> str:
        return "PacTrain: no model is attached."

    def report(self, loss: float | None = None, lr: float | None = None) -> None:
        """Nothing to tell."""

    def set_masks(self, masks: Mapping[str, Tensor], kind: str = "zero") -> None:
        """Nothing to mask."""

    def sync_masks(self, *, failed: bool = False) -> None:
        """There is one rank."""

    def apply_masks(self) -> None:
        """Nothing to mask."""

    def sync_buffers(self) -> None:
        """There is one rank."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to load."""

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        yield

    def close(self) -> None:
        """Nothing to close."""
