"""Two sites behind firewalls, TLS between them, and clients that nobody asked for."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import hostile_clients
import pytest
from daemons import certificates
from patience import PATIENCE_SECONDS
from site_network import (
    DATA_PORT,
    GRPC_PORT,
    PER_SOURCE,
    Site,
    SiteNetwork,
)
from test_torchrun import HERE, Torchrun

from bench.firewall import why_no_firewalls
from bench.processes import Child, Children
from bench.testbed import Host, run

SCRIPT = HERE / "exact_training.py"
VISITED = HERE / "visited_training.py"
SITES = "a:2,b:2"
FLOOD_SOURCES = 5
LISTEN = """
import socket, sys
server = socket.create_server((sys.argv[1], 0))
print("port", server.getsockname()[1], flush=True)
while True:
    server.accept()
"""
CONNECT = """
import socket, sys
socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3]))
"""
# What the logs of coordinator and agent say of an attack, next to where it came from.
REFUSALS = {
    "no-certificate": ["it has no certificate|there is no certificate"],
    "other-ca": ["its certificate is of another CA or job key"],
    "expired": ["its certificate has expired"],
    "plain-http2": ["it speaks something else than TLS"],
    "scan": ["it speaks something else than TLS"],
    "idle": [f"are open as one address may have, {PER_SOURCE}\\b", "no handshake with"],
}

pytestmark = pytest.mark.skipif(why_no_firewalls() is not None, reason=str(why_no_firewalls()))

Results = dict[str, dict[str, Any]]  # What one rank left, by "full" and "masked".


@pytest.fixture
def network() -> Iterator[SiteNetwork]:
    with (
        tempfile.TemporaryDirectory(prefix="pactrain-e2e-") as folder,
        SiteNetwork(Path(folder), ["a", "b"]) as network,
    ):
        yield network


@pytest.fixture(scope="module")
def one_world(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Rank 0's results of one torchrun of four ranks, by torch alone."""
    folder = tmp_path_factory.mktemp("one-world")
    environment = {"OMP_NUM_THREADS": "1"}
    launcher = ("--standalone", "--nproc-per-node=4")
    Torchrun(folder / "log", environment, *launcher, SCRIPT, folder, "--plain").finish()
    results = results_in(folder)
    must_agree(results, results[0])
    return results[0]


def results_in(folder: Path) -> list[Results]:
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(4)]


def must_agree(results: list[Results], wanted: Results) -> None:
    for part in ("full", "masked"):
        assert {rank[part]["digest"] for rank in results} == {wanted[part]["digest"]}, part
        assert results[0][part]["accuracy"] == wanted[part]["accuracy"] > 0.9


def launch_at(sites: list[Site], folder: Path, *flags: str) -> list[Torchrun]:
    return [
        site.torchrun(folder / f"log-{site.name}", "digits", SITES, SCRIPT, folder, *flags)
        for site in sites
    ]


def must_have_gone_by_agents(network: SiteNetwork, results: list[Results]) -> None:
    """Nothing tried another way, and agents sent what the training needs and the link had."""
    for name in network.names:
        assert not any(network.dropped(name).values()), network.dropped(name)
    moved = network.bed.link_bytes()
    assert moved is not None
    for rank, link in zip((0, 2), moved[0], strict=True):  # From a to b, and back.
        full, masked = results[rank]["full"], results[rank]["masked"]
        assert (full["mode"], masked["mode"]) == ("FULL fp32", "COMPACTED fp32")
        assert full["sent_bytes"] >= 4 * full["elements"] * full["training_steps"]
        sent = full["sent_bytes"] + masked["sent_bytes"]
        # Headers and acknowledgements are 8 %; votes and telemetry are small.
        assert sent < link < 1.15 * sent + 1e6


def reaches(network: SiteNetwork, source: Host, target: Host, port: str) -> bool:
    argv = [sys.executable, "-c", CONNECT, target.address, port, "2"]
    done = subprocess.run(
        network.bed.command(source, argv), capture_output=True, timeout=PATIENCE_SECONDS
    )
    return done.returncode == 0


def test_a_firewall_drops_all_but_the_agents_ports_in_both_directions(network, tmp_path):
    a, b, stranger = network.host("a"), network.host("b"), network.stranger
    with Children(tmp_path) as children:
        ports = {}
        for host in (a, b, stranger):
            argv = [sys.executable, "-c", LISTEN, host.address]
            child = children.start(host.name, network.bed.command(host, argv), {})
            ports[host] = child.wait_for("port", PATIENCE_SECONDS).split()[1]
        # Before b is a site it has no firewall: these listen and are heard.
        assert reaches(network, stranger, b, ports[b])
        assert reaches(network, b, stranger, ports[stranger])
        network.start_site("b")
        for source, target, site, counter in [
            (stranger, b, "b", "dropped_in"),
            (b, stranger, "b", "dropped_out"),
            (stranger, a, "a", "dropped_in"),
            (a, stranger, "a", "dropped_out"),
        ]:
            before = network.dropped(site)[counter]
            assert not reaches(network, source, target, ports[target])
            assert network.dropped(site)[counter] > before
        assert reaches(network, stranger, a, str(GRPC_PORT))
        assert reaches(network, stranger, b, str(DATA_PORT))
        assert not reaches(network, stranger, b, str(GRPC_PORT))  # Only a has a coordinator.


def test_two_sites_train_as_one_world(network, one_world, tmp_path):
    sites = [network.start_site(name) for name in network.names]
    for launch in launch_at(sites, tmp_path):
        launch.finish()
    results = results_in(tmp_path)
    assert [rank["full"]["site"] for rank in results] == ["a", "a", "b", "b"]
    must_agree(results, one_world)
    must_have_gone_by_agents(network, results)


def flood_agents(network: SiteNetwork, children: Children) -> list[Child]:
    """Idle connections from several addresses have all of the agents' places for them."""
    sources = ",".join(network.stranger_addresses(FLOOD_SOURCES))
    floods = []
    for site in network.names:
        argv = [sys.executable, hostile_clients.__file__, "flood", sources,
                network.host(site).address, str(DATA_PORT), "none"]  # fmt: skip
        command = network.bed.command(network.stranger, argv)
        floods.append(children.start(f"flood-{site}", command, {}))
        floods[-1].wait_for("round", PATIENCE_SECONDS)
    return floods


@pytest.mark.nightly
def test_a_third_site_joins_and_leaves_again_while_strangers_flood(tmp_path):
    with (
        tempfile.TemporaryDirectory(prefix="pactrain-e2e-") as folder,
        SiteNetwork(Path(folder), ["a", "b", "c"]) as network,
    ):
        launches = [
            network.start_site(name).torchrun(
                tmp_path / f"log-{name}", "visited", SITES, VISITED, tmp_path
            )
            for name in ("a", "b")
        ]
        wait_until_there(tmp_path / "begun", launches)
        with Children(tmp_path) as children:
            site = network.start_site("c")
            floods = flood_agents(network, children)
            third = site.torchrun(
                tmp_path / "log-c", "visited", "c:2", VISITED, tmp_path, "--visit"
            )
            for launch in (*launches, third):
                launch.finish()
            for flood in floods:
                assert flood.process.poll() is None, flood.error("ended")
        for name in ("node-a", "node-b", "node-c"):
            text = (network.folder / f"{name}.1.log").read_text()
            assert "gives way" in text, text
        assert not any(network.dropped("c").values()), network.dropped("c")
    stayed, visited = (
        [json.loads((tmp_path / f"{site}-{rank}.json").read_text()) for site, rank in ranks]
        for ranks in (product("ab", range(2)), product("c", range(2)))
    )
    first = stayed[0]
    assert first["sizes"] == [4, 6, 4]
    for rank in stayed:
        assert rank["digests"] == first["digests"]  # After every step, to the last bit.
        assert rank["accuracy"] == first["accuracy"] > 0.9
    for rank in visited:
        assert rank["sizes"] == [6]
        began, left = rank["steps"]
        assert 0 < began < left < first["steps"][1]
        assert rank["digests"].items() <= first["digests"].items()


@pytest.mark.nightly
def test_a_site_that_no_agent_can_reach_is_refused_and_the_others_go_on(tmp_path):
    with (
        tempfile.TemporaryDirectory(prefix="pactrain-e2e-") as folder,
        SiteNetwork(Path(folder), ["a", "b", "c"]) as network,
    ):
        sites = [network.start_site(name) for name in ("a", "b")]
        launches = [
            site.torchrun(tmp_path / f"log-{site.name}", "alone", SITES, VISITED, tmp_path)
            for site in sites
        ]
        wait_until_there(tmp_path / "begun", launches)
        third = network.start_site("c", reached=False).torchrun(
            tmp_path / "log-c", "alone", "c:2", VISITED, tmp_path, "--visit"
        )
        text = third.finish(well=False)
        assert "RefusedError" in text
        assert re.search("agent node-. .* could not be reached from agent node-.", text), text
        assert "are kept out of this job for 1m" in text
        assert any(network.dropped("c").values())
        (tmp_path / "enough").touch()
        for launch in launches:
            launch.finish()
        log = (network.folder / "node-a.1.log").read_text()
        assert log.count("could not be reached") == 1  # It was tried once.
    stayed = [
        json.loads((tmp_path / f"{site}-{rank}.json").read_text())
        for site, rank in product("ab", range(2))
    ]
    most = max(stayed, key=lambda rank: rank["steps"][1])
    for rank in stayed:
        assert rank["digests"].items() <= most["digests"].items()


def hostile_folder(network: SiteNetwork, folder: Path) -> Path:
    """What the hostile clients have: the name of an agent, from another CA or expired."""
    certificates(folder / "other", "--agent", "node-b")
    ours = network.pki
    key, request = f"{ours}/agent-node-b.key", f"{folder}/expired.csr"
    copy = ("-copy_extensions", "copyall")
    run("openssl", "x509", "-x509toreq", *copy, "-in", f"{ours}/agent-node-b.pem",
        "-signkey", key, "-out", request)  # fmt: skip
    run("openssl", "x509", "-req", *copy, "-in", request, "-CA", f"{ours}/ca.pem",
        "-CAkey", f"{ours}/ca.key", "-days", "-1", "-out", f"{folder}/expired.pem")  # fmt: skip
    for source, name in [
        (ours / "ca.pem", "ca.pem"),
        (Path(key), "expired.key"),
        (folder / "other" / "agent-node-b.pem", "stranger.pem"),
        (folder / "other" / "agent-node-b.key", "stranger.key"),
    ]:
        shutil.copy(source, folder / name)
    return folder


def wait_until_there(file: Path, launches: list[Torchrun]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not file.exists():
        assert time.monotonic() < end, "the training did not get so far"
        assert all(launch.process.poll() is None for launch in launches)
        time.sleep(0.05)


@pytest.mark.nightly
def test_hostile_clients_are_refused_and_change_no_bit(network, one_world, tmp_path):
    sites = [network.start_site(name) for name in network.names]
    folder = tmp_path / "hostile"
    folder.mkdir()
    pki = str(hostile_folder(network, folder))
    # Each comes from an address of its own, by which the logs tell them apart.
    kinds = hostile_clients.ATTACKS
    sources = dict(zip(kinds, network.stranger_addresses(len(kinds)), strict=True))
    targets = {
        "coordinator": (network.host("a"), GRPC_PORT),
        "node-b": (network.host("b"), DATA_PORT),
    }
    launches = launch_at(sites, tmp_path, "--hold")
    wait_until_there(tmp_path / "held", launches)
    with Children(folder) as children:
        attackers = []
        for name, (host, port) in targets.items():
            for kind, source in sources.items():
                argv = [sys.executable, hostile_clients.__file__, kind, source, host.address,
                        str(port), pki]  # fmt: skip
                argv = network.bed.command(network.stranger, argv)
                attackers.append(children.start(f"{kind}-{name}", argv, {}))
                attackers[-1].wait_for("round", PATIENCE_SECONDS)
        (tmp_path / "go").touch()
        for launch in launches:
            launch.finish()
        for attacker in attackers:  # Until now, and each time in vain.
            if attacker.process.poll() is not None:
                raise attacker.error("was not refused")
    must_agree(results_in(tmp_path), one_world)
    for name in targets:
        log = (network.folder / f"{name}.1.log").read_text()
        for kind, source in sources.items():
            for words in REFUSALS[kind]:
                found = re.search(rf"\bfrom {re.escape(source)}\b.*({words})", log)
                assert found, f"{name} does not tell of {kind} from {source}:\n{log}"
