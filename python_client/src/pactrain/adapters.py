"""What the adapters of training frameworks have in common."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import nn

from .attaching import attach
from .checks import unwrap
from .errors import RefusedError
from .null_session import NullSession
from .session import Session


def require(extra: str, *packages: str) -> Any:
    """The first package that is there; one that the script uses already comes first.

    Raises:
      ImportError: none is installed; names the extra that brings it.
    """
    for name in sorted(packages, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in (name, name.partition(".")[0]):
                raise  # Something else is missing.
    raise ImportError(
        f"pactrain.{extra} needs {' or '.join(packages)}, which is not installed.\n"
        f'Run: pip install "pactrain[{extra}]"'
    )


class Adapter:
    """The one model that a framework trains: attached when it has been wrapped.

    Attributes:
      session: what attach() returned; does nothing before.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        """`options` are arguments of attach().

        Raises:
          TypeError: attach() has no such argument.
        """
        inspect.signature(attach).bind(None, **options)
        self._options = dict(options)
        self._state: Mapping[str, Any] | None = self._options.pop("state", None)
        self.session: Session | NullSession = NullSession()

    def attach_wrapped(self, model: nn.Module) -> None:
        """Attaches `model` with the state that was loaded; of one that is attached
        already only the masks of that state are taken. All ranks call it.

        Raises: what attach() raises; RefusedError also if the framework spreads the
          model over processes without DistributedDataParallel.
        """
        ddp = unwrap(model)
        world_size = dist.get_world_size() if dist.is_initialized() else 1
        if ddp is None and world_size > 1:
            raise RefusedError(
                f"The framework trains a {type(model).__name__} in {world_size} "
                "processes; allowed is a DistributedDataParallel.\n"
                "Choose its DDP strategy."
            )
        if isinstance(self.session, Session) and self.session.ddp is ddp:
            if self._state:
                self.session.load_state_dict(self._state)
        else:
            self.session.close()
            state = self._state or None  # One process saves an empty one.
            self.session = attach(model, state=state, **self._options)
        self._state = None

    def state_dict(self) -> dict[str, Any]:
        """For the framework's checkpoint; as the session's."""
        return dict(self._state) if self._state else self.session.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """For the next attach_wrapped()."""
        self._state = state
