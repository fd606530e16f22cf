"""Hugging Face Trainer: its model exchanges its gradients through the agent.

trainer = Trainer(model, arguments, train_dataset=data)
pactrain.transformers.install(trainer)
trainer.train()
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .adapters import Adapter, require

_transformers: Any = require("transformers", "transformers")

_STATE_FILE = "pactrain.pt"


def install(trainer: Any, **options: Any) -> Installation:
    """Attaches the model when train() starts.

    All ranks call it. The trainer's checkpoints include PacTrain's state, and its
    counters go where the trainer reports to. In one process there is attach()'s
    warning, and nothing is exchanged. A second call changes nothing and warns.

    Args:
      trainer: a transformers.Trainer that trains by DistributedDataParallel.
      options: arguments of attach(), as masks or gse.

    Raises:
      TypeError: attach() has no such argument.
    """
    installed = getattr(trainer.train, "__self__", None)
    if isinstance(installed, Installation):
        warnings.warn(
            "pactrain.transformers.install: it is installed in this trainer already; "
            "this call changes nothing.",
            stacklevel=2,
        )
        return installed
    return Installation(trainer, options)


class Installation(Adapter, _transformers.TrainerCallback):  # type: ignore[misc]
    """PacTrain in one trainer; `session` is that of its model."""

    def __init__(self, trainer: Any, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._trainer = trainer
        self._train = trainer.train
        self._resume_from: str | bool | None = None
        # No event tells the checkpoint that training resumes from.
        trainer.train = self.train
        # The first callback, so that all reporting ones see what on_log() adds.
        trainer.callback_handler.callbacks.insert(0, self)

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *rest: Any, **named: Any
    ) -> Any:
        """The trainer's."""
        self._resume_from = resume_from_checkpoint
        return self._train(resume_from_checkpoint, *rest, **named)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # The trainer has wrapped the model and loaded the checkpoint.
        folder = self._resume_from
        if folder is True:
            folder = _transformers.trainer_utils.get_last_checkpoint(args.output_dir)
        if folder and (file := Path(folder, _STATE_FILE)).exists():
            self.load_state_dict(torch.load(file, weights_only=True))
        self.attach_wrapped(self._trainer.model_wrapped)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        prefix = _transformers.trainer_utils.PREFIX_CHECKPOINT_DIR
        folder = Path(args.output_dir, f"{prefix}-{state.global_step}")
        if args.should_save and folder.is_dir():  # Not so in a hyperparameter search.
            torch.save(self.state_dict(), folder / _STATE_FILE)

    def on_log(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        if args.report_to:  # Otherwise it would only fill the terminal.
            named["logs"].update(self.session.stats())
