"""What ranks compare before any of them asks an agent or starts one.

Ranks that name different jobs, or of which only some have an agent, would wait for each
other at different places until the time for attach() is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from .board import Board
from .errors import CoordinatorUnavailableError, PacTrainError, RefusedError

_ERRORS = {e.__name__: e for e in (RefusedError, CoordinatorUnavailableError)}


@dataclass(frozen=True)
class Answer:
    """What one rank says."""

    job: str
    agent: str  # Empty: attach() is to start one.
    failure: str = ""  # Why this rank cannot go on.


def meet(
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
    """Instead of meet(), by a rank that goes no further: the others need not wait."""
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
