"""Embedded daemons: what attach() starts where PACTRAIN_AGENT names no agent.

The first rank of each node starts an agent, rank 0 also a coordinator, from the
package's own binaries, in a private directory and on free ports: jobs do not meet.
They end when all processes of the job have ended (warden.py), so none goes while a
rank may still wait for its last result.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import warden
from .board import Board
from .config import DEFAULT_AGENT_SOCKET
from .errors import AgentUnresponsiveError, InvalidArgument, PacTrainError
from .places import Node, Place, nodes_of, place_of_this_process

_MAX_SOCKET_PATH = 107  # Bytes; unix(7).
_ANSWER_SECONDS = warden.READY_SECONDS + 15
_STOP_SECONDS = 15.0
# gRPC takes its proxy from these, also for loopback.
_PROXIES = ("grpc_proxy", "http_proxy", "https_proxy", "all_proxy")

logger = logging.getLogger("pactrain")

# They outlive us as a rule; dropping one that runs would be a ResourceWarning.
_wardens: list[subprocess.Popen[bytes]] = []


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
        for note in notes:
            board.write(note, {"error": str(error)})
        if not isinstance(error, PacTrainError):
            raise
    return process


def _read_started(board: Board, note: str, node: Node) -> dict[str, str]:
    started = board.read(note, f"the daemons of rank {node.first}")
    assert isinstance(started, dict)
    if "error" in started:
        raise AgentUnresponsiveError(started["error"])
    return started


def find_daemon(name: str, environment: Mapping[str, str]) -> Path:
    """The file of a daemon.

    Raises:
      AgentUnresponsiveError: there is none that can be run.
    """
    folder = Path(
        environment.get("PACTRAIN_DAEMON_DIR")
        or Path(__file__).resolve().parent / "_native"
    )
    path = folder.absolute() / name  # The warden's current directory is another.
    if not os.access(path, os.X_OK):
        raise AgentUnresponsiveError(
            f"PACTRAIN_AGENT is not set, and {path}, which attach() would start, "
            "is no program that can be run.\n"
            "Build it with `make build`, set PACTRAIN_DAEMON_DIR to the folder it is "
            "in, or start an agent by hand and set PACTRAIN_AGENT."
        )
    return path


def make_folder(environment: Mapping[str, str]) -> Path:
    """A new directory that only this user can enter, in TMPDIR if that is set.

    Raises:
      AgentUnresponsiveError: none can be made.
      InvalidArgument: its path is too long for a socket.
    """
    try:
        parent = environment.get("TMPDIR") or tempfile.gettempdir()
        folder = Path(tempfile.mkdtemp(prefix="pactrain-", dir=parent)).absolute()
    except OSError as error:
        raise AgentUnresponsiveError(
            f"No directory can be made for the daemons of this job: {error}.\n"
            "Set TMPDIR to a directory that can be written."
        ) from error
    socket = folder / "agent.sock"
    if len(os.fsencode(socket)) > _MAX_SOCKET_PATH:
        folder.rmdir()
        raise InvalidArgument(
            f"TMPDIR is too long: {socket} would be a socket, whose path may have at "
            f"most {_MAX_SOCKET_PATH} bytes.\nSet TMPDIR to a shorter path."
        )
    return folder


def _without_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in environment.items() if k.lower() not in _PROXIES}


class WardenProcess:
    """The warden of one node, seen from the rank that started it."""

    def __init__(
        self, places: Sequence[Place], environment: Mapping[str, str], node: str
    ) -> None:
        """Raises: as make_folder(); AgentUnresponsiveError: it cannot be started."""
        self._environment = environment
        log_folder = _log_folder(environment)
        self._folder = make_folder(environment)
        try:
            self._logs = log_folder or self._folder
            # Logs that are kept tell jobs and nodes apart.
            kept = self._logs != self._folder
            self._log_prefix = f"{self._folder.name}-{node}-" if kept else ""
            self._log_level = "info" if kept else "warn"
            settings = {
                "folder": str(self._folder),
                "trainers": [[place.pid, place.start_ticks] for place in places],
            }
            with open(self._log("warden"), "ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", warden.__file__, json.dumps(settings)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    cwd="/",
                    env=_without_proxies(environment),
                    start_new_session=True,  # Ctrl-C is for the trainers.
                )
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise AgentUnresponsiveError(
                f"The process that keeps this job's daemons does not start: {error}.\n"
                "Start agents and a coordinator by hand and set PACTRAIN_AGENT."
            ) from error

    def start_coordinator(self) -> dict[str, str]:
        """Its addresses, `grpc` and `metrics`. Raises: AgentUnresponsiveError."""
        return self._start(
            "coordinator",
            "--listen=127.0.0.1:0",
            "--listen-metrics=127.0.0.1:0",
            f"--state-dir={self._folder / 'state'}",
            "--cluster=embedded",
        )

    def start_agent(self, node: Node, coordinator: str) -> dict[str, str]:
        """Its addresses, `socket` and others. Raises: AgentUnresponsiveError."""
        return self._start(
            "agent",
            f"--name={node.name}",
            f"--site={self._environment.get('PACTRAIN_SITE') or node.name}",
            f"--coordinator={coordinator}",
            f"--socket=unix:{self._folder / 'agent.sock'}",
            "--listen-data=127.0.0.1:0",
            "--listen-metrics=127.0.0.1:0",
        )

    def leave(self) -> None:
        """From now on the daemons end with the job."""
        _wardens.append(self._process)
        self._close_pipes()

    def _close_pipes(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()

    def stop(self) -> None:
        """Ends the daemons now."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._close_pipes()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _log(self, name: str) -> str:
        return str(self._logs / f"{self._log_prefix}{name}.log")

    def _start(self, name: str, *flags: str) -> dict[str, str]:
        program = find_daemon(f"pactrain-{name}", self._environment)
        level = f"--log-level={self._log_level}"
        answer = self._ask(
            {"argv": [str(program), *flags, level], "log": self._log(name)}
        )
        if "error" in answer:
            raise AgentUnresponsiveError(
                f"{answer['error']}\nPACTRAIN_AGENT is not set: attach() started it; "
                "mend what it says, or start an agent by hand and set PACTRAIN_AGENT."
            )
        return dict(answer["listening"])

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        with contextlib.suppress(BrokenPipeError):
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()
        # An answer is one short line, written at once.
        ready, _, _ = select.select([stdout], [], [], _ANSWER_SECONDS)
        line = stdout.readline() if ready else b""
        if line:
            return dict(json.loads(line))
        text = warden.last_lines(self._log("warden"))
        return {"error": f"{warden.__file__} did not answer{text}"}


def _log_folder(environment: Mapping[str, str]) -> Path | None:
    """PACTRAIN_LOG_DIR, made if it is not there.

    Raises:
      InvalidArgument: it cannot be used.
    """
    text = environment.get("PACTRAIN_LOG_DIR")
    if not text:
        return None
    folder = Path(text).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(
            f"PACTRAIN_LOG_DIR is {text!r}, which is no directory for logs: {error}.\n"
            "Set it to one that can be written, or unset it."
        ) from error
    return folder


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
