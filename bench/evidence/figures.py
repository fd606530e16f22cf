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
from bench.evidence.step_times_plan import ROWS as TIMED_ROWS
from bench.evidence.step_times_plan import TOPOLOGY, is_ours
from bench.evidence.times import mean_log, mean_step_seconds, step_time
from bench.evidence.train import crossing
from bench.evidence.tuning import Factors, Piece
from bench.topologies import Topology

VISION = ("resnet9", "vgg")
OURS = "levels7-0.5"  # The row of the headline.
# The same sums as DDP's, so its steps are DDP's. PacTrain's FULL sends the same.
STEPS_OF = {"hier_fp32": "ddp"}
LEAST_SEEDS = 3  # Fewer decide no goal.
MOST_OVER_BOUND = 1.25  # Of a step in levels, at the paper's shapes.
POWERSGD, DGC = ("powersgd1", "powersgd2", "powersgd4"), ("dgc", "dgc_cold")
# One-sided 95 % of Student's t, by degrees of freedom.
T95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895)


@dataclass
class Evidence:
    """Each method's pieces of its factor of the rate; the fixed targets; what is measured."""

    pieces: Mapping[tuple[str, str, int], Piece]
    targets: Mapping[str, Mapping[str, Any]]
    topologies: Mapping[str, Topology]
    measured: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # Rate: figures.
    codec_gb_per_s: float = 0.0
    times: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # Network: step_times.
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
        """Of the first `steps` of a piece, by formula."""
        planned = self.pieces[workload, STEPS_OF.get(method, method), seed]["steps"]
        return steps * mean_step_seconds(
            method, NETWORKS[network], self.topologies[topology], rate, self.codec_gb_per_s,
            steps, planned,
        )  # fmt: skip

    def paired(self, workload: str, peer: str, ours: str) -> list[int]:
        """Seeds that were run with both."""
        return sorted(set(self.seeds(workload, peer)) & set(self.seeds(workload, ours)))

    def ratio(
        self, workload: str, peer: str, ours: str, networks: Sequence[str], rate: float,
        topology: str = "chain", at_least: bool = False,
    ) -> float | None:  # fmt: skip
        """Times as fast `ours` is to the target as `peer`: seeds paired, networks' mean.

        `at_least`: a peer that has not arrived counts as if its last step had brought it there.
        """
        ratios = []
        for seed in self.paired(workload, peer, ours):
            theirs, own = self.steps(workload, peer, seed), self.steps(workload, ours, seed)
            if theirs is None and at_least:
                theirs = self.pieces[workload, STEPS_OF.get(peer, peer), seed]["steps_run"]
            if theirs is None or own is None:
                return None
            ratios += [
                self.seconds_to(workload, peer, seed, theirs, network, rate, topology)
                / self.seconds_to(workload, ours, seed, own, network, rate, topology)
                for network in networks
            ]  # fmt: skip
        return mean_log(ratios) if ratios else None

    def vision_ratio(
        self, peer: str, ours: str = OURS, rate: float = 100.0, at_least: bool = False
    ) -> float | None:
        """The mean over the vision workloads that were run; None: a side did not arrive."""
        ratios = [
            self.ratio(workload, peer, ours, list(NETWORKS), rate, at_least=at_least)
            for workload in VISION
            if self.paired(workload, peer, ours)
        ]
        found = [ratio for ratio in ratios if ratio is not None]
        return mean_log(found) if found and len(found) == len(ratios) else None

    def gaps(self, workload: str, method: str) -> list[float]:
        """DDP's test score minus the row's, of equal seeds, after DDP's steps."""
        return [
            self.pieces[workload, "ddp", seed]["test"] - self.pieces[workload, method, seed]["test"]
            for seed in self.seeds(workload, method)
            if (workload, "ddp", seed) in self.pieces and (workload, method, seed) in self.pieces
        ]

    def vision_gap(self, method: str) -> dict[str, float | None]:
        per_seed = [gap for workload in VISION for gap in self.gaps(workload, method)]
        return {"mean": fmean(per_seed) if per_seed else None, "upper95": upper95(per_seed)}

    def timed(self, network: str, row: str, rate: float) -> Piece | None:
        """What `make report-times` measured of it; None: not run."""
        entries = self.times.get(network, {}).get("rows", [])
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
    t = T95[min(len(values) - 2, len(T95) - 1)]
    return fmean(values) + t * stdev(values) / math.sqrt(len(values))


def best_of(evidence: Evidence, rows: Sequence[str]) -> str | None:
    """The one that is fastest to the target at 100 Mbps."""
    ratios = {row: evidence.vision_ratio(row) for row in rows}
    arrived = {row: ratio for row, ratio in ratios.items() if ratio is not None}
    return min(arrived, key=lambda row: arrived[row]) if arrived else None


def headline(evidence: Evidence) -> dict[str, Any]:
    """The last line of make report."""
    powersgd, dgc = best_of(evidence, POWERSGD), best_of(evidence, DGC)
    against = {
        "ddp": evidence.vision_ratio("ddp"),
        # By formula DDP's buckets cost the same; `make bench-exchange` measures both.
        "best_ddp": evidence.vision_ratio("ddp"),
        "hier_bf16": evidence.vision_ratio("hier_bf16"),
        "fp16": evidence.vision_ratio("fp16"),
        "topk0.1": evidence.vision_ratio("topk0.1"),
        "topk0.01": evidence.vision_ratio("topk0.01"),
        "paper": evidence.vision_ratio("paper"),
        "powersgd_best": evidence.vision_ratio(powersgd) if powersgd else None,
        "dgc": evidence.vision_ratio(dgc) if dgc else None,
        "diloco30": evidence.vision_ratio("diloco30"),
    }
    seeds = {workload: evidence.seeds(workload, OURS) for workload in evidence.workloads()}
    return {
        "against": {peer: None if r is None else round(r, 3) for peer, r in against.items()},
        "share_of_bound": evidence.share_of_bound(),
        "gap_keep0.5": evidence.vision_gap("levels7-0.5"),
        "gap_keep0.2": evidence.vision_gap("levels7-0.2"),
        "seeds": seeds,
        "not_reached": [list(key) for key in evidence.not_reached()],
    }


@dataclass(frozen=True)
class Goal:
    text: str
    goal: str
    value: str
    met: bool | None  # None: not run yet.


def _at_least(
    text: str, value: float | None, least: float, seeds: int, late: float | None = None
) -> Goal:
    """Few seeds decide nothing; and a ratio here is steps that ran by seconds of a formula.

    `late`: the least that it can be, of a peer that did not arrive.
    """
    if value is not None:
        said = f"{value:.2f} x"
    elif late is not None:
        said, value = f"> {late:.2f} x, it did not arrive", late
    else:
        return Goal(text, f">= {least:g} x", "not run yet", None)
    said += f", steps of {seeds} seed{'s' * (seeds != 1)}, seconds by formula"
    return Goal(text, f">= {least:g} x", said, value >= least if seeds >= LEAST_SEEDS else None)


def goals(evidence: Evidence) -> list[Goal]:
    """The issue's table; of vision workloads at the paper's shapes and 100 Mbps."""
    best, of_best = max(
        (
            (ratio, len(evidence.paired(workload, "ddp", row)))
            for workload in VISION
            for row in ROWS
            if ROWS[row].ours
            for network in NETWORKS
            if (ratio := evidence.ratio(workload, "ddp", row, [network], 100.0)) is not None
        ),
        key=lambda one: (one[1] >= LEAST_SEEDS, one[0]),
        default=(None, 0),
    )
    peers = [
        ("to the target against DDP, mean", "ddp", 8.72, 100.0),
        ("against fp16", "fp16", 4, 100.0),
        ("against TopK-0.1", "topk0.1", 8, 100.0),
        ("against TopK-0.01", "topk0.01", 2, 100.0),
        ("against the paper's scheme", "paper", 3, 100.0),
        ("against hierarchical bf16", "hier_bf16", 3, 100.0),
        ("against the best PowerSGD", best_of(evidence, POWERSGD) or POWERSGD[0], 1.2, 100.0),
        ("against the best DGC", best_of(evidence, DGC) or DGC[0], 1.5, 100.0),
        ("against DDP at 1 Gbps", "ddp", 2, 1000.0),
    ]

    def seeds(peer: str) -> int:
        counts = (len(evidence.paired(workload, peer, OURS)) for workload in VISION)
        return min(filter(None, counts), default=0)

    found = [
        _at_least(text, evidence.vision_ratio(peer, rate=rate), least, seeds(peer),
                  evidence.vision_ratio(peer, rate=rate, at_least=True))
        for text, peer, least, rate in peers
    ]  # fmt: skip
    found.insert(1, _at_least("to the target against DDP, best", best, 20, of_best))
    return found + measured_goals(evidence)


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
    return [*found, shapes_goal(evidence)]


def shapes_goal(evidence: Evidence) -> Goal:
    """Of the worst network; it is met once all four were measured."""
    over = evidence.over_bound(OURS)
    text = "7 levels against its own bound at the paper's shapes"
    if not over:
        return Goal(text, f"<= {MOST_OVER_BOUND} x", "not run yet", None)
    worst = max(over, key=lambda network: over[network])
    entry = evidence.timed(worst, OURS, 100.0)
    assert entry is not None  # Else it was not in over_bound().
    # Nothing is sooner than the work that all sites' trainers and agents share here.
    alone = over[worst] * entry["machine_cpu_seconds"] / entry["processors"] / entry["seconds"]
    said = (f"worst {over[worst]:.3f} x ({NETWORKS[worst].title}), of which this machine's "
            f"{entry['processors']} processors, which all sites share, need {alone:.2f} x; median "
            f"{median(over.values()):.3f} x, {len(over)} of {len(NETWORKS)} networks")  # fmt: skip
    met = over[worst] <= MOST_OVER_BOUND
    decided = not met or len(over) == len(NETWORKS)
    return Goal(text, f"<= {MOST_OVER_BOUND} x", said, met if decided else None)
