"""Ranks that come and go: the end of a generation is the beginning of the next one.

When a generation ends because its members changed, every rank that lives attaches
again and says how far it has come. The coordinator forms the next generation and names
a donor, a rank that has come farthest; ranks that have not, and newcomers, take its
state. Then training goes on with the step that failed.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from .config import AttachConfig
from .engine import StepEngine
from .errors import (
    AgentUnresponsiveError,
    PacTrainError,
    ResyncRequiredError,
    StepNotAppliedError,
)
from .model_state import ModelState
from .shared import Shared
from .state_transfer import StateTransfer, Taken
from .types import NO_LINEAGE, Lineage, Native, OnShrink, Progress

_RETRY_SECONDS = 0.2
# A step ends with one of these when its generation does.
_ENDS = (StepNotAppliedError, ResyncRequiredError, AgentUnresponsiveError)

logger = logging.getLogger("pactrain")


@dataclass(frozen=True)
class WorldNow:
    """Where this rank is in its job, in one generation."""

    rank: int
    world_size: int
    site: str
    generation: int


def may_go_on(native: Native, config: AttachConfig, error: PacTrainError) -> bool:
    """True if a step failed with this error because the generation is over, and there
    may be a next one."""
    return (
        config.on_shrink != OnShrink.ABORT
        and isinstance(error, _ENDS)
        and not (config.embedded and isinstance(error, AgentUnresponsiveError))
        and not native.closed
        and native.is_final
        and native.may_rejoin
    )


class Membership:
    """Keeps one model in its job. `newcomer`: it joins one that runs already.

    Not thread-safe: used by the thread that trains, while no step is open.
    """

    def __init__(
        self,
        native: Native,
        config: AttachConfig,
        local: ModelState,
        transfer: StateTransfer,
        engine: StepEngine,
    ) -> None:
        self._native = native
        self._config = config
        self._local = local
        self._transfer = transfer
        self._engine = engine
        self._newcomer = native.donor is not None
        self._pending: dict[str, Any] | None = None  # To be taken whole.
        self._failed = (-1, 0.0)  # After how many committed steps, and when.
        self.world = self._world()

    @property
    def shared(self) -> Shared:
        return self._local.shared

    @property
    def newcomer(self) -> bool:
        """True until it has taken the job's state."""
        return self._newcomer

    @property
    def behind(self) -> bool:
        """True if before_forward() has something to do."""
        return self._newcomer or self._pending is not None

    def may_go_on(self, error: PacTrainError) -> bool:
        return may_go_on(self._native, self._config, error)

    def start(self) -> None:
        """A newcomer takes the job's state from a rank that has it; together with all.

        Raises:
          RefusedError: this model, or what it shares, is not the job's.
          ResyncRequiredError: nobody is left who has the state.
          PacTrainError: the job cannot be joined.
        """
        if not self._newcomer:
            return
        taken = self._settle(Progress(0, 0, 0), None)
        assert taken.state is not None
        self._local.load(taken.state, newcomer=True, whole=True)
        self._engine.renew(taken.progress)
        self._newcomer = False
        self.world = self._world()
        logger.info(
            "rank %d took the state of rank %d after %d steps",
            *(self.world.rank, self._native.donor, taken.progress.committed),
        )

    def before_forward(self) -> None:
        """A rank that was left behind has come as far as the donor was.

        Raises: as start().
        """
        self.start()
        pending, self._pending = self._pending, None
        if pending is not None:
            self._local.load(pending, newcomer=False, whole=True)

    def enforce(self, optimizer: Optimizer | None = None) -> None:
        """After a step of any optimizer of this process.

        At a rank that was left behind it is one step too many, until the next forward
        pass: weight decay and momentum move weights also where gradients are zero.
        """
        self.shared.enforce(optimizer)
        if self._pending is None or optimizer not in self.shared.optimizers:
            return
        self._local.load(self._pending, newcomer=False, whole=False)

    def go_on(self, error: PacTrainError) -> bool:
        """Enters the next generation after a step failed with `error`.

        True: this rank is as far as the others, and its gradients are still to be
        submitted. False: the others have made the step with them or without, and this
        rank has their state. Its gradients count for nothing: they are to be zeros, and
        what the script's optimizers still do with them is undone (enforce()).

        REQUIRES: may_go_on(error).
        Raises: the typed error that ends the session.
        """
        try:
            return self._go_on(error)
        except BaseException as last:
            final = last if isinstance(last, PacTrainError) else error
            final.final = True
            self._engine.end(final)
            self._local.drop_gradients()
            raise

    def _go_on(self, error: PacTrainError) -> bool:
        before, mine = self.world, self._engine.progress
        parameters = self._local.digest(self._native.digest_of)
        logger.log(
            logging.WARNING if before.rank == 0 else logging.INFO,
            "generation %d ended, attaching again: %s",
            before.generation,
            str(error).splitlines()[0],
        )
        taken = self._settle(mine, self._report(mine))
        kept = taken.state is None or (
            (taken.progress.committed, taken.parameters) == (mine.committed, parameters)
        )
        if taken.state is not None:
            self._local.load(taken.state, newcomer=False, whole=False)
        if not kept:
            # What its script does after this pass is overwritten by what the donor's
            # script has done after it.
            self._pending = taken.state
        self._engine.renew(taken.progress)
        self.world = self._world()
        self._log_generation(before, taken, kept)
        return kept

    def _report(self, mine: Progress) -> tuple[Lineage, int]:
        lineage = Lineage(self._native.lineage.id, mine.committed)
        return lineage, self._native.resume_step

    def _settle(self, mine: Progress, report: tuple[Lineage, int] | None) -> Taken:
        """Attaches again, until all ranks of a generation have one state.

        `report` is the state that this rank has, and the step after its last committed
        one; None: it is attached.
        """
        end = self._end()
        while True:
            if report is not None:
                self._reattach(report, end)
            if self._native.donor is None:
                raise ResyncRequiredError(
                    f"Generation {self._native.generation} begins anew: no rank is "
                    "left that has the job's state.\n"
                    "Load the last checkpoint at all ranks and start them again."
                )
            needs = self._native.needs_state
            entered, began = self._native.resume_step, time.monotonic()
            try:
                return self._transfer.run(mine, self._newcomer)
            except PacTrainError as error:
                if not self.may_go_on(error):
                    raise
                logger.info("generation %d ended: %s", self._native.generation, error)
                if self._native.resume_step != entered:
                    # All have met: waiting for a slow rank is no attaching.
                    end += time.monotonic() - began
                elif time.monotonic() > end:
                    raise self._given_up(error) from error
            report = (NO_LINEAGE, 0) if needs else self._report(mine)

    def _end(self) -> float:
        """When to give up: the time for attaching, without a committed step."""
        committed, since = self._failed
        if committed != self._engine.committed:
            since = time.monotonic()
            self._failed = (self._engine.committed, since)
        return since + self._config.attach_timeout_seconds

    def _given_up(self, error: PacTrainError) -> PacTrainError:
        return type(error)(
            f"{str(error).splitlines()[0]}\n"
            f"No step was committed for {self._config.attach_timeout_seconds:g} s "
            "(PACTRAIN_ATTACH_TIMEOUT), so this rank gives up. Look with `pactrain "
            "doctor` on each node whether the agents reach each other."
        )

    def _reattach(self, report: tuple[Lineage, int], end: float) -> None:
        told = False
        while True:
            left = max(1.0, end - time.monotonic())
            try:
                self._native.reattach(*report, left)
                return
            except PacTrainError as error:
                gone = isinstance(error, AgentUnresponsiveError)
                hopeless = not error.may_rejoin or (gone and self._config.embedded)
                if hopeless or time.monotonic() > end:
                    raise
                if gone and not told:
                    told = True
                    logger.warning(
                        "waiting up to %.0f s for the agent: %s",
                        left,
                        str(error).splitlines()[0],
                    )
            time.sleep(_RETRY_SECONDS)

    def _world(self) -> WorldNow:
        native = self._native
        return WorldNow(native.rank, native.world_size, native.site, native.generation)

    def _log_generation(self, before: WorldNow, taken: Taken, kept: bool) -> None:
        now = self.world
        size = f"{now.world_size} ranks"
        if now.world_size < before.world_size:
            size = f"{now.world_size} of {before.world_size} ranks"
        elif now.world_size > before.world_size:
            size = f"{now.world_size} ranks instead of {before.world_size}"
        level = logging.WARNING if now.rank == 0 else logging.INFO
        logger.log(
            level,
            "generation %d: %s go on after %d steps",
            *(now.generation, size, taken.progress.committed),
        )
        if now.rank != before.rank:
            logger.info("rank %d -> %d of %d", before.rank, now.rank, now.world_size)
        if not kept:
            logger.info("this rank took the state of rank %s", self._native.donor)
