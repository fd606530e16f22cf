"""The emulated network is what it says, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench import testbed
from bench.testbed import Link, LoopbackTestbed, NamespaceTestbed

ROOT = Path(__file__).resolve().parent.parent
LINKS = [Link("a", "b", 100), Link("b", "c", 100)]
SITES = {"a": 1, "b": 2, "c": 1}

needs_namespaces = pytest.mark.skipif(
    testbed.why_no_namespaces() is not None, reason=str(testbed.why_no_namespaces())
)

RECEIVE = """
import socket, sys
server = socket.create_server((sys.argv[1], 0))
print(server.getsockname()[1], flush=True)
peer, _ = server.accept()
while peer.recv(1 << 20):
    pass
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as peer:
    peer.sendall(bytes(int(sys.argv[3])))
"""


def send(bed: LoopbackTestbed, source: int, target: int, size: int) -> None:
    """Sends `size` bytes from one host to another and waits until they are there."""
    python = [sys.executable, "-c"]
    address = bed.hosts[target].address
    receive = bed.command(bed.hosts[target], [*python, RECEIVE, address])
    with subprocess.Popen(receive, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        port = receiver.stdout.readline().strip()
        argv = [*python, SEND, address, port, str(size)]
        subprocess.run(bed.command(bed.hosts[source], argv), check=True, timeout=60)
        receiver.wait(60)


@needs_namespaces
def test_bytes_are_counted_on_the_links_they_cross() -> None:
    with NamespaceTestbed(SITES, LINKS) as bed:
        before = bed.link_bytes()
        send(bed, source=0, target=1, size=1_000_000)
        after = bed.link_bytes()
    assert before is not None and after is not None
    forward = after[0][0] - before[0][0]
    assert 1_000_000 < forward < 1_080_000
    assert after[0][1] - before[0][1] < 100_000
    assert after[1][0] - before[1][0] < 20_000


@needs_namespaces
def test_hosts_of_one_site_do_not_use_the_links() -> None:
    with NamespaceTestbed(SITES, LINKS) as bed:
        before = bed.link_bytes()
        send(bed, source=1, target=2, size=1_000_000)
        after = bed.link_bytes()
    assert before is not None and after is not None
    assert all(x - y < 20_000 for a, b in zip(after, before, strict=True)
               for x, y in zip(a, b, strict=True))  # fmt: skip


@needs_namespaces
def test_nothing_stays_after_close() -> None:
    with NamespaceTestbed(SITES, LINKS):
        assert mine()
    assert not mine()


@needs_namespaces
def test_what_a_killed_run_left_is_removed_by_the_next() -> None:
    script = (
        "import sys\n"
        "from bench.testbed import Link, NamespaceTestbed\n"
        "bed = NamespaceTestbed({'a': 1, 'b': 1}, [Link('a', 'b', 100)])\n"
        "print('up', flush=True)\n"
        "sys.stdin.read()\n"
    )
    run = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, text=True,
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    assert run.stdout is not None and run.stdout.readline() == "up\n"
    run.send_signal(signal.SIGKILL)
    run.communicate(timeout=30)
    assert named(run.pid)
    with NamespaceTestbed(SITES, LINKS):
        assert not named(run.pid)


CONNECT = """
import socket, sys, time
start = time.monotonic()
try:
    socket.create_connection((sys.argv[1], 9), timeout=20)
except ConnectionRefusedError:  # By the other end, after a round trip.
    print(time.monotonic() - start)
"""


@needs_namespaces
def test_a_relayed_link_has_the_delay_and_loss_that_were_asked_for(tmp_path: Path) -> None:
    fifo = tmp_path / "delay"
    os.mkfifo(fifo)
    with NamespaceTestbed({"a": 1, "b": 1}, [Link("a", "b", 100)], relayed=True) as bed:
        argv = [sys.executable, "-c", CONNECT, bed.hosts[1].address]
        with subprocess.Popen(bed.relay_command(fifo), stdout=subprocess.PIPE, text=True) as relay:
            try:
                assert relay.stdout is not None and relay.stdout.readline() == "carrying\n"
                send(bed, source=0, target=1, size=1_000_000)
                # SYN, RST and ARP carry no data and have other headers than data.
                payload = testbed.shaped_counters(bed.core, 1)[0].payload
                assert payload == pytest.approx(1_000_000, abs=1000)
                fifo.write_text("100 0\n")
                assert float(testbed.run(*bed.command(bed.hosts[0], argv))) >= 0.2
                # Of some 31 pieces a few get lost, and are sent again.
                fifo.write_text("0 0.1\n")
                send(bed, source=0, target=1, size=1_000_000)
                assert testbed.shaped_counters(bed.core, 1)[0].payload > payload + 1_001_000
            finally:
                relay.kill()


def test_a_link_must_name_known_sites() -> None:
    with pytest.raises(ValueError, match="link names site 'x', allowed: a, b"):
        LoopbackTestbed({"a": 1, "b": 1}, [Link("a", "x", 100)])


def test_an_idle_link_sends_no_more_than_a_few_milliseconds_worth_at_once() -> None:
    assert testbed.burst_kb(100) == 32
    assert testbed.burst_kb(1000) == 125


@pytest.mark.parametrize("rate", [10, 100, 500, 600, 1000, 10_000])
def test_a_burst_holds_what_a_host_hands_over_in_one_piece(rate: float) -> None:
    piece = testbed.piece_bytes(rate)
    packets = -(-piece // 1448)
    assert piece + packets * testbed.HEADER_BYTES <= testbed.burst_kb(rate) * 1024
    assert piece > 16_384


@needs_namespaces
def test_a_link_can_be_given_a_burst_of_one_packet_and_directions_of_their_own() -> None:
    with NamespaceTestbed({"a": 1, "b": 1}, [Link("a", "b", 100)]) as bed:
        testbed.shape(bed.core, 0, 1.0, 2.0, burst_bytes=1600, latency="2s")
        shown = json.loads(testbed.run("tc", "-n", bed.core, "-j", "qdisc", "show"))
        before = testbed.shaped_counters(bed.core, 1)[0].payload
        send(bed, source=0, target=1, size=100_000)  # In pieces that are larger than that.
        assert testbed.shaped_counters(bed.core, 1)[0].payload > before + 99_000
    options = {one["dev"]: one["options"] for one in shown if one["kind"] == "tbf"}
    assert [options[dev]["burst"] for dev in ("t0a", "t0b")] == [1600, 1600]
    assert [8 * options[dev]["rate"] for dev in ("t0a", "t0b")] == [1_000_000, 2_000_000]


@needs_namespaces
def test_tbf_cuts_nothing_into_packets() -> None:
    with NamespaceTestbed({"a": 1, "b": 1}, [Link("a", "b", 500)]) as bed:
        send(bed, source=0, target=1, size=10_000_000)
        path = "/sys/class/net/t0a/statistics/tx_packets"
        handed = int(testbed.run("ip", "netns", "exec", bed.core, "cat", path))
        assert handed < testbed.shaped_counters(bed.core, 1)[0].packets / 4


def mine() -> list[str]:
    return named(os.getpid())


def named(pid: int) -> list[str]:
    return [n for n in testbed.namespaces() if n.startswith(f"{testbed.PREFIX}{pid}-")]
