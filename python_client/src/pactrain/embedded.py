"""Embedded daemons: what attach() starts where PACTRAIN_AGENT names no agent.

The first rank of each node starts an agent, rank 0 also a coordinator, from the
package's own binaries, in a private directory and on free ports: jobs do not meet.
They end when all processes of the job have ended (warden.py), so none goes while a
rank may still wait for its last result. They talk by TLS with a key of this job
(job_key.py): on one host over loopback, where other users are, too.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch.distributed.distributed_c10d import Store

from . import job_key
from ._abi import ADMIN
from .board import Board, new_board
from .config import DEFAULT_AGENT_SOCKET, AttachConfig
from .errors import AgentUnresponsiveError, InvalidArgument, PacTrainError
from .host_address import LOOPBACK, address_towards, own_address
from .places import Node, Place, nodes_of, place_of_this_process
from .saying import say
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
      InvalidArgument: a variable has a value that is not allowed.
      AgentUnresponsiveError: daemons do not start; says why, with the end of their log.
        Or the address of a host cannot be found.
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
        started = _start_node(board, mine, nodes, places, environment)
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
        assert started is not None
        board.remove("key")  # All that need it have it.
        _log_started(nodes, coordinator, list(agents.values()), started.key_file)
    return f"unix:{agents[mine]['socket']}"


def _start_node(
    board: Board,
    mine: Node,
    nodes: Sequence[Node],
    places: Sequence[Place],
    environment: Mapping[str, str],
) -> WardenProcess | None:
    """Starts this node's daemons; what becomes of it is on the board for all."""
    process = None
    unwritten = ["key", "coordinator"] if mine.first == 0 else []
    unwritten += [f"address/{mine.name}", mine.name]

    def write(note: str, text: Mapping[str, Any]) -> None:
        unwritten.remove(note)
        board.write(note, text)

    try:
        own = own_address(environment) if _hosts(nodes) > 1 else ""
        write(f"address/{mine.name}", {"address": own})
        address = _address(board, mine, nodes, own)
        trainers = [place for place in places if place.host == mine.host]
        if mine.first == 0:
            key = job_key.own_key(environment)
        else:
            told = _read_started(board, "key", nodes[0])
            key = job_key.told_key(told, mine.host, environment)
        process = WardenProcess(trainers, environment, mine.name, address, key)
        if mine.first == 0:
            through_store = _hosts(nodes) > 1 and not key.given
            if through_store:
                logger.warning(job_key.THROUGH_STORE)
            write("key", key.note(process.key_file, mine.host, through_store))
        process.start_agent(mine)  # While its coordinator does.
        if mine.first == 0:
            coordinator = process.start_coordinator()
            write("coordinator", coordinator)
        else:
            coordinator = _read_started(board, "coordinator", nodes[0])
        write(mine.name, process.connect_agent(coordinator["grpc"]))
    except BaseException as error:
        if process is not None:
            process.stop()
            process = None
        text = str(error)
        if not isinstance(error, PacTrainError):
            text = f"Rank {mine.first} ended: {error!r}.\nStart the job again."
        for note in unwritten:
            invalid = isinstance(error, InvalidArgument)
            board.write(note, {"error": text, "invalid": invalid})
        if not isinstance(error, PacTrainError):
            raise
    return process


def _hosts(nodes: Sequence[Node]) -> int:
    return len({node.host for node in nodes})


def _address(board: Board, mine: Node, nodes: Sequence[Node], own: str) -> str:
    """Where the daemons of this node listen; `own` is this host's address if known."""
    if _hosts(nodes) == 1:
        return LOOPBACK
    for node in nodes:
        if own:
            break
        if node.host != mine.host:  # The interface towards it.
            other = _read_started(board, f"address/{node.name}", node)["address"]
            own = address_towards(other) if other else ""
    if not own:
        raise AgentUnresponsiveError(
            f"The ranks are on {_hosts(nodes)} hosts, and nothing tells the address at "
            f"which the others reach {mine.host_name}: MASTER_ADDR is loopback or not "
            "set.\nSet PACTRAIN_HOST_ADDRESS to it on each host."
        )
    return own


def _read_started(board: Board, note: str, node: Node) -> dict[str, Any]:
    started = board.read(note, f"the daemons of rank {node.first}")
    assert isinstance(started, dict)
    if "error" in started:
        error = InvalidArgument if started["invalid"] else AgentUnresponsiveError
        raise error(started["error"])
    return started


def _log_started(
    nodes: Sequence[Node],
    coordinator: Mapping[str, str],
    agents: Sequence[Mapping[str, str]],
    key_file: Path,
) -> None:
    several = _hosts(nodes) > 1
    metrics = [
        f"http://{daemon['metrics']}/metrics" + several * f" on {node.host_name}"
        for node, daemon in zip((nodes[0], *nodes), (coordinator, *agents), strict=True)
    ]
    command = ["pactrain"] if shutil.which("pactrain") else [str(ADMIN)]
    command += ["jobs", "--coordinator", coordinator["grpc"]]
    command += ["--job-key-file", str(key_file)]
    say(
        "PACTRAIN_AGENT is not set: started a coordinator and "
        f"{len(agents)} agent{'' if len(agents) == 1 else 's'} for this job only, with "
        f"a key of its own; metrics at {', '.join(metrics)}. While it runs ask it"
        f"{several * f' on {nodes[0].host_name}'} by: {shlex.join(command)}"
    )
    if os.path.exists(DEFAULT_AGENT_SOCKET):  # Also where we may not look.
        logger.warning(
            "an agent of this machine has its socket at %s and is not used: set "
            "PACTRAIN_AGENT=unix:%s for that",
            DEFAULT_AGENT_SOCKET,
            DEFAULT_AGENT_SOCKET,
        )
