"""Embedded daemons: what attach() starts where PACTRAIN_AGENT names no agent.

The first rank of each node starts an agent, rank 0 also a coordinator, from the
package's own binaries, in a private directory and on free ports: jobs do not meet.
They end when all processes of the job have ended (warden.py), so none goes while a
rank may still wait for its last result.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from torch.distributed.distributed_c10d import Store

from .board import Board, new_board
from .config import DEFAULT_AGENT_SOCKET, AttachConfig
from .errors import AgentUnresponsiveError, PacTrainError
from .places import Node, Place, nodes_of, place_of_this_process
from .warden_process import WardenProcess

logger = logging.getLogger("pactrain")

# By launch and ranks: the agent that was started.
_agents: dict[str, str] = {}


def embedded_agent(store: Store, config: AttachConfig, launch: str) -> str:
    """The address of this job's agent on this node; the first attach starts it.

    The ranks meet in `store`; `launch` names launch and process group.
    Raises: as start_daemons().
    """
    name = f"pactrain/embedded/{launch}"
    if name not in _agents:
        board = new_board(store, name, config.attach_timeout_seconds)
        _agents[name] = start_daemons(board, config.rank, config.world_size, os.environ)
    return _agents[name]


def advice_on_a_dead_agent(environment: Mapping[str, str]) -> str:
    """What to do when an embedded agent is gone, as the last line of an error."""
    folder = environment.get("PACTRAIN_LOG_DIR")
    if folder:
        return (
            "attach() started this agent: look at its log in PACTRAIN_LOG_DIR "
            f"({folder}), and restart the training from its last checkpoint."
        )
    return (
        "attach() started this agent, and its log goes with the job: set "
        "PACTRAIN_LOG_DIR to a folder for logs, and restart the training from its last "
        "checkpoint."
    )


def start_daemons(
    board: Board, rank: int, world_size: int, environment: Mapping[str, str]
) -> str:
    """Starts this job's daemons together with all other ranks.

    Returns the address of this rank's agent. Either it succeeds on all ranks or it
    raises on all of them, and then nothing runs.

    Raises:
      RefusedError: the ranks are on several hosts.
      AgentUnresponsiveError: daemons do not start; says why, with the end of their log.
      CoordinatorUnavailableError: a rank did not come in time.
    """
    board.write(f"place/{rank}", asdict(place_of_this_process(environment)))
    places = [
        Place(**board.read(f"place/{other}", f"rank {other}"))
        for other in range(world_size)
    ]
    nodes = nodes_of(places)
    mine = next(node for node in nodes if rank in node.ranks)
    started: WardenProcess | None = None
    if rank == mine.first:
        started = _start_node(board, mine, places, environment)
    try:
        coordinator = _read_started(board, "coordinator", nodes[0])
        agents = {node: _read_started(board, node.name, node) for node in nodes}
    except BaseException:
        if started is not None:
            started.stop()
        raise
    if started is not None:
        started.leave()
    if rank == 0:
        _log_started(coordinator, list(agents.values()))
    return f"unix:{agents[mine]['socket']}"


def _start_node(
    board: Board, node: Node, places: Sequence[Place], environment: Mapping[str, str]
) -> WardenProcess | None:
    """Starts this node's daemons; what becomes of it is on the board for all."""
    process = None
    notes = [node.name] if node.first else ["coordinator", node.name]
    try:
        process = WardenProcess(places, environment, node.name)
        if node.first == 0:
            coordinator = process.start_coordinator()
            board.write(notes.pop(0), coordinator)
        else:
            coordinator = _read_started(board, "coordinator", Node("node-0", (0,)))
        agent = process.start_agent(node, coordinator["grpc"])
        board.write(notes.pop(0), agent)
    except BaseException as error:
        if process is not None:
            process.stop()
            process = None
        text = str(error)
        if not isinstance(error, PacTrainError):
            text = f"Rank {node.first} ended: {error!r}.\nStart the job again."
        for note in notes:
            board.write(note, {"error": text})
        if not isinstance(error, PacTrainError):
            raise
    return process


def _read_started(board: Board, note: str, node: Node) -> dict[str, str]:
    started = board.read(note, f"the daemons of rank {node.first}")
    assert isinstance(started, dict)
    if "error" in started:
        raise AgentUnresponsiveError(started["error"])
    return started


def _log_started(
    coordinator: Mapping[str, str], agents: Sequence[Mapping[str, str]]
) -> None:
    logger.info(
        "PACTRAIN_AGENT is not set: started a coordinator and %d agent%s for this job "
        "only; metrics at %s",
        len(agents),
        "" if len(agents) == 1 else "s",
        ", ".join(f"http://{d['metrics']}/metrics" for d in (coordinator, *agents)),
    )
    if os.path.exists(DEFAULT_AGENT_SOCKET):  # Also where we may not look.
        logger.warning(
            "an agent of this machine has its socket at %s and is not used: set "
            "PACTRAIN_AGENT=unix:%s for that",
            DEFAULT_AGENT_SOCKET,
            DEFAULT_AGENT_SOCKET,
        )
