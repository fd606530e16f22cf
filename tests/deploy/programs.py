"""What the programs say of themselves, and whether what deploy/ says of them is so."""

from __future__ import annotations

import functools
import os
import re
import runpy
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
BIN = ROOT / "out/bin"
DAEMONS = ("pactrain-coordinator", "pactrain-agent")
VERSION: str = runpy.run_path(str(ROOT / "python_client/src/pactrain/_version.py"))["__version__"]
# Where deploy/ has the files of a daemon, and the trainers' socket.
ETC, STATE, RUN = "/etc/pactrain", "/var/lib/pactrain", "/run/pactrain"


@functools.cache
def flags(program: str) -> frozenset[str]:
    said = subprocess.run([BIN / program, "--help"], check=True, capture_output=True, text=True)
    return frozenset(re.findall(r"^  (?:-\w,)?(--[a-z0-9-]+)", said.stdout, re.M))


def variables(daemon: str) -> set[str]:
    prefix = daemon.upper().replace("-", "_")
    return {f"{prefix}_{flag[2:].upper().replace('-', '_')}" for flag in flags(daemon)}


@functools.cache
def trainers_variables() -> frozenset[str]:
    """Those of the users' table."""
    guide = (ROOT / "docs/environment.md").read_text()
    rows = [line.split(" | ")[0] for line in guide.splitlines() if line.startswith("| `PACTRAIN_")]
    return frozenset(name for row in rows for name in re.findall(r"`(PACTRAIN_[A-Z_]+)`", row))


def unknown(words: Sequence[str], program: str) -> list[str]:
    """The flags among the words that the program does not have."""
    named = [word.partition("=")[0] for word in words if word.startswith("--")]
    return [flag for flag in named if flag not in flags(program)]


class Files:
    """The files that a daemon of deploy/ finds, in a folder instead of the system's."""

    def __init__(self, folder: Path) -> None:
        """`folder`/pki gets a CA, and certificates as cert-manager lays them."""
        self.folder = folder
        certs = ["--coordinator", "--agent", "node-1"]
        subprocess.run(
            [ROOT / "tools/certs", folder / "pki", *certs], check=True, capture_output=True
        )
        for program, name in zip(DAEMONS, ("coordinator", "agent-node-1"), strict=True):
            etc = folder / program
            (etc / "tls").mkdir(parents=True)
            (etc / "metrics").mkdir()
            for source, target in ((f"{name}.pem", "crt"), (f"{name}.key", "key")):
                (etc / f"tls/tls.{target}").write_bytes((folder / "pki" / source).read_bytes())
            (etc / "tls/ca.crt").write_bytes((folder / "pki/ca.pem").read_bytes())
            (etc / "metrics/token").write_text("0123456789abcdef0123\n")
            (etc / "policy").mkdir()
            policy = (ROOT / "deploy/kubernetes/base/coordinator/policy.yaml").read_text()
            for name, text in yaml.safe_load(policy)["data"].items():
                (etc / "policy" / name).write_text(text)
            # As a Secret of defaultMode 0440 is mounted, for its group.
            for file in (*etc.glob("tls/*"), *etc.glob("metrics/*")):
                file.chmod(0o440)

    def here(self, daemon: str, word: str) -> str:
        word = word.replace(ETC, str(self.folder / daemon))
        return word.replace(STATE, str(self.folder / "state")).replace(
            RUN, str(self.folder / "run")
        )


def settings(
    daemon: str, words: Sequence[str], environment: Mapping[str, str], files: Files
) -> subprocess.CompletedProcess[str]:
    """What the daemon makes of its command line and variables: `--print-config` checks all."""
    command = [str(BIN / daemon), *(files.here(daemon, word) for word in words), "--print-config"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PACTRAIN_")}
    return subprocess.run(
        command, env={**clean, **environment}, capture_output=True, text=True, timeout=300
    )
