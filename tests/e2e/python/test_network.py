"""Plain text leaves loopback only inside a network namespace of a test's own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from daemons import BIN
from patience import PATIENCE_SECONDS

from bench import testbed
from bench.processes import Children
from bench.testbed import Link, NamespaceTestbed


def in_own_namespace() -> bool:
    """By the rule of base/net: not the machine's first, or one that `ip netns` named."""
    own = os.stat("/proc/self/ns/net").st_ino
    try:
        return own != os.stat("/proc/1/ns/net").st_ino
    except PermissionError:
        named = Path("/run/netns")
        return named.is_dir() and own in [entry.stat().st_ino for entry in named.iterdir()]


def coordinator(folder: Path, *flags: str) -> list[str]:
    return [
        str(BIN / "pactrain-coordinator"),
        "--listen=0.0.0.0:0",
        "--listen-metrics=127.0.0.1:0",
        f"--state-dir={folder / 'state'}",
        *flags,
    ]


def agent(folder: Path, *flags: str) -> list[str]:
    return [
        str(BIN / "pactrain-agent"),
        "--name=a",
        "--coordinator=127.0.0.1:9",
        f"--socket=unix:{folder / 'agent.sock'}",
        "--listen=0.0.0.0:0",
        "--listen-metrics=127.0.0.1:0",
        *flags,
    ]


def refusal(argv: list[str]) -> str:
    """What a daemon says that does not start."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode != 0
    assert "listening" not in done.stdout
    return done.stderr


@pytest.mark.parametrize("daemon", [coordinator, agent])
def test_other_addresses_than_loopback_are_refused(daemon, tmp_path):
    text = refusal(daemon(tmp_path))
    assert "'0.0.0.0:0' is not loopback" in text
    assert "neither encrypted nor authenticated: give --tls-cert" in text


@pytest.mark.skipif(in_own_namespace(), reason="this is a namespace of its own")
@pytest.mark.parametrize("daemon", [coordinator, agent])
def test_insecure_network_on_the_machine_itself_is_refused(daemon, tmp_path):
    text = refusal(daemon(tmp_path, "--insecure-network"))
    assert "'0.0.0.0:0' is not loopback" in text
    assert "only inside a network namespace other than the machine's" in text


@pytest.mark.skipif(
    testbed.why_no_namespaces() is not None, reason=str(testbed.why_no_namespaces())
)
def test_insecure_network_in_a_namespace_of_its_own_is_served(tmp_path):
    with (
        NamespaceTestbed({"a": 1, "b": 1}, [Link("a", "b", 100)]) as bed,
        Children(tmp_path) as children,
    ):
        argv = bed.command(bed.hosts[0], coordinator(tmp_path, "--insecure-network"))
        child = children.start("coordinator", argv, {})
        child.wait_for("listening grpc=0.0.0.0:", PATIENCE_SECONDS)
