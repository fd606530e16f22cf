"""When it helps, when it hurts, what to use instead, with the figures of the page. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from bench.evidence.experiment_tables import NOT_RUN, table
from bench.evidence.figures import OURS, Evidence
from bench.evidence.losing import title
from bench.evidence.methods import ROWS
from bench.evidence.shapes import NETWORKS, Network
from bench.evidence.steps_tables import mean_words
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
    return (f"**Fast links: plain DDP.** From {enough[least]:.0f} Gbps ({least}) to "
            f"{enough[most]:.0f} ({most}) on, its step is all compute by formula. A network that "
            "computes longer for each weight needs less.")  # fmt: skip


def ten_gbps(evidence: Evidence) -> str:
    """What was measured there, and what halves bytes by hand against our row by formula."""
    topology = evidence.topologies[BEYOND_RATES]
    rows = []
    for workload in evidence.workloads():
        ratios = [evidence.ratio(workload, "ddp", method, list(NETWORKS), 0.0, BEYOND_RATES)
                  for method in ("fp16", OURS)]  # fmt: skip
        if None not in ratios:
            rows.append([workload, *(f"{ratio:.2f} x" for ratio in ratios)])
    mbps = topology.layout.own_mbps
    timed = [(NETWORKS[network].title, [title(row), entry["seconds"]])
             for network in NETWORKS for row in ("ddp", "fp16", OURS, "levels7-0.2")
             if (entry := evidence.timed(network, row, mbps, BEYOND_RATES))]  # fmt: skip
    measured = "; ".join(f"{network}, {row} {seconds:.3f} s" for network, (row, seconds) in timed)
    return (f"**{mbps / 1e3:g} Gbps in one cluster: plain DDP first.** All waited for processors "
            "when it was measured, on two that all eight hosts share. Seconds of a "
            f"step there: {measured or NOT_RUN}. By formula, which has a processor for each "
            "host, torch's fp16 hook is next: it needs no agents. Times as soon at the target as "
            "DDP; [peers that are sooner there](#losing-cases):\n\n"
            f"{_table(['steps of', 'fp16 hook', title(OURS)], rows)}")  # fmt: skip


def masks(evidence: Evidence) -> str:
    """Both at the workload's own rate, so that they differ in levels alone."""
    rows = []
    for workload in evidence.workloads():
        for keep in ("0.5", "0.2"):
            gaps = [evidence.gaps_at_one(workload, f"{how}-{keep}") for how in ("exact", "levels7")]
            if seeds := gaps[0].keys() & gaps[1].keys():
                means = (fmean(own[seed] for seed in seeds) for own in gaps)
                rows.append([workload, keep, *(f"{mean:.3f}" for mean in means), str(len(seeds))])
    return ("**Masks or levels.** Without a mask 7 levels send about twice the bytes of keep 0.5. "
            "What is lost to DDP on the test set (points on images, nats on text), by the mask "
            "alone, sent exactly, and with 7 levels, all at the workload's own rate:\n\n"
            + _table(["workload", "keep", "mask alone", "with 7 levels", "seeds"], rows)
            )  # fmt: skip


def unsynchronised(evidence: Evidence) -> str:
    rows = []
    for workload in evidence.workloads():
        methods = ("local30", "diloco30", OURS)
        steps = [mean_words(evidence, workload, method) for method in methods]
        if steps[:2] != [NOT_RUN] * 2:
            rows.append([workload, *steps])
    where = NETWORKS["resnet18"], evidence.topologies["chain"], RATES_MBPS[0]
    ours = step_time(OURS, *where, 0.0).bytes_per_element
    flat = step_time("local30", *where, 0.0).bytes_per_element / ours
    sites = by_sites_time("local30", *where).bytes_per_element / ours
    return ("**Steps may be unsynchronised: local SGD, where a training bears it.** 30 own steps "
            f"over a flat ring of fp32 send {flat:.1f} times what 7 levels at keep 0.5 send, site "
            f"by site in bf16 {sites:.2f} times. DDP's steps hold 6 to 13 common ones here, so "
            "longer runs may say more for it. Steps to the target:\n\n"
            + _table(["workload", *map(title, ("local30", "diloco30", OURS))], rows)
            )  # fmt: skip


def on_processors(evidence: Evidence) -> str:
    """What was measured where nothing has an accelerator; both share the same processors."""
    rows = []
    for method in ("powersgd1", "powersgd4", "topk0.01ef"):
        pairs = [
            [evidence.timed(network, row, RATES_MBPS[0]) for row in (method, OURS)]
            for network in NETWORKS
        ]
        ratios = [peer["seconds"] / own["seconds"] for peer, own in pairs if peer and own]
        if ratios:
            rows.append([title(method), f"{min(ratios):.1f} to {max(ratios):.1f}"])
    return ("**Gradients compressed on few processors: levels.** Other compression takes longer "
            f"there. Measured at {RATES_MBPS[0]:g} Mbps, where eight trainers compress on two "
            "processors and their compute is slept, a step takes so many times one of 7 levels at "
            "keep 0.5. Compute on processors too may outlast the exchange: then plain DDP "
            "is enough.\n\n"
            + _table(["method", "times, four networks"], rows)
            )  # fmt: skip


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return table(heads, rows) if rows else NOT_RUN


def slow_links(evidence: Evidence) -> str:
    """The main case: what we bring there, and who is sooner."""
    rows = []
    for workload in evidence.workloads():
        networks = evidence.networks(workload)
        ratios = {row: ratio for row in ROWS
                  if (ratio := evidence.ratio(workload, "ddp", row, networks, RATES_MBPS[0]))
                  } if networks else {}  # fmt: skip
        if OURS not in ratios:
            continue
        peers = sorted(
            (row for row in ratios if not ROWS[row].ours and ratios[row] > ratios[OURS]),
            key=lambda row: -ratios[row],
        )
        said = ", ".join(f"{title(row)} {ratios[row]:.1f} x" for row in peers)
        run = any(evidence.seeds(workload, row) for row in ROWS
                  if row != "ddp" and not ROWS[row].ours)  # fmt: skip
        rows.append([workload, f"{ratios[OURS]:.1f} x",
                     said or ("none that was run" if run else "no peer was run")])  # fmt: skip
    return ("**Slow links and an accelerator: compress.** With "
            f"{len(rows)} of {len(evidence.workloads())} workloads {title(OURS)} arrived. Peers "
            "that were sooner stand beside it: use them where your training bears them. Chain of "
            f"three, {RATES_MBPS[0]:g} Mbps, by formula, times as soon at the target as "
            "DDP:\n\n"
            + _table(["steps of (on a GPU its own shapes, else the mean of four networks')",
                      title(OURS), "sooner"], rows))  # fmt: skip


def sections(evidence: Evidence) -> str:
    parts = (slow_links, fast_links, ten_gbps, masks, unsynchronised, on_processors)
    return "\n\n".join(of(evidence) for of in parts)
