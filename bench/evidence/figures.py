"""What the pieces say: steps, ratios of times and gaps. Pure; goals are goals.py, tables tables.py.

A row that has not arrived is never averaged away: its ratio is None, and it is listed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, stdev
from typing import Any, Literal

from bench.evidence.gpu_workloads import IMAGES, NETWORK_OF
from bench.evidence.shapes import NETWORKS
from bench.evidence.step_times_plan import BUCKETS, IN_BUCKETS, READY_ROWS, TOPOLOGY, is_ours
from bench.evidence.times import (
    COSTS,
    RATES_MBPS,
    Cost,
    compression_seconds,
    mean_log,
    mean_step_seconds,
    step_time,
)
from bench.evidence.train import crossing
from bench.evidence.tuning import Factors, Piece
from bench.topologies import Topology

VISION = ("resnet9", "vgg")
OURS = "levels7-0.5"  # The row of the headline.
# The same sums as DDP's, so its steps are DDP's. PacTrain's FULL sends the same.
STEPS_OF = {"hier_fp32": "ddp", BUCKETS: "ddp"}
# Their exchange is the same: measured with ready-made bytes once.
READY_OF = {"topk0.1ef": "topk0.1", "topk0.01ef": "topk0.01"}
# Of a step: by formula; measured with ready-made bytes, what compresses slept; or measured where
# all trainers compress on processors that they share.
Seconds = Literal["formula", "ready", "processors"]
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
    ready: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # As `times`, --ready.

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

    def vision_with(self, peer: str, ours: str = OURS) -> list[str]:
        """Vision workloads that were run with both: a mean over fewer than all says so."""
        return [workload for workload in VISION if self.paired(workload, peer, ours)]

    def partly_words(self, peer: str, ours: str = OURS) -> str:
        """For behind a mean; empty: it is over all vision workloads, or over none."""
        run = self.vision_with(peer, ours)
        return "" if len(run) in (0, len(VISION)) else f" ({' and '.join(run)} alone)"

    def seed_ratios(
        self, workload: str, peer: str, ours: str, networks: Sequence[str], rate: float,
        topology: str = "chain", at_least: bool = False, seconds: Seconds = "formula",
    ) -> list[float] | None:  # fmt: skip
        """Times as fast `ours` is to the target as `peer`, by seeds run with both: the networks'
        mean. None: one has not arrived.

        `at_least`: a peer that has not arrived counts as if its last step had brought it there.
        `seconds`: of a step.
        """
        ratios = []
        for seed in self.paired(workload, peer, ours):
            theirs, own = self.steps(workload, peer, seed), self.steps(workload, ours, seed)
            if theirs is None and at_least:
                theirs = self.pieces[workload, STEPS_OF.get(peer, peer), seed]["steps_run"]
            if theirs is None or own is None:
                return None
            if seconds != "formula":
                ratios.append(theirs / own * mean_log([
                    self.timed_seconds(workload, peer, seed, network, rate, seconds)
                    / self.timed_seconds(workload, ours, seed, network, rate, seconds)
                    for network in networks
                ]))  # fmt: skip
                continue
            ratios.append(mean_log([
                self.seconds_to(workload, peer, seed, theirs, network, rate, topology)
                / self.seconds_to(workload, ours, seed, own, network, rate, topology)
                for network in networks
            ]))  # fmt: skip
        return ratios

    def ratio(
        self, workload: str, peer: str, ours: str, networks: Sequence[str], rate: float,
        topology: str = "chain", seconds: Seconds = "formula",
    ) -> float | None:  # fmt: skip
        """The mean over seeds; None: one has not arrived, or none was run with both."""
        ratios = self.seed_ratios(workload, peer, ours, networks, rate, topology, seconds=seconds)
        return mean_log(ratios) if ratios else None

    def vision_ratios(
        self, peer: str, ours: str = OURS, rate: float = 100.0,
        networks: Sequence[str] = (), at_least: bool = False, seconds: Seconds = "formula",
    ) -> list[list[float]] | None:  # fmt: skip
        """By vision workload that was run, of its seeds; None: a side did not arrive, or no
        network's step was measured where that is asked for. `networks`: empty: all."""
        networks = networks or list(NETWORKS)
        if seconds != "formula":
            networks = self.networks_timed(peer, ours, rate, seconds)
        found = [
            self.seed_ratios(workload, peer, ours, networks, rate, "chain", at_least, seconds)
            for workload in self.vision_with(peer, ours)
            if networks
        ]
        arrived = [ratios for ratios in found if ratios is not None]
        return arrived if arrived and len(arrived) == len(found) else None

    def vision_ratio(
        self, peer: str, ours: str = OURS, rate: float = 100.0,
        at_least: bool = False, seconds: Seconds = "formula",
    ) -> float | None:  # fmt: skip
        """The mean over the vision workloads that were run, as vision_ratios() has them."""
        ratios = self.vision_ratios(peer, ours, rate, (), at_least, seconds)
        return None if ratios is None else mean_log([mean_log(seeds) for seeds in ratios])

    def vision_interval(self, peer: str, rate: float = 100.0) -> tuple[float, float] | None:
        """Of vision_ratio(): 95 % by Student's t of the logarithms, over workloads' seeds."""
        ratios = self.vision_ratios(peer, rate=rate)
        logs = [math.log(ratio) for seeds in ratios or [] for ratio in seeds]
        if len(logs) < 2:
            return None
        middle, width = fmean(logs), half_width(logs, T975)
        return math.exp(middle - width), math.exp(middle + width)

    def timed_seconds(
        self, workload: str, method: str, seed: int, network: str, rate: float, seconds: Seconds
    ) -> float:  # fmt: skip
        """Of a measured step, and by formula what the piece's mask kept beyond the step's."""
        entry = self.timed(network, method, rate, ready=seconds == "ready")
        assert entry is not None, (network, method, rate)  # Else not among networks_timed().
        kept = self.pieces[workload, STEPS_OF.get(method, method), seed]["keep"]
        if kept == 1:
            return float(entry["seconds"])
        step = (method, NETWORKS[network], self.topologies[TOPOLOGY], rate, self.codec_gb_per_s,
                1, 1)  # fmt: skip
        more = mean_step_seconds(*step, kept) - mean_step_seconds(*step)
        return float(entry["seconds"]) + more

    def timed_ratio(
        self, network: str, peer: str, ours: str, rate: float, seconds: Seconds
    ) -> float:
        """Of two rows' measured seconds per step."""
        ready = seconds == "ready"
        both = [self.timed(network, row, rate, ready=ready) for row in (peer, ours)]
        return both[0]["seconds"] / both[1]["seconds"]  # type: ignore[index, no-any-return]

    def networks_timed(self, peer: str, ours: str, rate: float, seconds: Seconds) -> list[str]:
        """Of which a step of both was measured."""
        ready = seconds == "ready"
        return [
            network for network in NETWORKS
            if all(self.timed(network, row, rate, ready=ready) for row in (peer, ours))
        ]  # fmt: skip

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
        rates = " and ".join(f"{factor:g} x" for factor in factors)
        return f", but some seed at {rates} its rate" if factors else ""

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

    def gaps_at_one(self, workload: str, method: str) -> dict[int, float]:
        """gaps() by seed, where both go at the workload's own rate: best ones differ in that."""
        tests = {(p["method"], p["seed"]): p["test"] for p in (*self.pieces.values(), *self.others)
                 if p["workload"] == workload and p["rate_factor"] == 1.0
                 and p["test"] is not None}  # fmt: skip
        return {seed: tests["ddp", seed] - test for (own, seed), test in sorted(tests.items())
                if own == method and ("ddp", seed) in tests}  # fmt: skip

    def at_one_words(self, workload: str, method: str, digits: int = 2) -> str:
        """The mean of gaps_at_one(), and of how many seeds where those are not gaps()'s."""
        gaps = self.gaps_at_one(workload, method)
        if not gaps:
            return "-"
        fewer = len(gaps) != len(self.gaps(workload, method))
        seeds = f", {len(gaps)} seed{'s' * (len(gaps) > 1)}" if fewer else ""
        return f"{fmean(gaps.values()):.{digits}f}{seeds}"

    def vision_gap(self, method: str) -> dict[str, float | None]:
        """The workloads' mean, and the largest of their bounds: networks lose unequally."""
        found = [gaps for workload in VISION if (gaps := self.gaps(workload, method))]
        uppers = [upper95(gaps) for gaps in found]
        known = [upper for upper in uppers if upper is not None]
        return {"mean": fmean(map(fmean, found)) if found else None,
                "upper95": max(known) if known and len(known) == len(uppers) else None}  # fmt: skip

    def timed(
        self, network: str, row: str, rate: float, topology: str = TOPOLOGY, ready: bool = False
    ) -> Piece | None:
        """What `make report-times` measured of it; None: not run."""
        times = self.times if topology == TOPOLOGY else self.elsewhere.get(topology, {})
        rows = [row]
        if ready:
            times = self.ready if topology == TOPOLOGY else {}
            if (cost := COSTS.get(row)) and cost.period > 1:
                return self._own_steps(network, cost, rate)
            rows = [READY_OF.get(row, row)]
            if row in POWERSGD:  # In one bucket or in torch's, whichever is sooner.
                rows.append(row + IN_BUCKETS)
        entries = times.get(network, {}).get("rows", [])
        found = [e for e in entries if e["row"] in rows and e["rate_mbps"] == rate]
        return min(found, key=lambda e: e["seconds"], default=None)

    def _own_steps(self, network: str, cost: Cost, rate: float) -> Piece | None:
        """After so many of them weights are summed as DDP sums gradients, in one bucket."""
        ddp, compute = (
            self.timed(network, "ddp", rate, ready=True),
            NETWORKS[network].compute_seconds,
        )
        if ddp is None:
            return None
        more = compression_seconds(cost, NETWORKS[network])
        return {**ddp, "seconds": compute + (ddp["seconds"] - compute) / cost.period + more}

    def over_bound(self, row: str, ready: bool = True) -> dict[str, float]:
        """By network: measured seconds over those of the row's bytes on the link, at 100 Mbps."""
        rate = RATES_MBPS[0]
        chain = self.topologies[TOPOLOGY]
        found = {}
        for network, shape in NETWORKS.items():
            if (entry := self.timed(network, row, rate, ready=ready)) is not None:
                bound = step_time(row, shape, chain, rate, self.codec_gb_per_s).bound
                found[network] = entry["seconds"] / bound
        return found

    def share_of_bound(self) -> float | None:
        """The median over our measured rows at 100 Mbps, also at the paper's shapes, where bytes
        are ready-made."""
        rows = self.measured.get("100mbit", {}).get("rows", [])
        shares = [row["bound_seconds"] / row["seconds"] for row in rows
                  if row["name"].startswith(("full", "compacted", "levels"))]  # fmt: skip
        ours = filter(is_ours, READY_ROWS)
        shares += [1 / over for row in ours for over in self.over_bound(row).values()]
        return median(shares) if shares else None


def upper95(values: Sequence[float]) -> float | None:
    """Of the mean, one-sided; infinite: a run diverged. None: one value says nothing of its
    spread."""
    if len(values) < 2:
        return None
    if not all(map(math.isfinite, values)):
        return math.inf
    return fmean(values) + half_width(values, T95)


def half_width(values: Sequence[float], quantiles: Sequence[float]) -> float:
    """Of the mean's interval, two values or more."""
    t = quantiles[min(len(values) - 2, len(quantiles) - 1)]
    return t * stdev(values) / math.sqrt(len(values))


def soonest(
    evidence: Evidence, peers: Sequence[str], seconds: Seconds, rate: float = 100.0,
    at_least: bool = False,
) -> tuple[float, str] | None:  # fmt: skip
    """Times as fast as the soonest of `peers` to the target, and which that is. None: none
    arrived. `at_least`: as Evidence.seed_ratios()."""
    ratios = {
        peer: evidence.vision_ratio(peer, rate=rate, at_least=at_least, seconds=seconds)
        for peer in peers
    }
    return min(((ratio, peer) for peer, ratio in ratios.items() if ratio is not None), default=None)


def against_of(evidence: Evidence, seconds: Seconds) -> dict[str, float | None]:
    """Of the headline's peers: as many times as soon. Only of those that were run with all vision
    workloads."""

    def ratio(*peers: str) -> float | None:
        whole = [peer for peer in peers if not evidence.partly_words(peer)]
        found = soonest(evidence, whole, seconds)
        return None if found is None else found[0]

    return {
        "ddp": ratio("ddp"),
        # By formula DDP's buckets cost the same.
        "best_ddp": ratio("ddp", *([] if seconds == "formula" else [BUCKETS])),
        "hier_bf16": ratio("hier_bf16"),
        "fp16": ratio("fp16"),
        "topk0.1": ratio("topk0.1"),
        "topk0.01": ratio("topk0.01"),
        "paper": ratio("paper"),
        "powersgd_best": ratio(*POWERSGD),
        "dgc": ratio(*DGC),
        "diloco30": ratio("diloco30"),
    }


def headline(evidence: Evidence) -> dict[str, Any]:
    """The last line of make report. `against` is the lesser of what the formula says and what was
    measured with ready-made bytes: both charge compression at the accelerator's speed, and by
    formula nothing waits. Where trainers compress on few processors it may be less."""
    formula = against_of(evidence, "formula")
    measured = against_of(evidence, "ready")
    least = {peer: min((one for one in (formula[peer], measured[peer]) if one), default=None)
             for peer in formula}  # fmt: skip
    seeds = {workload: evidence.seeds(workload, OURS) for workload in evidence.workloads()}
    return {
        "against": rounded(least),
        "against_by_formula": rounded(formula),
        "against_measured": rounded(measured),
        "against_on_processors": rounded(against_of(evidence, "processors")),
        "share_of_bound": evidence.share_of_bound(),
        "gap_keep0.5": evidence.vision_gap("levels7-0.5"),
        "gap_keep0.2": evidence.vision_gap("levels7-0.2"),
        "seeds": seeds,
        # Null above means then that not all was run; else a side was not reached.
        "vision_not_run": [w for w in VISION if not evidence.seeds(w, OURS)],
        "not_reached": [list(key) for key in evidence.not_reached()],
    }


def rounded(ratios: Mapping[str, float | None]) -> dict[str, float | None]:
    return {peer: None if ratio is None else round(ratio, 3) for peer, ratio in ratios.items()}
