"""Jobs of two ranks for gpu_check.py: a coordinator and two agents on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import gpu_rank
from gpu_place import Answer, bound

JOB_SECONDS = 55


@contextlib.contextmanager
def cluster(package: Path, *limits: str) -> Iterator[list[str]]:
    """A coordinator and two agents, with flags of their own; their sockets."""
    native = package / "pactrain/_native"
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:

        def daemon(name: str, *flags: str) -> dict[str, str]:
            argv = [str(native / name), "--insecure-local", "--listen-metrics=127.0.0.1:0"]
            log = stack.enter_context(open(f"{folder}/{name}.log", "ab"))
            process = subprocess.Popen(
                [*argv, *flags], stdout=subprocess.PIPE, stderr=log, text=True
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            assert process.stdout is not None
            for line in process.stdout:
                if "listening" in line:
                    return dict(part.split("=", 1) for part in line.split()[1:])
            raise RuntimeError(f"{name} did not start: {Path(log.name).read_text()}")

        address = daemon(
            "pactrain-coordinator",
            "--listen=127.0.0.1:0",
            f"--state-dir={folder}/state",
            "--cluster=gpu",
            "--risk=exact",
        )["grpc"]
        sockets = [f"unix:{folder}/{site}.sock" for site in ("a", "b")]
        for site, socket in zip("ab", sockets, strict=True):
            daemon(
                "pactrain-agent",
                f"--name={site}",
                f"--site={site}",
                f"--coordinator={address}",
                f"--socket={socket}",
                "--listen=127.0.0.1:0",
                *limits,
            )
        yield sockets


def job(package: Path, place: str, path: str, kind: str) -> Answer:
    """What both ranks say at the end."""
    said = ranks_of(package, place, path, kind)
    return said[0] if said[0] == said[-1] else {"error": f"ranks differ: {said}"}


def ranks_of(
    package: Path, place: str, path: str, kind: str, limits: Sequence[str] = ()
) -> list[Answer]:
    """What each says, or in one answer that they were not done."""
    with cluster(package, *limits) as agents, contextlib.ExitStack() as stack:
        ranks = [start(agents, rank, place, path, kind) for rank in range(2)]
        for rank in ranks:
            stack.callback(rank.kill)
        try:
            return [json.loads(last_line(rank)) for rank in ranks]
        except subprocess.TimeoutExpired:
            return [{"error": f"not done after {bound(JOB_SECONDS):g} s"}]


def last_line(rank: subprocess.Popen[str]) -> str:
    said, _ = rank.communicate(timeout=bound(JOB_SECONDS))
    return said.splitlines()[-1] if said else '{"error": "said nothing"}'


def start(agents: list[str], rank: int, place: str, path: str, kind: str) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PACTRAIN_")}
    agent = agents[rank]
    if kind == "node":  # Of two GPUs.
        agent, place = agents[0], f"{place.partition(':')[0]}:{rank}"
    if kind == "beside" and rank == 1:  # It shares nothing of the GPU.
        place, path = "cpu", "auto"
    environment |= {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "PACTRAIN_AGENT": agent,
        "PACTRAIN_JOB_ID": "gpu-check",
        "PACTRAIN_DEVICE_PATH": path,
        "PACTRAIN_ON_SHRINK": "abort",
        "PACTRAIN_ATTACH_TIMEOUT": f"{bound(40):g}",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "OMP_NUM_THREADS": "1",  # As torchrun: ranks with all cores each wait for each other.
    }
    argv = [sys.executable, gpu_rank.__file__, kind, place]
    return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True)
