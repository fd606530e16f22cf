"""What the pieces say: steps, ratios of times, gaps and goals. Pure; tables are in tables.py.

A row that has not arrived is never averaged away: its ratio is None, and it is listed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, stdev
from typing import Any

from bench.evidence.gpu_workloads import IMAGES, NETWORK_OF
from bench.evidence.methods import ROWS
from bench.evidence.shapes import NETWORKS
from bench.evidence.step_times_plan import BUCKETS, TOPOLOGY, is_ours
from bench.evidence.step_times_plan import ROWS as TIMED_ROWS
from bench.evidence.times import COSTS, mean_log, mean_step_seconds, step_time
from bench.evidence.train import crossing
from bench.evidence.tuning import Factors, Piece
from bench.topologies import Topology

VISION = ("resnet9", "vgg")
OURS = "levels7-0.5"  # The row of the headline.
# The same sums as DDP's, so its steps are DDP's. PacTrain's FULL sends the same.
STEPS_OF = {"hier_fp32": "ddp", BUCKETS: "ddp"}
LEAST_SEEDS = 3  # Fewer decide no goal.
MOST_OVER_BOUND, MOST_OVER_EXACT = 1.25, 1.10  # Of a step in levels, and of an exact one.
POWERSGD, DGC = ("powersgd1", "powersgd2", "powersgd4"), ("dgc", "dgc_cold")
# Student's t by degrees of freedom: 95 % one-sided, and two-sided.
T95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895)
T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


@dataclass
class Evidence:
    """Each method's pieces of its factor of the rate; the fixed targets; what is measured."""

    pieces: Mapping[tuple[str, str, int], Piece]
    targets: Mapping[str, Mapping[str, Any]]
    topologies: Mapping[str, Topology]
    measured: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # Rate: figures.
    codec_gb_per_s: float = 0.0
    times: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # Network: step_times.
    # By topology: the same, where that is not the paper's.
    elsewhere: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    factors: Factors = field(default_factory=dict)  # Of the rate, where it was tuned.
    others: Sequence[Piece] = ()  # With factors that were not chosen.
    starts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # After pre-training.

    def seeds(self, workload: str, method: str) -> list[int]:
        method = STEPS_OF.get(method, method)
        return sorted(s for w, m, s in self.pieces if (w, m) == (workload, method))

    def workloads(self) -> list[str]:
        return sorted({workload for workload, _, _ in self.pieces})

    def networks(self, workload: str) -> list[str]:
        """Whose step times go with its steps: its own, where it is one of them, else all."""
        if workload == IMAGES:
            return []  # ResNet-50's step times are not among them.
        return [NETWORK_OF[workload]] if workload in NETWORK_OF else list(NETWORKS)

    def steps(self, workload: str, method: str, seed: int) -> int | None:
        """To the target; None: not reached, or not run."""
        piece = self.pieces.get((workload, STEPS_OF.get(method, method), seed))
        if piece is None or workload not in self.targets:
            return None
        return crossing(list(map(tuple, piece["curve"])), self.targets[workload]["target"])

    def mean_steps(self, workload: str, method: str) -> float | None:
        """None unless every seed that was run arrived."""
        steps = [self.steps(workload, method, seed) for seed in self.seeds(workload, method)]
        arrived = [count for count in steps if count is not None]
        return fmean(arrived) if arrived and len(arrived) == len(steps) else None

    def not_reached(self) -> list[tuple[str, str, int]]:
        return sorted(key for key in self.pieces if self.steps(*key) is None)

    def seconds_to(
        self, workload: str, method: str, seed: int, steps: int,
        network: str, rate: float, topology: str,
    ) -> float:  # fmt: skip
        """Of the first `steps` of a piece, by formula, with as much as its mask kept."""
        piece = self.pieces[workload, STEPS_OF.get(method, method), seed]
        return steps * mean_step_seconds(
            method, NETWORKS[network], self.topologies[topology], rate, self.codec_gb_per_s,
            steps, piece["steps"], piece["keep"],
        )  # fmt: skip

    def paired(self, workload: str, peer: str, ours: str) -> list[int]:
        """Seeds that were run with both."""
        return sorted(set(self.seeds(workload, peer)) & set(self.seeds(workload, ours)))

    def seed_ratios(
        self, workload: str, peer: str, ours: str, networks: Sequence[str], rate: float,
        topology: str = "chain", at_least: bool = False, measured: bool = False,
    ) -> list[float] | None:  # fmt: skip
        """Times as fast `ours` is to the target as `peer`, by seeds run with both: the networks'
        mean. None: one has not arrived.

        `at_least`: a peer that has not arrived counts as if its last step had brought it there.
        `measured`: with steps' seconds as `make report-times` had them, not by formula.
        """
        ratios = []
        for seed in self.paired(workload, peer, ours):
            theirs, own = self.steps(workload, peer, seed), self.steps(workload, ours, seed)
            if theirs is None and at_least:
                theirs = self.pieces[workload, STEPS_OF.get(peer, peer), seed]["steps_run"]
            if theirs is None or own is None:
                return None
            if measured:
                ratios.append(mean_log([theirs / own * self.timed_ratio(network, peer, ours, rate)
                                        for network in networks]))  # fmt: skip
                continue
            ratios.append(mean_log([
                self.seconds_to(workload, peer, seed, theirs, network, rate, topology)
                / self.seconds_to(workload, ours, seed, own, network, rate, topology)
                for network in networks
            ]))  # fmt: skip
        return ratios

    def ratio(
        self, workload: str, peer: str, ours: str, networks: Sequence[str], rate: float,
        topology: str = "chain",
    ) -> float | None:  # fmt: skip
        """The mean over seeds; None: one has not arrived, or none was run with both."""
        ratios = self.seed_ratios(workload, peer, ours, networks, rate, topology)
        return mean_log(ratios) if ratios else None

    def vision_ratios(
        self, peer: str, ours: str = OURS, rate: float = 100.0,
        networks: Sequence[str] = (), at_least: bool = False, measured: bool = False,
    ) -> list[list[float]] | None:  # fmt: skip
        """By vision workload that was run, of its seeds; None: a side did not arrive, or no
        network's step was measured where that is asked for. `networks`: empty: all."""
        networks = networks or list(NETWORKS)
        if measured:
            networks = self.networks_timed(peer, ours, rate)
        found = [
            self.seed_ratios(workload, peer, ours, networks, rate, "chain", at_least, measured)
            for workload in VISION
            if networks and self.paired(workload, peer, ours)
        ]
        arrived = [ratios for ratios in found if ratios is not None]
        return arrived if arrived and len(arrived) == len(found) else None

    def vision_ratio(
        self, peer: str, ours: str = OURS, rate: float = 100.0,
        at_least: bool = False, measured: bool = False,
    ) -> float | None:  # fmt: skip
        """The mean over the vision workloads that were run, as vision_ratios() has them."""
        ratios = self.vision_ratios(peer, ours, rate, (), at_least, measured)
        return None if ratios is None else mean_log([mean_log(seeds) for seeds in ratios])

    def vision_interval(self, peer: str, rate: float = 100.0) -> tuple[float, float] | None:
        """Of vision_ratio(): 95 % by Student's t of the logarithms, over workloads' seeds."""
        ratios = self.vision_ratios(peer, rate=rate)
        logs = [math.log(ratio) for seeds in ratios or [] for ratio in seeds]
        if len(logs) < 2:
            return None
        middle, width = fmean(logs), half_width(logs, T975)
        return math.exp(middle - width), math.exp(middle + width)

    def timed_ratio(self, network: str, peer: str, ours: str, rate: float) -> float:
        """Of two rows' measured seconds per step."""
        both = [self.timed(network, row, rate) for row in (peer, ours)]
        return both[0]["seconds"] / both[1]["seconds"]  # type: ignore[index, no-any-return]

    def networks_timed(self, peer: str, ours: str, rate: float) -> list[str]:
        """Of which a step of both was measured."""
        return [n for n in NETWORKS if all(self.timed(n, row, rate) for row in (peer, ours))]

    def arriving_factors(self, workload: str, method: str) -> list[float]:
        """Of the rate, other than the one that is taken, with which some seed arrives."""
        target = self.targets.get(workload, {}).get("target")
        return sorted({p["rate_factor"] for p in self.others
                       if (p["workload"], p["method"]) == (workload, method)
                       and target is not None
                       and crossing(list(map(tuple, p["curve"])), target)})  # fmt: skip

    def elsewhere_words(self, workload: str, method: str) -> str:
        """Of one that does not arrive at the rate that is taken; empty: nor at another."""
        factors = self.arriving_factors(workload, method)
        return f", but at {' and '.join(f'{f:g} x' for f in factors)} its rate" if factors else ""

    def not_arrived(self, method: str) -> list[str]:
        """Vision workloads of which a seed has not arrived with it."""
        late = {(workload, name) for workload, name, _ in self.not_reached()}
        return [workload for workload in VISION if (workload, method) in late]

    def gaps(self, workload: str, method: str, seeds: Sequence[int] = ()) -> list[float]:
        """DDP's test score minus the row's, of equal seeds (empty: all), after DDP's steps."""
        return [
            self.pieces[workload, "ddp", seed]["test"] - self.pieces[workload, method, seed]["test"]
            for seed in seeds or self.seeds(workload, method)
            if (workload, "ddp", seed) in self.pieces and (workload, method, seed) in self.pieces
        ]

    def vision_gap(self, method: str) -> dict[str, float | None]:
        """The workloads' mean, and the largest of their bounds: networks lose unequally."""
        found = [gaps for workload in VISION if (gaps := self.gaps(workload, method))]
        uppers = [upper95(gaps) for gaps in found]
        known = [upper for upper in uppers if upper is not None]
        return {"mean": fmean(map(fmean, found)) if found else None,
                "upper95": max(known) if known and len(known) == len(uppers) else None}  # fmt: skip

    def timed(self, network: str, row: str, rate: float, topology: str = TOPOLOGY) -> Piece | None:
        """What `make report-times` measured of it; None: not run."""
        times = self.times if topology == TOPOLOGY else self.elsewhere.get(topology, {})
        entries = times.get(network, {}).get("rows", [])
        return next((e for e in entries if (e["row"], e["rate_mbps"]) == (row, rate)), None)

    def over_bound(self, row: str, rate: float = 100.0) -> dict[str, float]:
        """By network: measured seconds over those of the row's bytes on the link."""
        chain = self.topologies[TOPOLOGY]
        found = {}
        for network, shape in NETWORKS.items():
            if (entry := self.timed(network, row, rate)) is not None:
                bound = step_time(row, shape, chain, rate, self.codec_gb_per_s).bound
                found[network] = entry["seconds"] / bound
        return found

    def share_of_bound(self) -> float | None:
        """The median over our measured rows at 100 Mbps, also at the paper's shapes."""
        rows = self.measured.get("100mbit", {}).get("rows", [])
        shares = [row["bound_seconds"] / row["seconds"] for row in rows
                  if row["name"].startswith(("full", "compacted", "levels"))]  # fmt: skip
        ours = filter(is_ours, TIMED_ROWS)
        shares += [1 / over for row in ours for over in self.over_bound(row).values()]
        return median(shares) if shares else None


def upper95(values: Sequence[float]) -> float | None:
    """Of the mean, one-sided; None: one value says nothing of its spread."""
    if len(values) < 2:
        return None
    return fmean(values) + half_width(values, T95)


def half_width(values: Sequence[float], quantiles: Sequence[float]) -> float:
    """Of the mean's interval, two values or more."""
    t = quantiles[min(len(values) - 2, len(quantiles) - 1)]
    return t * stdev(values) / math.sqrt(len(values))


def best_of(evidence: Evidence, rows: Sequence[str]) -> str | None:
    """The one that is fastest to the target at 100 Mbps."""
    ratios = {row: evidence.vision_ratio(row) for row in rows}
    arrived = {row: ratio for row, ratio in ratios.items() if ratio is not None}
    return min(arrived, key=lambda row: arrived[row]) if arrived else None


def against_of(evidence: Evidence, measured: bool) -> dict[str, float | None]:
    """Of the headline's peers: as many times as soon, by formula or with measured seconds."""

    def ratio(*peers: str | None) -> float | None:
        """Against the soonest of them."""
        found = (evidence.vision_ratio(peer, measured=measured) for peer in peers if peer)
        return min((one for one in found if one is not None), default=None)

    return {
        "ddp": ratio("ddp"),
        # By formula DDP's buckets cost the same.
        "best_ddp": ratio("ddp", BUCKETS) if measured else ratio("ddp"),
        "hier_bf16": ratio("hier_bf16"),
        "fp16": ratio("fp16"),
        "topk0.1": ratio("topk0.1"),
        "topk0.01": ratio("topk0.01"),
        "paper": ratio("paper"),
        "powersgd_best": ratio(*POWERSGD) if measured else ratio(best_of(evidence, POWERSGD)),
        "dgc": ratio(best_of(evidence, DGC)),
        "diloco30": ratio("diloco30"),
    }


def headline(evidence: Evidence) -> dict[str, Any]:
    """The last line of make report. `against` is the lesser of what the formula says and what
    was measured: measured, peers compress on few processors, and by formula nothing waits."""
    formula, measured = (against_of(evidence, how) for how in (False, True))
    least = {peer: min((one for one in (formula[peer], measured[peer]) if one), default=None)
             for peer in formula}  # fmt: skip
    seeds = {workload: evidence.seeds(workload, OURS) for workload in evidence.workloads()}
    return {
        "against": rounded(least),
        "against_by_formula": rounded(formula),
        "against_measured": rounded(measured),
        "share_of_bound": evidence.share_of_bound(),
        "gap_keep0.5": evidence.vision_gap("levels7-0.5"),
        "gap_keep0.2": evidence.vision_gap("levels7-0.2"),
        "seeds": seeds,
        "not_reached": [list(key) for key in evidence.not_reached()],
    }


def rounded(ratios: Mapping[str, float | None]) -> dict[str, float | None]:
    return {peer: None if ratio is None else round(ratio, 3) for peer, ratio in ratios.items()}


@dataclass(frozen=True)
class Goal:
    text: str
    goal: str
    value: str
    met: bool | None  # None: not run yet.


@dataclass(frozen=True)
class Against:
    """A goal of the time to the target: how many times as soon as `peer`."""

    text: str
    peer: str
    least: float
    rate: float = 100.0


def peers_of(evidence: Evidence) -> list[Against]:
    return [
        Against("to the target against DDP, mean", "ddp", 8.72),
        Against("against fp16", "fp16", 4),
        Against("against TopK-0.1", "topk0.1", 8),
        Against("against TopK-0.01", "topk0.01", 2),
        Against("against the paper's scheme", "paper", 3),
        Against("against hierarchical bf16", "hier_bf16", 3),
        Against("against the best PowerSGD", best_of(evidence, POWERSGD) or POWERSGD[0], 1.2),
        Against("against the best DGC", best_of(evidence, DGC) or DGC[0], 1.5),
        Against("against DDP at 1 Gbps", "ddp", 2, 1000.0),
    ]


def seeds_words(count: int) -> str:
    return f"{count} seed{'s' * (count != 1)}"


def ratio_words(evidence: Evidence, against: Against) -> str | None:
    """By formula with its interval, and with measured seconds; None: not arrived, or not run."""
    peer, rate = against.peer, against.rate
    value = evidence.vision_ratio(peer, rate=rate)
    if value is None:
        return None
    said = f"{value:.2f} x by formula"
    if (interval := evidence.vision_interval(peer, rate)) is not None:
        said += f" (95 %: {interval[0]:.2f} to {interval[1]:.2f})"
    if (measured := evidence.vision_ratio(peer, rate=rate, measured=True)) is not None:
        networks = len(evidence.networks_timed(peer, OURS, rate))
        said += f"; {measured:.2f} x with seconds measured on few processors, {networks} networks"
    return said


def _time_goal(evidence: Evidence, against: Against) -> Goal:
    """Few seeds decide nothing. Met is what the formula and what was measured both meet."""
    peer, rate = against.peer, against.rate
    counts = (len(evidence.paired(workload, peer, OURS)) for workload in VISION)
    seeds = min(filter(None, counts), default=0)
    value, said = evidence.vision_ratio(peer, rate=rate), ratio_words(evidence, against)
    if said is None:
        value = evidence.vision_ratio(peer, rate=rate, at_least=True)
        late = " and ".join(evidence.not_arrived(peer))
        said = f"> {value:.2f} x by formula: it did not arrive on {late}" if value else None
    goal = f">= {against.least:g} x"
    if value is None or said is None:
        return Goal(against.text, goal, "not run yet", None)
    measured = evidence.vision_ratio(peer, rate=rate, measured=True)
    met = min(value, value if measured is None else measured) >= against.least
    return Goal(against.text, goal, f"{said}; steps of {seeds_words(seeds)}",
                met if seeds >= LEAST_SEEDS else None)  # fmt: skip


def _best_goal(evidence: Evidence) -> Goal:
    """Of all our rows, vision workloads and networks."""
    text, goal = "to the target against DDP, best", ">= 20 x"
    found = [
        (len(evidence.paired(workload, "ddp", row)), ratio, workload, row, network)
        for workload in VISION
        for row in ROWS
        if ROWS[row].ours
        for network in NETWORKS
        if (ratio := evidence.ratio(workload, "ddp", row, [network], 100.0)) is not None
    ]
    if not found:
        return Goal(text, goal, "not run yet", None)
    seeds, ratio, workload, row, network = max(
        found, key=lambda one: (one[0] >= LEAST_SEEDS, one[1])
    )
    said = (f"{ratio:.2f} x by formula: {ROWS[row].title}, {workload}'s steps, "
            f"{NETWORKS[network].title}; {seeds_words(seeds)}")  # fmt: skip
    return Goal(text, goal, said, ratio >= 20 if seeds >= LEAST_SEEDS else None)


def goals(evidence: Evidence) -> list[Goal]:
    """The issue's table; of vision workloads at the paper's shapes and 100 Mbps."""
    found = [_time_goal(evidence, against) for against in peers_of(evidence)]
    return [found[0], _best_goal(evidence), *found[1:], *measured_goals(evidence)]


def measured_goals(evidence: Evidence) -> list[Goal]:
    rows = {row["name"]: row for row in evidence.measured.get("100mbit", {}).get("rows", [])}
    found = []
    for name, words in (("full", "exact"), ("compacted-0.5", "exact, keep 0.5")):
        over = rows[name]["seconds"] / rows[name]["bound_seconds"] if name in rows else None
        said = "not run yet" if over is None else f"{over:.3f} x"
        found.append(Goal(f"step at 100 Mbps against its own bound, {words}, 5.6 M elements",
                          "<= 1.10 x", said, None if over is None else over <= 1.10))  # fmt: skip
    for name, words in (
        ("levels7-0.5", "7 levels, keep 0.5"),
        ("levels7-0.2", "7 levels, keep 0.2"),
    ):
        more = 1e3 * (rows[name]["seconds"] - rows[name]["bound_seconds"]) if name in rows else None
        said = "not run yet" if more is None else f"+{more:.1f} ms"
        text = f"step at 100 Mbps above its own bound, {words}, 5.6 M elements"
        found.append(Goal(text, "<= +15 ms", said, None if more is None else more <= 15))
    return [*found, *shapes_goals(evidence)]


def shapes_goals(evidence: Evidence) -> list[Goal]:
    """Of all our rows that were measured at the paper's shapes: the worst of each kind."""
    ours = list(filter(is_ours, TIMED_ROWS))
    return [
        _shapes_goal(evidence, [row for row in ours if COSTS[row].levels],
                     "in levels against its own bound", MOST_OVER_BOUND),
        _shapes_goal(evidence, [row for row in ours if not COSTS[row].levels],
                     "exact against its own bound", MOST_OVER_EXACT),
    ]  # fmt: skip


def _shapes_goal(evidence: Evidence, rows: Sequence[str], words: str, most: float) -> Goal:
    """It is met once all were measured."""
    text, goal = f"step at 100 Mbps {words}, the paper's shapes", f"<= {most:g} x"
    over = {(row, network): ratio for row in rows
            for network, ratio in evidence.over_bound(row).items()}  # fmt: skip
    if not over:
        return Goal(text, goal, "not run yet", None)
    row, network = worst = max(over, key=lambda key: over[key])
    entry = evidence.timed(network, row, 100.0)
    assert entry is not None  # Else it was not in over_bound().
    # Nothing is sooner than the work that all sites' trainers and agents share here.
    alone = over[worst] * entry["machine_cpu_seconds"] / entry["processors"] / entry["seconds"]
    each = ", ".join(
        f"{ROWS[own].title if own in ROWS else 'FULL'} at most "
        f"{max(over[key] for key in over if key[0] == own):.2f} x"
        for own in dict.fromkeys(key[0] for key in over)
    )
    said = (f"worst {over[worst]:.3f} x ({NETWORKS[network].title}), of which this machine's "
            f"{entry['processors']} processors, which all sites share, need {alone:.2f} x; median "
            f"{median(over.values()):.3f} x; {each}; {len(over)} of {len(rows) * len(NETWORKS)} "
            "steps")  # fmt: skip
    met = over[worst] <= most
    decided = not met or len(over) == len(rows) * len(NETWORKS)
    return Goal(text, goal, said, met if decided else None)
