"""Where a peer is sooner at the target than the best of our rows, and the tables of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from bench.evidence.experiment_tables import NOT_RUN, table
from bench.evidence.figures import OURS, VISION, Evidence, Seconds
from bench.evidence.methods import ROWS
from bench.evidence.shapes import NETWORKS
from bench.evidence.step_times_plan import TOPOLOGY
from bench.evidence.times import RATES_MBPS, by_sites_time, mean_log, step_time
from bench.topologies import Topology

MOST_LINES = 12
# Peers whose all-reduce could go site by site, and the steps would be the same.
BY_SITES = ("local8", "local30", "diloco8", "diloco30", "powersgd1", "powersgd2", "powersgd4",
            "dgc_cold", "topk0.01ef")  # fmt: skip
NONE = "None among what was run."


def title(method: str) -> str:
    return (
        "site-hierarchical all-reduce, fp32 (PacTrain's FULL)"
        if method == "hier_fp32"
        else ROWS[method].title
    )


def rates_of(topology: Topology) -> Sequence[float]:
    """That are asked of it; one, where its links have a rate of their own."""
    return (topology.layout.own_mbps,) if topology.layout.own_mbps else RATES_MBPS


@dataclass(frozen=True)
class Case:
    workload: str
    topology: str
    network: str
    rate: float

    def words(self) -> str:
        return (f"{NETWORKS[self.network].title} at {self.rate:g} Mbps, {self.topology}, "
                f"steps of {self.workload}")  # fmt: skip


@dataclass(frozen=True)
class Loss:
    """`peer` is to the target sooner than our best row; `ratio` < 1: of their times."""

    case: Case
    peer: str
    best: str
    ratio: float


def cases(evidence: Evidence) -> Iterator[Case]:
    for workload in evidence.workloads():
        for name, topology in evidence.topologies.items():
            for network in evidence.networks(workload):
                for rate in rates_of(topology):
                    yield Case(workload, name, network, rate)


def measured_cases(evidence: Evidence) -> list[Case]:
    """Those whose steps' seconds were measured, compression slept."""
    return [
        case
        for case in cases(evidence)
        if case.topology == TOPOLOGY and evidence.timed(case.network, OURS, case.rate, ready=True)
    ]


def losing_cases(evidence: Evidence, seconds: Seconds = "formula") -> list[Loss]:
    """Of all that was run: our best row, which is what a user would take, against each peer."""
    found = []
    ours = [*(row for row in ROWS if ROWS[row].ours), "hier_fp32"]  # Which is FULL.
    peers = [row for row in ROWS if not ROWS[row].ours]
    for case in cases(evidence) if seconds == "formula" else measured_cases(evidence):
        for peer in peers:
            where = [case.network], case.rate, case.topology, seconds
            ratios = {
                row: ratio
                for row in ours
                if seconds == "formula"
                or case.network in evidence.networks_timed(peer, row, case.rate, seconds)
                if (ratio := evidence.ratio(case.workload, peer, row, *where)) is not None
            }
            if ratios and max(ratios.values()) < 1:
                best = max(ratios, key=lambda row: ratios[row])
                found.append(Loss(case, peer, best, ratios[best]))
    return found


def cases_words(evidence: Evidence, seconds: Seconds = "formula") -> str:
    """In how many cases that a peer was run in some peer is sooner."""
    run = {w for w in evidence.workloads()
           if any(evidence.seeds(w, row) for row in ROWS if row != "ddp" and not ROWS[row].ours)
           }  # fmt: skip
    lost = {loss.case for loss in losing_cases(evidence, seconds)}
    every = cases(evidence) if seconds == "formula" else measured_cases(evidence)
    able = [case for case in every if case.workload in run]
    by_workload = ", ".join(
        f"{w} {sum(c.workload == w for c in lost)} of {sum(c.workload == w for c in able)}"
        for w in evidence.workloads() if w in run)  # fmt: skip
    return (f"{len(lost)} of the {len(able)} cases whose peers were run"
            f"{f' ({by_workload})' if run else ''}")  # fmt: skip


def short_table(evidence: Evidence, losses: Sequence[Loss]) -> str:
    """A line for each peer, the worst first; what is over is one line."""
    if not losses:
        return NONE
    peers = {loss.peer: [other for other in losses if other.peer == loss.peer] for loss in losses}
    worst = {peer: min(own, key=lambda loss: loss.ratio) for peer, own in peers.items()}
    ordered = sorted(worst, key=lambda peer: worst[peer].ratio)
    late = {(workload, method) for workload, method, _ in evidence.not_reached()}
    rows = []
    for peer in ordered[:MOST_LINES]:
        first = worst[peer]
        missed = [w + evidence.elsewhere_words(w, peer) for w in evidence.workloads()
                  if (w, peer) in late]  # fmt: skip
        rows.append([title(peer), f"{1 / first.ratio:.2f} x", first.case.words(),
                     title(first.best), str(len(peers[peer])), ", ".join(missed)])  # fmt: skip
    if left := ordered[MOST_LINES:]:
        del rows[-1]
        left.insert(0, ordered[MOST_LINES - 1])
        rows.append([", ".join(map(title, left)), f"at most {1 / worst[left[0]].ratio:.2f} x",
                     "below", "", str(sum(len(peers[peer]) for peer in left)), ""])  # fmt: skip
    return table(["use instead", "sooner by up to", "there", "than our best row, which is",
                  "cases", "never arrives with"], rows)  # fmt: skip


def whole_table(evidence: Evidence, losses: Sequence[Loss]) -> str:
    """By workload, topology and peer."""
    groups: dict[tuple[str, str, str], list[Loss]] = {}
    for loss in losses:
        groups.setdefault((loss.case.workload, loss.case.topology, loss.peer), []).append(loss)
    rows = []
    for (workload, topology, peer), own in sorted(groups.items()):
        where = []
        for rate in rates_of(evidence.topologies[topology]):
            networks = [NETWORKS[o.case.network].title for o in own if o.case.rate == rate]
            if networks:
                every = "all four" if len(networks) == len(NETWORKS) else ", ".join(networks)
                where.append(f"{rate:g} Mbps: {every}")
        worst = min(own, key=lambda loss: loss.ratio)
        rows.append([workload, topology, title(peer), "; ".join(where),
                     f"{1 / worst.ratio:.2f} x ({title(worst.best)})"])  # fmt: skip
    return table(
        ["steps of", "topology", "sooner is", "where", "by up to (our best row there)"], rows
    )


def by_sites_table(evidence: Evidence) -> str:
    """Times to the target against DDP, over a flat ring and over one that goes site by site."""
    where = evidence.topologies["chain"], RATES_MBPS[0]
    workloads = [w for w in evidence.workloads() if len(evidence.networks(w)) == len(NETWORKS)]
    rows = []
    for peer in BY_SITES:
        flat = [step_time(peer, n, *where, 0.0) for n in NETWORKS.values()]
        sites = [by_sites_time(peer, n, *where) for n in NETWORKS.values()]
        sooner = mean_log([a.seconds / b.seconds for a, b in zip(flat, sites, strict=True)])
        ratios = [evidence.ratio(w, "ddp", peer, list(NETWORKS), where[1]) for w in workloads]
        cells = [("does not arrive" if evidence.seeds(w, peer) else NOT_RUN) if ratio is None
                 else f"{ratio:.1f} x / {ratio * sooner:.1f} x"
                 for w, ratio in zip(workloads, ratios, strict=True)]  # fmt: skip
        sent = " / ".join(f"{median(t.bytes_per_element for t in times):.3g}"
                          for times in (flat, sites))  # fmt: skip
        rows.append([title(peer), sent, *cells])
    ours = [evidence.ratio(w, "ddp", OURS, list(NETWORKS), where[1]) for w in workloads]
    own = median(step_time(OURS, n, *where, 0.0).bytes_per_element for n in NETWORKS.values())
    rows.append([title(OURS), f"{own:.3g}",
                 *("does not arrive" if r is None else f"{r:.1f} x" for r in ours)])  # fmt: skip
    return table(["flat ring / site by site", "bytes per element, median of networks",
                  *(f"as soon as DDP, {w}'s steps" for w in workloads)], rows)  # fmt: skip


def sooner(evidence: Evidence) -> dict[str, float]:
    """Peers that beat the headline's row at its figures' place, the worst first: as many times."""
    ratios = {row: 1 / ratio for row in ROWS if not ROWS[row].ours
              if (ratio := evidence.vision_ratio(row)) is not None and ratio < 1}  # fmt: skip
    return dict(sorted(ratios.items(), key=lambda item: -item[1]))


def sooner_words(evidence: Evidence) -> str:
    """For the page's top."""
    ours = f'"{title(OURS)}"'
    run = ", ".join(workload for workload in VISION if evidence.seeds(workload, OURS))
    if not run:
        return f"Whether a peer is sooner than {ours} is not known: not run yet."
    found = sooner(evidence)
    if not found:
        return f"No peer that was run is sooner at the target than {ours} there."
    said = ", ".join(f"{title(row)} {times:.2f} x{_timed_words(evidence, row)}"
                     for row, times in found.items())  # fmt: skip
    return (f"**Sooner at the target than {ours}, on the steps of {run} at the paper's shapes, "
            f"100 Mbps, chain of three, by formula:** {said}.")  # fmt: skip


def _timed_words(evidence: Evidence, row: str) -> str:
    """What sooner() says, by measured seconds; empty: nothing was."""
    timed = evidence.vision_ratio(row, seconds="ready")
    return "" if timed is None else f" ({1 / timed:.2f} x timed, compression slept)"


def readme_words(evidence: Evidence) -> str:
    """README's line of times to the target, with what they cost; who is sooner stands there."""
    ddp = evidence.vision_ratio("ddp")
    measured = evidence.vision_ratio("ddp", seconds="ready")
    processors = evidence.vision_ratio("ddp", seconds="processors")
    gap, most = evidence.vision_gap(OURS).values()
    if ddp is None or measured is None or processors is None or gap is None or most is None:
        return "To target accuracy: not run yet."
    slept = "[timed, compression slept](docs/results.md#the-same-with-measured-seconds)"
    return (f"To target accuracy, half pruned, 100 Mbps, [small networks' steps](docs/results.md): "
            f"{measured:.1f} x DDP's speed {slept}, {ddp:.1f} x by formula, {processors:.1f} x on "
            f"two cores; {gap:.2f} points lower, either at most {most:.2f} (95 %)."
            f"{_sooner_short(evidence)}"
            )  # fmt: skip


def _sooner_short(evidence: Evidence) -> str:
    """The best of each kind that beat the headline's row."""
    best: dict[str, str] = {}
    for row, times in sooner(evidence).items():  # The worst first.
        timed = evidence.vision_ratio(row, seconds="ready")
        both = f"{times:.1f}" if timed is None else f"{times:.1f} / {1 / timed:.1f}"
        best.setdefault(ROWS[row].title.split()[0].rstrip(","), both)
    said = ", ".join(f"{name} {both} x" for name, both in best.items())
    return (f" [Sooner](docs/results.md#losing-cases), by formula / timed: {said}."
            if said else "")  # fmt: skip


def warmed_words(evidence: Evidence) -> str:
    """DGC's later steps against ours: what a long run would show."""
    where = evidence.topologies["chain"], RATES_MBPS[0], evidence.codec_gb_per_s
    ratios = [step_time(OURS, network, *where).seconds / step_time("dgc", network, *where).seconds
              for network in NETWORKS.values()]  # fmt: skip
    return f"{mean_log(ratios):.2f}"
