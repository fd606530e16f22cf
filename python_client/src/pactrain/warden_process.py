"""The warden of a node and its daemons, seen from the rank that starts them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import warden
from .errors import AgentUnresponsiveError, InvalidArgument
from .host_address import LOOPBACK, any_port
from .job_key import VARIABLE, JobKey
from .places import Node, Place

_MAX_SOCKET_PATH = 107  # Bytes; unix(7).
_ANSWER_SECONDS = warden.READY_SECONDS + 15
_STOP_SECONDS = 15.0
_BAD_FLAG = 2  # How daemons end that refuse a flag.
# gRPC takes its proxy from these, also for loopback.
_PROXIES = ("grpc_proxy", "http_proxy", "https_proxy", "all_proxy")
# Settings of daemons that were started by hand, not of this job's.
_SETTINGS = ("PACTRAIN_AGENT_", "PACTRAIN_COORDINATOR_", VARIABLE)
# A warden sees the trainers of its own host only. When these have ended, those of other
# hosts may still wait for the last word of its agent: it comes in this time, or the
# connection counts as lost (agent/exchange/tcp).
_LINGER_SECONDS = 10.0

# What a job may set for its own daemons: PACTRAIN_RISK is the coordinator's --risk.
_CHOICES = {
    "coordinator": (
        "risk",
        "codec",
        "min-exchange-share",
        "epoch-steps",
        "listen-page",
    ),
    "agent": ("step-deadline", "straggler-timeout", "renice"),
}

# They outlive us as a rule; dropping one that runs would be a ResourceWarning.
_left: list[subprocess.Popen[bytes]] = []


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


def daemon_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What embedded daemons inherit: no proxies, and no settings but their flags."""
    return {
        name: value
        for name, value in environment.items()
        if name.lower() not in _PROXIES and not name.startswith(_SETTINGS)
    }


def chosen_settings(daemon: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Flags of a daemon that the job has set by a variable, as {variable: flag}."""
    variables = {
        f"PACTRAIN_{setting.upper().replace('-', '_')}": setting
        for setting in _CHOICES[daemon]
    }
    return {
        variable: f"--{setting}={environment[variable]}"
        for variable, setting in variables.items()
        if environment.get(variable)
    }


class WardenProcess:
    """The warden of one node, seen from the rank that started it."""

    def __init__(
        self,
        places: Sequence[Place],
        environment: Mapping[str, str],
        node: str,
        address: str,
        key: JobKey,
    ) -> None:
        """`places` are those of this host's trainers; daemons listen at `address`.

        Raises: as make_folder(); AgentUnresponsiveError: it cannot be started.
        """
        self._environment = environment
        self._listen = any_port(address)
        log_folder = _log_folder(environment)
        self._folder = make_folder(environment)
        try:
            self.key_file = key.write(self._folder)
            self._logs = log_folder or self._folder
            # Logs that are kept tell jobs and nodes apart.
            kept = self._logs != self._folder
            self._log_prefix = f"{self._folder.name}-{node}-" if kept else ""
            self._log_level = "info" if kept else "warn"
            settings = {
                "folder": str(self._folder),
                "trainers": [[place.pid, place.start_ticks] for place in places],
                "linger_seconds": _LINGER_SECONDS if address != LOOPBACK else 0,
            }
            with open(self._log("warden"), "ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", warden.__file__, json.dumps(settings)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    cwd="/",
                    env=daemon_environment(environment),
                    start_new_session=True,  # Ctrl-C is for the trainers.
                )
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise AgentUnresponsiveError(
                f"The process that keeps this job's daemons does not start: {error}.\n"
                "Start agents and a coordinator by hand and set PACTRAIN_AGENT."
            ) from error

    def start_agent(self, node: Node) -> None:
        """It waits for connect_agent(), and starts while its coordinator does.

        Raises: as _ask().
        """
        self._start(
            "agent",
            f"--name={node.name}",
            f"--site={self._environment.get('PACTRAIN_SITE') or node.name}",
            "--coordinator=-",
            f"--socket=unix:{self._folder / 'agent.sock'}",
            f"--listen={self._listen}",
            f"--listen-metrics={LOOPBACK}:0",
            waits=True,
        )

    def start_coordinator(self) -> dict[str, str]:
        """Its addresses, `grpc` and `metrics`. Raises: as _ask()."""
        started = self._start(
            "coordinator",
            f"--listen={self._listen}",
            f"--listen-metrics={LOOPBACK}:0",
            f"--state-dir={self._folder / 'state'}",
            "--cluster=embedded",
        )
        return dict(started["listening"])

    def connect_agent(self, coordinator: str) -> dict[str, str]:
        """The agent's addresses, `socket` and others. Raises: as _ask()."""
        return dict(self._ask("agent", {"tell": coordinator})["listening"])

    def leave(self) -> None:
        """From now on the daemons end with the job."""
        _left.append(self._process)
        self._close_pipes()

    def _close_pipes(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # It may be gone already.
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

    def _start(self, name: str, *flags: str, waits: bool = False) -> dict[str, Any]:
        program = find_daemon(f"pactrain-{name}", self._environment)
        level = f"--log-level={self._log_level}"
        chosen = chosen_settings(name, self._environment)
        argv = [str(program), *flags, level, *chosen.values()]
        request = {"argv": argv, "key_file": str(self.key_file), "log": self._log(name)}
        return self._ask(name, {**request, "waits": waits})

    def _ask(self, name: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """What the warden answers of this daemon.

        Raises:
          InvalidArgument: it refuses a setting of the job.
          AgentUnresponsiveError: it does not start.
        """
        answer = self._answer(request)
        if "error" in answer:
            chosen = chosen_settings(name, self._environment)
            settings = [f"{flag} is {variable}" for variable, flag in chosen.items()]
            given = f" ({', '.join(settings)})" if settings else ""
            refused = bool(chosen) and answer.get("status") == _BAD_FLAG
            error = InvalidArgument if refused else AgentUnresponsiveError
            raise error(
                f"{answer['error']}\nPACTRAIN_AGENT is not set: attach() started it"
                f"{given}; mend what it says, or start an agent by hand and set "
                "PACTRAIN_AGENT."
            )
        return answer

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        with contextlib.suppress(BrokenPipeError):
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()
        poll = select.poll()  # select() takes no descriptors beyond 1023.
        poll.register(stdout, select.POLLIN)
        # An answer is one short line, written at once.
        line = stdout.readline() if poll.poll(1000 * _ANSWER_SECONDS) else b""
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
