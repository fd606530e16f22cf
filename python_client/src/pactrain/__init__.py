"""PacTrain: data-parallel training over slow links with pruned, agreed gradients.

pactrain.prune(model, 0.7)
ddp = torch.nn.parallel.DistributedDataParallel(model)
session = pactrain.attach(ddp)
"""

from __future__ import annotations

from ._version import __version__
from .attaching import attach
from .errors import (
    AgentUnresponsiveError,
    CoordinatorUnavailableError,
    InvalidArgument,
    PacTrainError,
    RefusedError,
    ResyncRequiredError,
    StepNotAppliedError,
)
from .pruning import apply_masks, prune
from .pruning_schedule import PruningSchedule
from .session import NullSession, Session
from .sparsity_report import SparsityReport, sparsity
from .types import Codec, Decision, Mode

__all__ = [
    "AgentUnresponsiveError",
    "Codec",
    "CoordinatorUnavailableError",
    "Decision",
    "InvalidArgument",
    "Mode",
    "NullSession",
    "PacTrainError",
    "PruningSchedule",
    "RefusedError",
    "ResyncRequiredError",
    "Session",
    "SparsityReport",
    "StepNotAppliedError",
    "__version__",
    "apply_masks",
    "attach",
    "prune",
    "sparsity",
]
