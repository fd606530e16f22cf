"""Ranks that come and go: the end of a generation is the beginning of the next one.

The trainer library decides (trainer/core/membership.h): when to attach again and what
to say then, who takes whose state, whose gradients are void. Here is what touches
tensors: the state that this rank gives, and what it takes.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch.optim import Optimizer

from . import _abi, _library
from ._library import NativeSession
from .config import AttachConfig
from .engine import StepEngine
from .errors import PacTrainError, ResyncRequiredError
from .model_state import ModelState
from .optimizer_hook import StepWatcher
from .shared import Blob, Shared
from .types import Digest, DType, HeldState, OnShrink, Op, Part

_now: Callable[[], float] = time.monotonic
_sleep = time.sleep

logger = logging.getLogger("pactrain")


@dataclass(frozen=True)
class WorldNow:
    """Where this rank is in its job, in one generation."""

    rank: int
    world_size: int
    site: str
    generation: int


def may_go_on(
    native: NativeSession, config: AttachConfig, error: PacTrainError
) -> bool:
    """True if a step failed with this error because the generation is over, and there
    may be a next one."""
    if config.on_shrink == OnShrink.ABORT or native.closed:
        return False
    state = (native.is_final, native.may_rejoin)
    return _library.may_go_on(error, *state, agent_returns=not config.embedded)


class Membership(StepWatcher):
    """Keeps one model in its job. `newcomer`: it joins one that runs already.
    `settings` and `piece_bytes` are equal on all ranks.

    Not thread-safe: used by the thread that trains, while no step is open.
    """

    def __init__(
        self,
        native: NativeSession,
        config: AttachConfig,
        local: ModelState,
        engine: StepEngine,
        settings: str,
        piece_bytes: int,
    ) -> None:
        self._native = native
        self._config = config
        self._local = local
        self._engine = engine
        self._settings = settings + local.layout(native.digest_of)
        self._core = _library.MembershipCore(
            agent_returns=not config.embedded,
            piece_bytes=piece_bytes,
            attach_timeout_ms=round(config.attach_timeout_seconds * 1000),
        )
        self.newcomer = native.donor is not None  # Until it has taken the job's state.
        self._given: tuple[Blob, Blob] | None = None  # Kept alive.
        self._pending: tuple[Blob, Blob] | None = None  # To be taken whole.
        self.world = self._world()

    @property
    def shared(self) -> Shared:
        return self._local.shared

    @property
    def behind(self) -> bool:
        """True if before_forward() has something to do."""
        return self.newcomer or self._pending is not None

    def may_go_on(self, error: PacTrainError) -> bool:
        return may_go_on(self._native, self._config, error)

    def start(self) -> None:
        """A newcomer takes the job's state from a rank that has it; together with all.

        Raises:
          RefusedError: this model, or what it shares, is not the job's; or no rank in
            this language has the state of optimizers.
          ResyncRequiredError: nobody is left who has the state.
          PacTrainError: the job cannot be joined.
        """
        if not self.newcomer:
            return
        done = self._settle(_abi.Progress(), None)
        self._local.load(*_state(done), newcomer=True, whole=True)
        self._check(done)
        self._enter(done)
        self.newcomer = False

    def before_forward(self) -> None:
        """A rank that was left behind has come as far as the donor was.

        Raises: as start().
        """
        self.start()
        pending, self._pending = self._pending, None
        if pending is not None:
            self._local.load(*pending, newcomer=False, whole=True)
            self._core.forget()

    def enforce(self, optimizer: Optimizer | None = None) -> None:
        """After a step of any optimizer of this process.

        At a rank that was left behind it is one step too many, until the next forward
        pass: weight decay and momentum move weights also where gradients are zero.
        """
        self.shared.enforce(optimizer)
        if self._pending is None or optimizer not in self.shared.optimizers:
            return
        self._local.load(*self._pending, newcomer=False, whole=False)

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
            self._pending = None
            done = self._settle(self._engine.progress, error)
            if not done.kept:
                # What its script does after this pass is overwritten by what the
                # donor's script has done after it.
                self._pending = _state(done)
                self._local.load(*self._pending, newcomer=False, whole=False)
                self._check(done)
            self._enter(done)
            return bool(done.kept)
        except BaseException as last:
            final = last if isinstance(last, PacTrainError) else error
            final.final = True
            self._engine.end(final)
            self._local.drop_gradients()
            raise

    def _check(self, done: _abi.Todo) -> None:
        """What was taken is what the donor has said that it has."""
        if self._local.digest(self._native.digest_of) != _digest(done.parameters):
            raise ResyncRequiredError(
                f"Rank {self._native.rank} was given other parameters than rank "
                f"{self._native.donor} says that it has.\nStart this rank again."
            )

    def _enter(self, done: _abi.Todo) -> None:
        self._engine.renew(done.progress)
        if self._pending is None:
            self._core.forget()
        self.world = self._world()

    def _settle(
        self, progress: _abi.Progress, error: PacTrainError | None
    ) -> _abi.Todo:
        """Does what the library asks for until all ranks of a generation have one
        state. `error` has ended the last one; None: a newcomer's first."""
        mine = _abi.Mine(
            newcomer=self.newcomer,
            progress=progress,
            parameters=self._local.digest(self._native.digest_of),
            settings=self._settings.encode(),
            shared=self.shared.text.encode(),
            unshared_optimizers=len(self.shared.unnamed),
        )
        todo = self._core.begin(mine, self._result(error), _now())
        while todo.action != _abi.DONE:
            self._log(todo)
            if todo.action == _abi.FAIL:
                if todo.leaves:
                    self._native.detach()  # The others do not wait for this rank.
                raise _library.error_of(todo.code, todo.text) from error
            failed = None
            try:
                self._do(todo)
            except PacTrainError as caught:
                failed = caught
                if todo.action != _abi.ATTACH:
                    caught.may_rejoin = self._native.may_rejoin
            todo = self._core.next(self._result(failed), _now())
        self._log(todo)
        self._given = None
        return todo

    def _do(self, todo: _abi.Todo) -> None:
        native = self._native
        if todo.action == _abi.ATTACH:
            self._given = None
            held = HeldState(
                _digest(todo.lineage),
                todo.committed,
                _digest(todo.parameters),
                todo.step,
            )
            native.reattach(held, todo.ms / 1000)
        elif todo.action == _abi.SLEEP:
            _sleep(todo.ms / 1000)
        elif todo.action == _abi.GIVE:
            self._given = self._local.encode()
        else:
            part, layout = Part(todo.in_, todo.words), _digest(todo.layout)
            native.submit(
                0, [part], todo.out, DType.FLOAT32, Op.XOR, layout, True, None
            )
            native.wait()

    def _result(self, error: PacTrainError | None) -> _abi.Result:
        """What came of the last action, and where this rank is now."""
        native, donor = self._native, self._native.donor
        result = _abi.Result(
            generation=native.generation,
            resume_step=native.resume_step,
            lineage=native.lineage,
            rank=native.rank,
            world_size=native.world_size,
            donor=_abi.NO_RANK if donor is None else donor,
            needs_state=native.needs_state,
        )
        if error is not None:
            result.code = _library.code_of(error)
            result.final = int(native.is_final)
            result.may_rejoin = int(error.may_rejoin)
            result.text = str(error).encode()
        if self._given is not None:
            common, own = self._given
            result.common, result.common_bytes = common.ctypes.data, common.size
            result.own, result.own_bytes = own.ctypes.data, own.size
        return result

    def _world(self) -> WorldNow:
        native = self._native
        return WorldNow(native.rank, native.world_size, native.site, native.generation)

    def _log(self, todo: _abi.Todo) -> None:
        if todo.tell is not None:
            loud = todo.warn or (self._native.rank == 0 and not self.newcomer)
            level = logging.WARNING if loud else logging.INFO
            logger.log(level, "%s", todo.tell.decode())


def _digest(digest: _abi.Digest) -> Digest:
    return Digest(digest.hi, digest.lo)


def _state(done: _abi.Todo) -> tuple[Blob, Blob]:
    """What there is to take; it lies in the library until that is told to forget it."""
    places = ((done.common, done.common_bytes), (done.own, done.own_bytes))
    common, own = (
        np.ctypeslib.as_array(ctypes.cast(at, ctypes.POINTER(ctypes.c_uint8)), (size,))
        for at, size in places
    )
    return common, own
