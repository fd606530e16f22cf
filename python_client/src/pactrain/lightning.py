"""Lightning: a callback that exchanges the gradients through the agent.

trainer = Trainer(strategy="ddp", callbacks=[pactrain.lightning.PacTrainCallback()])
"""

from __future__ import annotations

from typing import Any

import torch

from .adapters import Adapter, require

_Callback: Any = require("lightning", "lightning.pytorch", "pytorch_lightning").Callback


class PacTrainCallback(Adapter, _Callback):  # type: ignore[misc]
    """Attaches the model when fit() starts, and leaves the job when it ends.

    Lightning registers a strategy's communication hook on CUDA only; this one is
    attached on the CPU, too. PacTrain's state is in the trainer's checkpoints, its
    counters go to the trainer's loggers, and `session` is what attach() returned.
    In one process there is attach()'s warning, and nothing is exchanged.
    """

    def __init__(self, **options: Any) -> None:
        """`options` are arguments of attach(), as masks or gse.

        Raises:
          TypeError: attach() has no such argument.
        """
        super().__init__(options)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        # The strategy has wrapped the model, and the checkpoint is loaded.
        self.attach_wrapped(trainer.strategy.model)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, *unused: Any, **unused_by_name: Any
    ) -> None:
        # Lightning copies numbers to the model's device, one by one: a wait for each.
        counters = self.session.stats().items()
        pl_module.log_dict({name: torch.tensor(value) for name, value in counters})

    def on_exception(self, trainer: Any, pl_module: Any, exception: Any) -> None:
        self.session.close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        # The next fit() wraps the model anew.
        self.session.close()
