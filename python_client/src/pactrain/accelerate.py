"""Hugging Face Accelerate: its models exchange their gradients through the agent.

accelerator = Accelerator()
pactrain.accelerate.install(accelerator)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from torch import nn

from .adapters import Adapter, require
from .errors import RefusedError
from .session import Session, sessions

require("accelerate", "accelerate")


def install(accelerator: Any, **options: Any) -> Installation:
    """Attaches the model that `accelerator` is going to prepare.

    All ranks call it. save_state() and load_state() of the accelerator include
    PacTrain's state. In one process prepare() gives attach()'s warning, and nothing is
    exchanged. A second call changes nothing and warns.

    Args:
      accelerator: an accelerate.Accelerator that trains by DistributedDataParallel.
      options: arguments of attach(), as masks or gse.

    Raises:
      RefusedError: the accelerator has prepared a model already, or shards models
        (FSDP, DeepSpeed, ...).
      TypeError: attach() has no such argument.
    """
    installed = getattr(accelerator.prepare_model, "__self__", None)
    if isinstance(installed, Installation):
        warnings.warn(
            "pactrain.accelerate.install: it is installed in this accelerator already; "
            "this call changes nothing.",
            stacklevel=2,
        )
        return installed
    kind = accelerator.distributed_type.name
    if kind != "NO" and not kind.startswith("MULTI_"):
        raise RefusedError(
            f"The accelerator's distributed_type is {kind}; allowed are NO and "
            "MULTI_*, that is DistributedDataParallel.\n"
            "Change it in `accelerate config`."
        )
    if accelerator._models:
        raise RefusedError(
            "The accelerator has prepared a model already.\n"
            "Call install() before prepare(), or pactrain.attach() with that model."
        )
    return Installation(accelerator, options)


class Installation(Adapter):
    """PacTrain in one accelerator; `session` is that of its model."""

    def __init__(self, accelerator: Any, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._prepare_model = accelerator.prepare_model
        # Accelerate has no place for a hook of others, but prepare() looks this up.
        accelerator.prepare_model = self.prepare_model
        accelerator.register_for_checkpointing(self)

    def prepare_model(
        self,
        model: nn.Module,
        device_placement: bool | None = None,
        evaluation_mode: bool = False,
    ) -> nn.Module:
        """The accelerator's, and attaches a model that is going to be trained."""
        prepared: nn.Module = self._prepare_model(
            model, device_placement, evaluation_mode
        )
        if evaluation_mode or not any(p.requires_grad for p in model.parameters()):
            return prepared
        if self._open_session() is not None:
            raise RefusedError(
                "A second model was prepared while the first one is attached, and "
                "install() attaches one.\n"
                "Call pactrain.attach(model) on each after prepare() instead, or close "
                "the session of the first."
            )
        self.attach_wrapped(prepared)
        return prepared

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """At once where the model is attached: all ranks call it."""
        super().load_state_dict(state)
        session = self._open_session()
        if session is not None:
            self.attach_wrapped(session.ddp)

    def _open_session(self) -> Session | None:
        return next((s for s in sessions if s is self.session), None)
