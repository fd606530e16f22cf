"""Where the daemons of a chaos run are, and how an agent is cut off from its coordinator.

With network namespaces every daemon is on a host of its own, and nftables drops what goes
between an agent and the coordinator, or answers it with resets. Elsewhere all are on loopback
and a relay stands between (relay.py).
"""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise

from relay import Relay

from bench.closing import Closing
from bench.firewall import why_no_firewalls
from bench.testbed import Host, Link, NamespaceTestbed, run

RATE_MBPS = 200
COORDINATOR_PORT = 7070
AGENT_PORT = 7072
# What passes the coordinator's port in either direction.
CUT = """
table inet chaos {{
    counter cut {{ }}
    chain input {{
        type filter hook input priority filter; policy accept;
        tcp sport {port} counter name cut {verdict}
    }}
    chain output {{
        type filter hook output priority filter; policy accept;
        tcp dport {port} counter name cut {verdict}
    }}
}}
"""
VERDICTS = {"drop": "drop", "reset": "reject with tcp reset"}


class Network(ABC):
    """Of one cell: a coordinator and its agents."""

    daemon_flags: Sequence[str]  # Of both daemons.

    @abstractmethod
    def coordinator(self, argv: Sequence[str]) -> list[str]:
        """The command line of the coordinator, with --listen."""

    @abstractmethod
    def listens(self, address: str) -> None:
        """The coordinator's address, once it is known; it stays the same."""

    @abstractmethod
    def agent(self, number: int, argv: Sequence[str]) -> list[str]:
        """The command line of an agent, with --coordinator and --listen."""

    @abstractmethod
    def cut(self, agent: int, how: str) -> None:
        """Between an agent and the coordinator; `how` is "drop" or "reset"."""

    @abstractmethod
    def heal(self, agent: int) -> int:
        """How many packets, or connections, were cut. It may be asked for twice."""

    @abstractmethod
    def close(self) -> None:
        """Nothing is cut any more; no daemon is there."""


class Namespaces(Network):
    """The last host is the coordinator's."""

    daemon_flags = ("--insecure-network",)

    def __init__(self, bed: NamespaceTestbed, hosts: Sequence[Host]) -> None:
        self._bed = bed
        *self._agents, self._coordinator = hosts
        self._cut: set[int] = set()

    def coordinator(self, argv: Sequence[str]) -> list[str]:
        listen = f"--listen={self._coordinator.address}:{COORDINATOR_PORT}"
        return self._bed.command(self._coordinator, [*argv, listen])

    def listens(self, address: str) -> None:
        """It is where it was told to be."""

    def agent(self, number: int, argv: Sequence[str]) -> list[str]:
        host = self._agents[number]
        flags = [
            f"--coordinator={self._coordinator.address}:{COORDINATOR_PORT}",
            f"--listen={host.address}:{AGENT_PORT}",
        ]
        return self._bed.command(host, [*argv, *flags])

    def cut(self, agent: int, how: str) -> None:
        rules = CUT.format(port=COORDINATOR_PORT, verdict=VERDICTS[how])
        argv = self._bed.command(self._agents[agent], ["nft", "-f", "-"])
        subprocess.run(argv, input=rules, text=True, check=True, timeout=30)
        self._cut.add(agent)

    def heal(self, agent: int) -> int:
        if agent not in self._cut:
            return 0
        self._cut.discard(agent)
        within = self._bed.command(self._agents[agent], [])
        shown = run(*within, "nft", "list", "counter", "inet", "chaos", "cut").split()
        run(*within, "nft", "delete", "table", "inet", "chaos")
        return int(shown[shown.index("packets") + 1])

    def close(self) -> None:
        for agent in tuple(self._cut):
            self.heal(agent)


class Relays(Network):
    """All on loopback; a cut ends connections whichever way it is asked for."""

    daemon_flags = ("--insecure-local",)

    def __init__(self, agents: int) -> None:
        self._agents = agents
        self._address = "127.0.0.1:0"
        self._relays: list[Relay] = []

    def coordinator(self, argv: Sequence[str]) -> list[str]:
        return [*argv, f"--listen={self._address}"]

    def listens(self, address: str) -> None:
        self._address = address
        if not self._relays:
            self._relays = [Relay(address) for _ in range(self._agents)]

    def agent(self, number: int, argv: Sequence[str]) -> list[str]:
        relay = self._relays[number].address
        return [*argv, f"--coordinator={relay}", "--listen=127.0.0.1:0"]

    def cut(self, agent: int, how: str) -> None:
        self._relays[agent].cut()

    def heal(self, agent: int) -> int:
        return self._relays[agent].heal()

    def close(self) -> None:
        for relay in self._relays:
            relay.close()


class Place(Closing):
    """All cells of a run. `why`: why there are no namespaces; None: there are."""

    def __init__(self, cells: int, agents: int) -> None:
        self.why = why_no_firewalls()
        self._bed: NamespaceTestbed | None = None
        self.networks: list[Network]
        if self.why is not None:
            self.networks = [Relays(agents) for _ in range(cells)]
            return
        names = [f"c{cell}n{host}" for cell in range(cells) for host in range(agents + 1)]
        links = [Link(a, b, RATE_MBPS) for a, b in pairwise(names)]
        self._bed = NamespaceTestbed(dict.fromkeys(names, 1), links)
        hosts = self._bed.hosts
        step = agents + 1
        self.networks = [
            Namespaces(self._bed, hosts[first : first + step])
            for first in range(0, len(hosts), step)
        ]

    def close(self) -> None:
        if self._bed is not None:
            self._bed.close()
