"""PacTrain: data-parallel training over slow links with pruned, agreed gradients.

pactrain.prune(model, 0.7)
ddp = torch.nn.parallel.DistributedDataParallel(model)
session = pactrain.attach(ddp)

Or with one launch per site and no process group at all:

world = pactrain.init()
ddp = pactrain.DistributedDataParallel(model)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__
from .attaching import attach
from .distributed import DistributedDataParallel
from .errors import (
    AgentUnresponsiveError,
    CoordinatorUnavailableError,
    InvalidArgument,
    PacTrainError,
    RefusedError,
    ReplacedError,
    ResyncRequiredError,
    StepNotAppliedError,
)
from .null_session import NullSession
from .pruning import apply_masks, prune
from .pruning_schedule import PruningSchedule
from .reporting import report
from .session import Session
from .sparsity_report import SparsityReport, sparsity
from .types import Codec, Decision, Mode
from .world import Site, World, init

__all__ = [
    "AgentUnresponsiveError",
    "Codec",
    "CoordinatorUnavailableError",
    "Decision",
    "DistributedDataParallel",
    "InvalidArgument",
    "Mode",
    "NullSession",
    "PacTrainError",
    "PruningSchedule",
    "RefusedError",
    "ReplacedError",
    "ResyncRequiredError",
    "Session",
    "Site",
    "SparsityReport",
    "StepNotAppliedError",
    "World",
    "__version__",
    "apply_masks",
    "attach",
    "init",
    "prune",
    "report",
    "sparsity",
]

# Each needs its framework, so it is imported when it is used.
if TYPE_CHECKING:
    from . import accelerate as accelerate
    from . import lightning as lightning
    from . import transformers as transformers
else:

    def __getattr__(name: str) -> Any:
        if name in ("accelerate", "lightning", "transformers"):
            return importlib.import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
