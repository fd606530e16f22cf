"""When it helps, when it hurts, what to use instead, with the figures of the page. Pure."""

from __future__ import annotations

from statistics import fmean

from bench.evidence.figures import OURS, Evidence
from bench.evidence.goals import seeds_words
from bench.evidence.losing import title
from bench.evidence.shapes import NETWORKS, Network
from bench.evidence.times import (
    COSTS,
    FORWARD_SHARE,
    RATES_MBPS,
    by_sites_time,
    link_bytes,
    step_time,
)
from bench.exchange_layout import PAYLOAD_SHARE
from bench.topologies import Topology

BEYOND_RATES = "cluster"  # The topology whose links have a rate of their own.


def ddp_enough_gbps(network: Network, topology: Topology) -> float:
    """The rate of links from which plain DDP's exchange is over when backward is."""
    sent = link_bytes(COSTS["ddp"], network, topology, RATES_MBPS[0])
    return sent * 8 / PAYLOAD_SHARE / ((1 - FORWARD_SHARE) * network.compute_seconds) / 1e9


def fast_links(evidence: Evidence) -> str:
    enough = {n.title: ddp_enough_gbps(n, evidence.topologies["chain"]) for n in NETWORKS.values()}
    least, most = (pick(enough, key=lambda name: enough[name]) for pick in (min, max))
    return (f"- **Fast links:** from {enough[least]:.0f} Gbps ({least}) to {enough[most]:.0f} "
            f"({most}) on, plain DDP's step is all compute by formula. Use it there, and for "
            "networks that compute longer for each weight.")  # fmt: skip


def ten_gbps(evidence: Evidence) -> str:
    """What halves bytes by hand against our row, where links are fast."""
    topology = evidence.topologies[BEYOND_RATES]
    said = []
    for workload in evidence.workloads():
        ratios = [evidence.ratio(workload, "ddp", method, list(NETWORKS), 0.0, BEYOND_RATES)
                  for method in ("fp16", OURS)]  # fmt: skip
        if None not in ratios:
            said.append(f"{ratios[0]:.2f} x and {ratios[1]:.2f} x ({workload}'s steps)")
    gbps = topology.layout.own_mbps / 1e3
    return (f"- **{gbps:g} Gbps in one cluster:** torch's fp16 hook needs no agents. At the target "
            "it is by formula so many times as soon as DDP, and 7 levels at keep 0.5 so many: "
            f"{'; '.join(said) or 'not run yet'}. What was measured there, where processors hold "
            "our rows up, stands among [the losing cases](#losing-cases).")  # fmt: skip


def masks(evidence: Evidence) -> str:
    said = []
    for workload in evidence.workloads():
        for keep in ("0.5", "0.2"):
            rows = f"exact-{keep}", f"levels7-{keep}"
            seeds = evidence.paired(workload, *rows)
            gaps = [evidence.gaps(workload, row, seeds) for row in rows]
            if all(gaps):
                said.append(f"{fmean(gaps[0]):.3f} of {fmean(gaps[1]):.3f} at keep {keep} "
                            f"({workload}, {seeds_words(len(seeds))})")  # fmt: skip
    return ("- **Masks or levels:** of what 7 levels lose to DDP on the test set the mask alone, "
            "sent exactly, loses (points on images, nats on text) "
            f"{'; '.join(said) or 'not run yet'}. Without a mask 7 levels "
            "send about twice the bytes of keep 0.5.")  # fmt: skip


def unsynchronised(evidence: Evidence) -> str:
    said = []
    for workload in evidence.workloads():
        steps = []
        for method in ("local30", "diloco30"):
            if evidence.seeds(workload, method):
                mean = evidence.mean_steps(workload, method)
                took = (f"does not arrive{evidence.elsewhere_words(workload, method)}"
                        if mean is None else f"takes {mean:.0f} steps")  # fmt: skip
                steps.append(f"{title(method)} {took}")
        if steps and (own := evidence.mean_steps(workload, OURS)):
            said.append(f"{', '.join(steps)}, 7 levels at keep 0.5 {own:.0f} ({workload})")
    where = NETWORKS["resnet18"], evidence.topologies["chain"], RATES_MBPS[0]
    ours = step_time(OURS, *where, 0.0).bytes_per_element
    flat = step_time("local30", *where, 0.0).bytes_per_element / ours
    sites = by_sites_time("local30", *where).bytes_per_element / ours
    return ("- **Steps may be unsynchronised:** 30 own steps over a flat ring of fp32 send "
            f"{flat:.1f} times what 7 levels at keep 0.5 send, site by site in bf16 {sites:.2f} "
            f"times. To the target: {'; '.join(said) or 'not run yet'}. In DDP's steps there are "
            "6 to 13 common ones, so longer runs may say more for it.")  # fmt: skip


def on_processors(evidence: Evidence) -> str:
    """What was measured where nothing has an accelerator; both share the same processors."""
    said = []
    for method in ("powersgd1", "powersgd4", "topk0.01ef"):
        pairs = [
            [evidence.timed(network, row, RATES_MBPS[0]) for row in (method, OURS)]
            for network in NETWORKS
        ]
        ratios = [peer["seconds"] / own["seconds"] for peer, own in pairs if peer and own]
        if ratios:
            said.append(f"{title(method)} {min(ratios):.1f} to {max(ratios):.1f}")
    return ("- **Gradients on processors, no accelerator:** compressing takes longer there. "
            f"Measured at {RATES_MBPS[0]:g} Mbps on few processors, a step takes so many times "
            f"one of 7 levels at keep 0.5: {', '.join(said) or 'not run yet'}.")  # fmt: skip


def lines(evidence: Evidence) -> str:
    parts = (fast_links, ten_gbps, masks, unsynchronised, on_processors)
    return "\n".join(of(evidence) for of in parts)
