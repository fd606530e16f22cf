"""The job that observe-check, the page's pictures and its tests look at: on three sites."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.closing import Closing
from bench.cluster import Agent, Cluster
from bench.launch import start_trainers
from bench.processes import Child, Children
from bench.slow_relay import SlowRelay
from bench.testbed import Link, LoopbackTestbed

WAITING = (
    "import time, torch, pactrain; "
    "model = pactrain.DistributedDataParallel(torch.nn.Linear(4, 4)); time.sleep(3600)"
)


def three_sites() -> LoopbackTestbed:
    links = [Link("a", "b", 100), Link("b", "c", 100)]
    return LoopbackTestbed({"a": 2, "b": 1, "c": 1}, links)


class Relays(Closing):
    """One before each agent, by host: start_cluster(..., relayed=relays.before)."""

    def __init__(self) -> None:
        self._by_host: dict[str, SlowRelay] = {}

    def before(self, host: str, address: str) -> str:
        self._by_host[host] = SlowRelay(address)
        return self._by_host[host].address

    def __getitem__(self, host: str) -> SlowRelay:
        return self._by_host[host]

    def close(self) -> None:
        for relay in self._by_host.values():
            relay.close()


def give(orders: Path, order: str) -> None:
    """At once: a trainer may be reading."""
    beside = orders.with_suffix(".new")
    beside.write_text(order)
    beside.replace(orders)


def start_job(
    bed: LoopbackTestbed, children: Children, name: str, orders: Path, cluster: Cluster
) -> Child:
    """A rank on each host, that do what `orders` says (bench/observe_train.py): to train."""
    give(orders, "train")
    argv = ["-m", "bench.observe_train", "--orders", str(orders)]
    return start_trainers(bed, children, name, argv, [1] * len(bed.hosts), cluster)


def start_waiting(
    children: Children, name: str, agent: Agent, sites: tuple[str, str] = ("a", "b"), job: str = ""
) -> Child:
    """A trainer of a job of two sites; it waits for the other one, and then for ever."""
    env = {"PACTRAIN_JOB_ID": job or name, "PACTRAIN_SITE": agent.host.site,
           "PACTRAIN_SITES": ",".join(f"{site}:1" for site in sites),
           "OMP_NUM_THREADS": "1", **agent.trainer_env}  # fmt: skip
    return children.start(name, [sys.executable, "-c", WAITING], env)


def start_pair(children: Children, job: str, agents: tuple[Agent, Agent]) -> tuple[Child, Child]:
    """Both trainers of such a job."""
    sites = (agents[0].host.site, agents[1].host.site)
    first = start_waiting(children, f"{job}-first", agents[0], sites, job)
    return first, start_waiting(children, f"{job}-second", agents[1], sites, job)
