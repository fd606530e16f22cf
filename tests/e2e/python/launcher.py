"""Starts ranks of a training job as processes, quickly, and collects what they return.

The ranks are forked from a server that has torch imported, so that one costs
milliseconds instead of seconds; each is a process of its own that can be killed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from patience import PATIENCE_SECONDS

_context = multiprocessing.get_context("forkserver")
# DDP imports the last one, and scripts as much again.
_context.set_forkserver_preload(["scenarios", "scripts_check", "torch._dynamo"])


@dataclass
class Rank:
    """How one rank ended: with `value`, or with an error's class name and text."""

    value: Any = None
    error: str = ""
    text: str = ""
    seconds: float = 0.0  # From the launch to its end.
    said: list[Any] = field(default_factory=list)


class Talk:
    """What a scenario gets: its place in the job, and a line to the test."""

    def __init__(self, rank: int, world: int, pipe: Connection) -> None:
        self.rank = rank
        self.world = world
        self._pipe = pipe

    def say(self, word: Any) -> None:
        """Tells the test something; it arrives in order."""
        self._pipe.send(("said", word))

    def hear(self) -> Any:
        """Waits for what the test says next."""
        return self._pipe.recv()


Scenario = Callable[..., Any]


class Launch:
    """A running job. Use as a context: what still runs at the end is killed."""

    def __init__(
        self,
        scenario: Scenario,
        environments: Sequence[Mapping[str, str]],
        store: Path | None,  # None: the ranks get no process group.
        arguments: Mapping[str, Any],
        package: Path | None = None,  # Of another release: the folder that has pactrain.
    ) -> None:
        self.ranks = [Rank() for _ in environments]
        self._start = time.monotonic()
        self._pipes: list[Connection] = []
        self._processes = []
        for rank, environment in enumerate(environments):
            ours, theirs = _context.Pipe()
            process = _processes_of(package).Process(
                target=_run,
                args=(scenario, rank, len(environments), dict(environment), store,
                      dict(arguments), theirs, package),
            )  # fmt: skip
            with _importing_from(package):
                process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self._open = set(range(len(self._pipes)))

    def tell(self, word: Any, ranks: Sequence[int] | None = None) -> None:
        for rank in range(len(self._pipes)) if ranks is None else ranks:
            with contextlib.suppress(OSError):
                self._pipes[rank].send(word)

    def kill(self, rank: int, how: signal.Signals = signal.SIGKILL) -> None:
        """A rank that is killed is dead by then, as launchers wait before they start another."""
        process = self._processes[rank]
        assert process.pid is not None
        os.kill(process.pid, how)
        if how == signal.SIGKILL:
            process.join(PATIENCE_SECONDS)
            assert not process.is_alive()

    def wait_until(self, done: Callable[[], bool], seconds: float) -> None:
        """Until `done` says so; AssertionError if it does not in time."""
        end = time.monotonic() + seconds
        while not done():
            left = end - time.monotonic()
            assert left > 0, f"not done within {seconds} s: {self.ranks}"
            assert self._open, f"all ranks ended before: {self.ranks}"
            self._take(left)

    def wait_said(self, word: Any, seconds: float = PATIENCE_SECONDS) -> None:
        """Until every rank has said `word`."""
        self.wait_until(lambda: all(word in r.said for r in self.ranks), seconds)

    def finish(self, seconds: float = PATIENCE_SECONDS) -> list[Rank]:
        """Until every rank has ended."""
        end = time.monotonic() + seconds
        while self._open:
            left = end - time.monotonic()
            assert left > 0, f"ranks {self._open} run after {seconds} s: {self.ranks}"
            self._take(left)
        return self.ranks

    def _take(self, seconds: float) -> None:
        by_pipe = {self._pipes[rank]: rank for rank in self._open}
        for pipe in wait(list(by_pipe), timeout=max(0.0, seconds)):
            assert isinstance(pipe, Connection)
            rank = self.ranks[by_pipe[pipe]]
            try:
                kind, payload = pipe.recv()
            except (EOFError, ConnectionResetError):
                kind, payload = "ended", ("Killed", "ended without a word")
            if kind == "said":
                rank.said.append(payload)
                continue
            self._open.discard(by_pipe[pipe])
            rank.seconds = time.monotonic() - self._start
            if kind == "value":
                rank.value = payload
            else:
                rank.error, rank.text = payload

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()


def _processes_of(package: Path | None) -> Any:
    """A process of another release is made anew: the server has imported this one's."""
    return _context if package is None else multiprocessing.get_context("spawn")


@contextlib.contextmanager
def _importing_from(package: Path | None) -> Iterator[None]:
    """What is spawned meanwhile looks there first."""
    if package is not None:
        sys.path.insert(0, str(package))
    try:
        yield
    finally:
        if package is not None:
            sys.path.remove(str(package))


def _run(
    scenario: Scenario,
    rank: int,
    world: int,
    environment: dict[str, str],
    store: Path | None,
    arguments: dict[str, Any],
    pipe: Connection,
    package: Path | None,
) -> None:
    """In the child: joins a process group if there is to be one, runs the scenario, tells the
    outcome."""
    import torch
    import torch.distributed as dist

    os.environ.update(environment)
    torch.set_num_threads(1)
    talk = Talk(rank, world, pipe)
    try:
        import pactrain

        assert package is None or Path(pactrain.__file__).is_relative_to(package), pactrain
        if store is not None:
            kept = dist.FileStore(str(store), world)
            dist.init_process_group("gloo", store=kept, rank=rank, world_size=world)
        pipe.send(("value", scenario(talk, **arguments)))
    except BaseException as error:
        if os.environ.get("PACTRAIN_TEST_TRACES"):
            traceback.print_exc()
        pipe.send(("ended", (type(error).__name__, str(error))))
    finally:
        pipe.close()
        # A process group whose other ranks are gone may hang in its destructor.
        import pactrain.session

        pactrain.session._close_all()
        os._exit(0)
