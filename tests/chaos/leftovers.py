"""What a chaos run has left behind on the machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

Found = frozenset[str]


def _listed(*command: str) -> Found:
    """A line each; nothing where there is no such program."""
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        return frozenset()
    return frozenset(f"{command[0]}: {line.strip()}" for line in shown.stdout.splitlines())


def of_machine(prefix: str) -> Found:
    """Namespaces with this prefix, nft tables and shaped devices. (Memory is its processes'.)"""
    namespaces = (line for line in _listed("ip", "netns", "list") if f"ip: {prefix}" in line)
    shaped = (line for line in _listed("tc", "qdisc", "show") if " tbf " in line)
    return frozenset((*namespaces, *_listed("nft", "list", "tables"), *shaped))


def of_run(folder: Path) -> Found:
    """Processes that name the run's folder, and sockets in it."""
    processes = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # It has ended meanwhile.
        if str(folder) in words:
            processes.add(f"process {process.name}: {words[:150]}")
    return frozenset(processes | {f"socket {path}" for path in folder.glob("**/*.sock")})
