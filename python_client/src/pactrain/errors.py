"""What can go wrong, as types. The last line of every message says what to do."""

from __future__ import annotations

CLOSED = (
    "The session of this model is closed.\n"
    "Attach the model again; wrap it anew if it is in pactrain's own "
    "DistributedDataParallel."
)


class PacTrainError(RuntimeError):
    """Base of all errors of this package.

    After one that is raised by a step, the gradients of all attached models are
    cleared and no rank has applied a part of the step.

    Attributes:
      final: the session is over; later steps fail with the same error.
      may_rejoin: the ranks have changed or the agent is gone, so that attaching again
        may help.
    """

    final = False
    may_rejoin = False


class StepNotAppliedError(PacTrainError):
    """No rank applied the step: the batch can be done again."""


class ResyncRequiredError(PacTrainError):
    """The outcome of a step is unknown here, or ranks differ: load a checkpoint."""


class AgentUnresponsiveError(PacTrainError):
    """The agent on this node is not there, or went away."""


class CoordinatorUnavailableError(PacTrainError):
    """The job could not be formed in time; the text names what was waited for."""


class RefusedError(PacTrainError):
    """This model, job or setting cannot be taken as it is."""


class ReplacedError(RefusedError):
    """The job has begun anew without this rank. Its state is untouched, and of no use
    there any more: the text says who began it and when."""


class InvalidArgument(PacTrainError, ValueError):
    """An argument or variable has a value that is not allowed."""
