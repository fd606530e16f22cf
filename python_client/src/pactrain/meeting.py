"""Where the ranks of one launch meet: for what each does alone, and what went wrong."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store
from torch.nn.parallel import DistributedDataParallel

from . import roll_call
from ._library import NativeSession, digest_of
from .board import Board, new_board
from .config import AttachConfig, attach_timeout_from
from .errors import CoordinatorUnavailableError, PacTrainError
from .roll_call import Answer
from .types import AttachOptions, Native

_MOST_TEXT = 2000  # Characters of an error that others are told,
_MOST_FAILURE = 200  # and in the place of a model.
_MOST_WAIT_TO_TELL_MS = 30_000
_MOST_WAIT_TO_BEGIN = 30.0  # Seconds: all ranks have met just before.

logger = logging.getLogger("pactrain")


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
            roll_call.tell_failure(board, self.rank, _text_of(error))
            raise
        self._meet(board, mine())

    @contextlib.contextmanager
    def begin(self, native: Native) -> Iterator[None]:
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
                roll_call.raise_told(board, error)
            else:
                roll_call.tell_failure(board, self.rank, _text_of(error))
            raise
        # Of a rank that was lost meanwhile the agents tell in the first step.
        with contextlib.suppress(CoordinatorUnavailableError):
            self._meet(board.until(_MOST_WAIT_TO_BEGIN), Answer("", ""))

    def _meet(self, board: Board, mine: Answer) -> None:
        roll_call.meet(board, self.rank, self.world_size, mine, logger.warning)


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
