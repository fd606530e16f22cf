"""Where the ranks of one launch meet: for what each does alone, and what went wrong."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store
from torch.nn.parallel import DistributedDataParallel

from ._library import NativeSession, digest_of
from .board import Board, new_board
from .config import AttachConfig, attach_timeout_from
from .errors import CoordinatorUnavailableError, PacTrainError, RefusedError
from .types import AttachOptions

_MOST_TEXT = 2000  # Characters of an error that others are told,
_MOST_FAILURE = 200  # and in the place of a model.
_MOST_WAIT_TO_TELL_MS = 30_000
_MOST_WAIT_TO_BEGIN = 30.0  # Seconds: all ranks have met just before.
_ERRORS = {e.__name__: e for e in (RefusedError, CoordinatorUnavailableError)}

logger = logging.getLogger("pactrain")


@dataclass(frozen=True)
class Answer:
    """What one rank says before any of them asks an agent or starts one.

    Ranks that name different jobs, or of which only some have an agent, would wait for
    each other at different places until the time for attach() is over.
    """

    job: str
    agent: str  # Empty: attach() is to start one.
    failure: str = ""  # Why this rank cannot go on.


@dataclass(frozen=True)
class Meeting:
    """`name` is that of ranks which call everything here equally often."""

    store: Store
    name: str
    rank: int
    world_size: int

    @staticmethod
    def of(ddp: DistributedDataParallel) -> Meeting:
        group = ddp.process_group
        return Meeting(
            dist.distributed_c10d._get_default_store(),
            "-".join(map(str, dist.get_process_group_ranks(group))),
            dist.get_rank(group),
            dist.get_world_size(group),
        )

    def board(self, title: str, timeout_seconds: float) -> Board:
        """One that nobody has written on yet."""
        return new_board(self.store, f"pactrain/{title}/{self.name}", timeout_seconds)

    @contextlib.contextmanager
    def prepare(self, mine: Callable[[], Answer]) -> Iterator[None]:
        """Around what each rank does alone. When it ends all ranks have done it, and
        `mine` fits together, or all raise.

        Raises:
          RefusedError: another rank failed; names it and says why. Or ranks differ;
            names both.
          CoordinatorUnavailableError: a rank did not come in time.
        """
        # The block may find PACTRAIN_ATTACH_TIMEOUT to be the mistake.
        board = self.board("prepare", 1.0)
        try:
            yield
            board = board.until(attach_timeout_from(os.environ))
        except Exception as error:
            tell_failure(board, self.rank, _text_of(error))
            raise
        self._meet(board, mine())

    @contextlib.contextmanager
    def begin(self, native: NativeSession) -> Iterator[None]:
        """Around what follows the attach to the agents: exchanges, and what each rank
        does alone. One that fails there ends the others with its reason, also where
        they wait for it in an exchange; `native` is to be closed after that.

        Raises:
          RefusedError: another rank failed; names it and says why.
        """
        board = self.board("begin", _MOST_WAIT_TO_BEGIN)
        try:
            yield
        except Exception as error:
            if native.is_final:  # The exchange is over, maybe since a rank has left it.
                raise_told(board, error)
            else:
                tell_failure(board, self.rank, _text_of(error))
            raise
        # Of a rank that was lost meanwhile the agents tell in the first step.
        with contextlib.suppress(CoordinatorUnavailableError):
            self._meet(board.until(_MOST_WAIT_TO_BEGIN), Answer("", ""))

    def _meet(self, board: Board, mine: Answer) -> None:
        call_roll(board, self.rank, self.world_size, mine, logger.warning)


def call_roll(
    board: Board,
    rank: int,
    world_size: int,
    mine: Answer,
    on_waiting: Callable[[str], None],
) -> None:
    """Returns at all ranks, when all are there and fit together, or raises at all.

    `on_waiting` is told at rank 0 who is missing, if that takes long.

    Raises:
      RefusedError: ranks differ; names both.
      CoordinatorUnavailableError: a rank did not come in time.
    """
    board.write(str(rank), asdict(mine))
    if rank == 0:
        error = _find_error(board, world_size, on_waiting)
        board.write("verdict", error and [type(error).__name__, str(error)])
    _raise(board.read("verdict", "rank 0"))


def raise_told(board: Board, cause: Exception) -> None:
    """Raises what a rank that goes no further has told; returns if none has."""
    try:
        _raise(board.look("verdict"))
    except PacTrainError as told:
        raise told from cause


def _raise(verdict: list[str] | None) -> None:
    if verdict is not None:
        name, text = verdict
        raise _ERRORS[name](text)


def tell_failure(board: Board, rank: int, failure: str) -> None:
    """By a rank that goes no further, instead of call_roll(): the others need not
    wait."""
    answer = Answer("", "", failure)
    board.write(str(rank), asdict(answer))
    error = _failed(rank, answer)
    board.write("verdict", [type(error).__name__, str(error)])


def _failed(rank: int, answer: Answer) -> RefusedError:
    return RefusedError(
        f"Rank {rank} could not attach its model, so no rank can. It says: "
        f"{answer.failure}\nMend that at rank {rank}, and start all ranks again."
    )


def _find_error(
    board: Board, world_size: int, on_waiting: Callable[[str], None]
) -> PacTrainError | None:
    try:
        notes = board.read_of_all(world_size, on_waiting)
        check_answers([Answer(**note) for note in notes])
    except (RefusedError, CoordinatorUnavailableError) as error:
        return error
    return None


def check_answers(answers: Sequence[Answer]) -> None:
    """Raises RefusedError if ranks cannot train together; `answers` is by rank."""
    first = answers[0]
    for rank, answer in enumerate(answers):
        if answer.failure:
            raise _failed(rank, answer)
    for rank, answer in enumerate(answers):
        if bool(answer.agent) != bool(first.agent):
            raise RefusedError(
                "PACTRAIN_AGENT is not set on all ranks: rank 0 has "
                f"{first.agent or 'none'}, rank {rank} has {answer.agent or 'none'}.\n"
                "Set it on all ranks, or on none to have attach() start agents."
            )
        if answer.job != first.job:
            raise RefusedError(
                f"The job's name differs: rank 0 has {first.job!r}, rank {rank} has "
                f"{answer.job!r}.\nSet PACTRAIN_JOB_ID alike on all ranks; where it is "
                "not set, variables of the launcher name the job."
            )


@contextlib.contextmanager
def telling_agents(config: AttachConfig, model_index: int) -> Iterator[None]:
    """Around what each rank does alone, where ranks meet through agents only.

    One that fails attaches all the same, with its error in the place of a model, which
    is refused at all ranks in words that have both.

    Raises: the block's own error.
    """
    try:
        yield
    except Exception as error:
        if config.agent and config.world_size > 1:
            reason = str(error).partition("\n")[0]
            _attach_to_tell(
                config, model_index, f"no model, but {type(error).__name__}: {reason}"
            )
        raise


def _attach_to_tell(config: AttachConfig, model_index: int, failure: str) -> None:
    options = AttachOptions(
        agent=config.agent,
        job=config.job,
        site=config.site,
        launch=config.launch,
        rank=config.rank,
        world_size=config.world_size,
        model=model_index,
        model_digest=digest_of(failure.encode()),
        model_summary=failure.encode("ascii", "replace").decode()[:_MOST_FAILURE],
        elements=1,
        slot_bytes=64,
        resume_step=0,
        attach_timeout_ms=_MOST_WAIT_TO_TELL_MS,
        gse=config.gse,
        on_shrink=config.on_shrink,
    )
    with contextlib.suppress(PacTrainError):
        NativeSession.attach(options, lambda text: None, "").close()


def _text_of(error: Exception) -> str:
    text = str(error)
    if len(text) > _MOST_TEXT:
        text = text[:_MOST_TEXT] + " ..."
    return f"{type(error).__name__}: {text}"
