"""Sites on one machine: network namespaces joined by links of a given rate.

    with NamespaceTestbed(sites={"a": 1, "b": 1}, links=[Link("a", "b", 100)]) as bed:
        subprocess.Popen(bed.command(bed.hosts[0], ["iperf3", "-s"]))
        ...
        print(bed.link_bytes())

Hosts of a site hang on a switch (bridge) without limit; switches are joined by veth
pairs that tbf shapes in both directions. Everything of one run is named
"pactrain-<pid>-..."; it is removed by close(), and what a killed run left is removed when
the next one starts. Where namespaces are not allowed (why_no_namespaces()) there is
LoopbackTestbed: the programs under test must then limit themselves. Not thread-safe.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.closing import Closing

PREFIX = "pactrain-"
RELAY = Path(__file__).resolve().parent.parent / "out" / "bin" / "delay_relay"
LATENCY = "200ms"  # That a packet may wait for its turn.
HEADER_BYTES = 14 + 20 + 32  # Ethernet, IPv4, TCP with timestamps.
# Of all hosts, so that results do not depend on what this machine prefers.
CONGESTION_CONTROL = "cubic"


def congestion_controls() -> list[str]:
    """TCP's, that the kernel has loaded."""
    return Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()


def burst_kb(rate_mbps: float) -> int:
    """What an idle link sends at once: 32 kB is 2.6 ms at 100 Mbps."""
    return max(32, round(rate_mbps / 8))


def piece_bytes(rate_mbps: float) -> int:
    """What hosts may hand over in one piece: with its packets' headers it fits into the burst.

    tbf cuts what is larger into packets, and each of them takes its own way through the
    machine: at 500 Mbps in both directions that is a whole core, for what a network card
    does for nothing.
    """
    packets_share = 1448 / (1448 + HEADER_BYTES)
    # The last packet of a piece may be a short one.
    return min(65_536, int((burst_kb(rate_mbps) * 1024 - HEADER_BYTES) * packets_share))


@dataclass(frozen=True)
class Link:
    """Joins two sites; `rate_mbps` (10^6 bits per second, headers included) holds per direction."""

    a: str
    b: str
    rate_mbps: float


@dataclass(frozen=True)
class Host:
    """A machine of a site."""

    name: str
    site: str
    address: str
    interface: str
    namespace: str | None  # None: the machine itself.


@dataclass(frozen=True)
class Counter:
    """What has been sent so far on a link in one direction."""

    bytes: int  # As tbf counts: with Ethernet, IP and TCP headers.
    packets: int  # As they travel, not as the kernel hands them over.

    @property
    def payload(self) -> int:
        """Of TCP with timestamps over IPv4; a packet without data may count a few bytes wrong."""
        return self.bytes - HEADER_BYTES * self.packets


class TestbedError(RuntimeError):
    """A command that builds the testbed failed; says which and what it printed."""


def run(*command: str) -> str:
    """The standard output of a command; TestbedError if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        raise TestbedError(f"'{' '.join(command)}' failed: {done.stderr.strip()}")
    return done.stdout


class LoopbackTestbed(Closing):
    """All hosts are this machine; nothing is shaped and no bytes are counted."""

    shaped = False

    def __init__(self, sites: Mapping[str, int], links: Sequence[Link]) -> None:
        check(sites, links)
        self.links = tuple(links)
        names = [(s, i) for s, count in sites.items() for i in range(count)]
        self.hosts = tuple(Host(f"{s}{i}", s, "127.0.0.1", "lo", None) for s, i in names)

    def command(self, host: Host, argv: Sequence[str]) -> list[str]:
        """`argv`, to be run on `host`."""
        return list(argv)

    def link_bytes(self) -> list[tuple[int, int]] | None:
        """Per link: bytes sent from a to b and from b to a since the start; None: not counted."""
        return None

    def close(self) -> None:
        """Removes everything; a second call does nothing."""


class NamespaceTestbed(LoopbackTestbed):
    """Hosts are network namespaces and links are shaped; needs root."""

    shaped = True

    def __init__(
        self,
        sites: Mapping[str, int],
        links: Sequence[Link],
        congestion_control: str = CONGESTION_CONTROL,
        slowest_mbps: float | None = None,
        relayed: bool = False,
    ) -> None:
        """`slowest_mbps`: what shape() may make of a link later; default: what it has.
        `relayed`: links carry nothing until relay_command() runs.
        """
        super().__init__(sites, links)
        remove_leftovers()
        self._relayed = relayed
        rates = [slowest_mbps] if slowest_mbps else [link.rate_mbps for link in self.links]
        self._piece_bytes = piece_bytes(min(rates)) if rates else None
        self._congestion_control = congestion_control
        self._prefix = f"{PREFIX}{os.getpid()}-"
        self.core = self._prefix + "core"
        names = [(s, i) for s, count in sites.items() for i in range(count)]
        self.hosts = tuple(
            Host(f"{s}{i}", s, f"10.77.0.{number}", "e0", f"{self._prefix}{s}{i}")
            for number, (s, i) in enumerate(names, 1)
        )
        atexit.register(self.close)
        try:
            self._build(list(sites))
        except BaseException:
            self.close()
            raise

    def _build(self, sites: list[str]) -> None:
        run("ip", "netns", "add", self.core)
        commands = []
        for number in range(len(sites)):
            commands += [f"link add br{number} type bridge", f"link set br{number} up"]
        for number, link in enumerate(self.links):
            commands += self._ends(number)
            commands += [
                f"link set t{number}a master br{sites.index(link.a)} up",
                f"link set t{number}b master br{sites.index(link.b)} up",
            ]
        self._ip_core(commands)
        for number, link in enumerate(self.links):
            shape(self.core, number, link.rate_mbps)
        for number, host in enumerate(self.hosts):
            self._add_host(host, number, sites.index(host.site))

    def _ends(self, number: int) -> list[str]:
        """The two devices of a link."""
        if self._relayed:
            return [f"tuntap add dev t{number}{end} mode tap vnet_hdr" for end in "ab"]
        return [f"link add t{number}a type veth peer name t{number}b"]

    def relay_command(self, fifo: Path) -> list[str]:
        """Runs bench/delay_relay.cc for all links; it prints "carrying" once it does."""
        links = [f"t{number}a-t{number}b" for number in range(len(self.links))]
        return ["ip", "netns", "exec", self.core, str(RELAY), str(fifo), *links]

    def _add_host(self, host: Host, number: int, bridge: int) -> None:
        assert host.namespace is not None
        run("ip", "netns", "add", host.namespace)
        self._ip_core(
            [
                f"link add p{number} type veth peer name e0 netns {host.namespace}",
                f"link set p{number} master br{bridge} up",
            ]
        )
        commands = [f"addr add {host.address}/24 dev e0", "link set e0 up", "link set lo up"]
        if self._piece_bytes is not None:
            commands.append(f"link set e0 gso_max_size {self._piece_bytes}")
        for command in commands:
            run("ip", "-n", host.namespace, *command.split())
        # A link that was idle between two steps keeps its congestion window, as on any
        # well-set-up training host; else both systems pay for it at every step.
        settings = {"tcp_slow_start_after_idle": 0}
        if self._relayed:  # And a path whose delay is changed is soon known by its new one.
            settings["tcp_min_rtt_wlen"] = 10
        for setting, value in settings.items():
            path = f"/proc/sys/net/ipv4/{setting}"
            run(*self.command(host, ["sh", "-c", f"test ! -w {path} || echo {value} > {path}"]))
        # Not by its setting, which a namespace may only give the machine's own or reno.
        route = f"route replace 10.77.0.0/24 dev e0 src {host.address} congctl"
        run("ip", "-n", host.namespace, *route.split(), self._congestion_control)

    def _ip_core(self, commands: Sequence[str]) -> None:
        for command in commands:
            run("ip", "-n", self.core, *command.split())

    def command(self, host: Host, argv: Sequence[str]) -> list[str]:
        """`argv`, to be run on `host`; the process id stays that of the program."""
        assert host.namespace is not None
        return ["ip", "netns", "exec", host.namespace, *argv]

    def link_bytes(self) -> list[tuple[int, int]] | None:
        """Per link: bytes sent from a to b and from b to a since the start, headers included."""
        sent = [counter.bytes for counter in shaped_counters(self.core, len(self.links))]
        return list(zip(sent[::2], sent[1::2], strict=True))

    def close(self) -> None:
        """Removes all namespaces of this run, and with them the interfaces in them."""
        atexit.unregister(self.close)
        for name in namespaces():
            if name.startswith(self._prefix):
                subprocess.run(["ip", "netns", "del", name], capture_output=True)


def shape(
    core: str, link: int, rate_mbps: float, back_mbps: float | None = None,
    burst_bytes: int | None = None, latency: str = LATENCY,
) -> None:  # fmt: skip
    """Gives a link its rate from a to b and back (default: the same); what waits there is lost.

    For tbf would never send what waits if that is larger than the new burst. `burst_bytes`,
    default burst_kb(): what an idle link sends at once; of pieces larger than that tbf makes
    packets. `latency`: how long a packet may wait for its turn, else it is lost.
    """
    for end, rate in (("a", rate_mbps), ("b", back_mbps or rate_mbps)):
        burst = f"{burst_bytes}b" if burst_bytes else f"{burst_kb(rate)}kb"
        for discipline in ("pfifo", f"tbf rate {rate}mbit burst {burst} latency {latency}"):
            run(*f"tc -n {core} qdisc replace dev t{link}{end} root {discipline}".split())


def shaped_counters(core: str, links: int) -> list[Counter]:
    """Of the links of the testbed whose switches are in the namespace `core`.

    Of each link the direction from a to b, then that from b to a.
    """
    shown = json.loads(run("tc", "-n", core, "-s", "-j", "qdisc", "show"))
    sent = {q["dev"]: Counter(q["bytes"], q["packets"]) for q in shown if q["kind"] == "tbf"}
    return [sent[f"t{number}{end}"] for number in range(links) for end in "ab"]


def check(sites: Mapping[str, int], links: Sequence[Link]) -> None:
    """ValueError if a link names no site, or the numbers are out of range."""
    hosts = sum(sites.values())
    if not 1 <= hosts <= 200:
        raise ValueError(f"hosts = {hosts}, allowed: 1 to 200")
    for link in links:
        for site in (link.a, link.b):
            if site not in sites:
                raise ValueError(f"link names site '{site}', allowed: {', '.join(sites)}")
        if not link.rate_mbps > 0:
            raise ValueError(f"rate_mbps = {link.rate_mbps}, allowed: more than 0")


def namespaces() -> list[str]:
    """Names of all network namespaces of this machine."""
    return [line.split()[0] for line in run("ip", "netns", "list").splitlines() if line.strip()]


def remove_leftovers() -> None:
    """Removes the namespaces of runs that are no longer alive."""
    for name in namespaces():
        pid = name.removeprefix(PREFIX).split("-")[0]
        if name.startswith(PREFIX) and pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


@functools.cache
def why_no_namespaces() -> str | None:
    """Why shaped namespaces cannot be made here; None if they can (tried once, not guessed)."""
    if os.geteuid() != 0:
        return "not root"
    try:
        with NamespaceTestbed({"a": 1, "b": 1}, [Link("a", "b", 100)]):
            return None
    except (TestbedError, OSError, subprocess.TimeoutExpired) as error:
        return str(error)
