"""docs/results.md from the figures: missed goals and losing cases first. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.evidence import (
    accuracy_tables,
    advice,
    experiment_tables,
    figures,
    goals,
    gpu_tables,
    losing,
    run_list,
    run_tables,
    scale_tables,
    step_times_tables,
    steps_tables,
    summary,
)
from bench.evidence.experiment_tables import NOT_RUN, Experiments, Pieces, table
from bench.evidence.figures import OURS, VISION, Evidence, Seconds
from bench.evidence.goals import Goal
from bench.evidence.gpu_workloads import STEPS
from bench.evidence.gpu_workloads import TITLES as ON_GPU
from bench.evidence.losing import title
from bench.evidence.methods import ROWS
from bench.evidence.runs import COMPUTE_SECONDS
from bench.evidence.scale import Speeds
from bench.evidence.shapes import NETWORKS, Network
from bench.evidence.step_times_plan import is_ours
from bench.evidence.times import (
    COSTS,
    PACKED_ABOVE_MBPS,
    RATES_MBPS,
    SYSTEMS,
    Formula,
    step_time,
)
from bench.evidence.train import MOST_TIMES, WORKERS
from bench.exchange_layout import model_shapes
from bench.figure_blocks import TITLES as MEASURED_TITLES
from bench.figure_blocks import short

UNDECIDED = "not decided yet"
Blocks = Mapping[str, Mapping[str, float]]  # By workload and keep.
KEEPS = (0.5, 0.3, 0.2, 0.1, 0.05)
# Rows of `make bench-exchange` and what they are called here.
SAME = {"ddp-gloo": "ddp", "fp16": "fp16", "powersgd1": "powersgd1", "powersgd4": "powersgd4",
        "topk0.1": "topk0.1ef", "topk0.01": "topk0.01ef", "compacted-0.5": "exact-0.5",
        "levels7-0.5": "levels7-0.5", "levels7-0.2": "levels7-0.2"}  # fmt: skip
MEASURED_RATES = {"100mbit": 100.0, "500mbit": 500.0, "1gbit": 1000.0}


def goal_table(goals: Sequence[Goal]) -> str:
    """The missed first, then what was not run, then the met."""
    order = {False: 0, None: 1, True: 2}
    words = {False: "**missed**", None: UNDECIDED, True: "met"}
    return table(["figure", "goal", "found", "verdict"],
                 [[g.text, g.goal, g.value, words[g.met]]
                  for g in sorted(goals, key=lambda g: order[g.met])])  # fmt: skip


def claims_table(evidence: Evidence, pieces: Pieces) -> str:
    """What the paper says, and what was found of it here."""

    def against(peer: str) -> str:
        ratio = evidence.vision_ratio(peer)
        if ratio is not None:
            return f"{ratio:.2f} x{evidence.partly_words(peer)}"
        least = evidence.vision_ratio(peer, at_least=True)
        late = " and ".join(evidence.not_arrived(peer))
        return f"> {least:.2f} x: it did not arrive ({late})" if least else NOT_RUN

    def schemes_own(peer: str) -> str:
        """Of the paper's scheme, by workload."""
        said = []
        for workload in VISION:
            if evidence.paired(workload, peer, "paper"):
                ratio = evidence.ratio(workload, peer, "paper", list(NETWORKS), 100.0)
                said.append(f"{'did not arrive' if ratio is None else f'{ratio:.2f} x'} "
                            f"({workload})")  # fmt: skip
        return ", ".join(said) or NOT_RUN

    def lost(method: str) -> str:
        found = {w: gaps for w in VISION if (gaps := evidence.gaps(w, method))}
        return ", ".join(f"{fmean(gaps):.2f} ({w})" for w, gaps in found.items()) or NOT_RUN

    def sooner_holds(peer: str, claimed: float) -> list[str]:
        """Of ours, and of the scheme, which claims its best case: on some workload."""
        ratio = evidence.vision_ratio(peer, at_least=True)
        own = [evidence.ratio(workload, peer, "paper", list(NETWORKS), 100.0)
               for workload in VISION if evidence.paired(workload, peer, "paper")]  # fmt: skip
        return [_holds(ratio and ratio >= claimed),
                _holds(any(r and r >= claimed for r in own) if own else None)]  # fmt: skip

    def lost_holds(method: str) -> str:
        found = [gaps for w in VISION if (gaps := evidence.gaps(w, method))]
        return _holds(all(fmean(gaps) < 2 for gaps in found) if found else None)

    rows = []
    for words, peer, claimed in (
        ("up to 8.72 x as soon at the target as all-reduce", "ddp", 8.72),
        ("1.25 to 7.05 x as soon as FP16", "fp16", 1.25),
        ("... as TopK-0.1", "topk0.1", 1.25),
        ("... as TopK-0.01", "topk0.01", 1.25),
    ):
        ours, theirs = sooner_holds(peer, claimed)
        rows.append([words, against(peer), ours, schemes_own(peer), theirs])
    rows.append(["under 2 % of accuracy lost with half pruned: points below DDP", lost(OURS),
                 lost_holds(OURS), lost("paper"), lost_holds("paper")])  # fmt: skip
    alone = f"the mask alone, sent exactly: {lost('exact-0.2')}"
    rows.append(["under 2 % lost with 80 % pruned", f"{lost('levels7-0.2')}; {alone}",
                 lost_holds("levels7-0.2"), NOT_RUN, "-"])  # fmt: skip
    ratios = experiment_tables.noise_ratios(pieces)
    better = [f"{keep:g}" for keep, own in ratios.items() if max(own) < 1]
    holds = _holds(len(better) == len(ratios) if ratios else None)
    if 0 < len(better) < len(ratios):
        holds += f", but at keep {' and '.join(better)}"
    rows.append(["pruned networks bear noise better: what [the same noise](#the-same-noise-with-"
                 "and-without-a-mask) costs, of what it costs without a mask",
                 experiment_tables.noise_share(ratios) or NOT_RUN, holds, "-", "-"])  # fmt: skip
    return table(["the paper says", f"{ROWS[OURS].title}, 100 Mbps, by formula", "holds",
                  "the paper's own scheme here", "holds somewhere"], rows)  # fmt: skip


def _holds(said: bool | float | None) -> str:
    return "-" if said is None else "yes" if said else "**no**"


def measured_against(evidence: Evidence) -> str:
    """Times to the target by formula and by measured seconds, in both ways."""
    ways: tuple[Seconds, ...] = ("ready", "processors")
    rows = []
    for peer in (row for row in COSTS if not is_ours(row)):
        cells, any_timed = [], False
        for rate in RATES_MBPS:
            timed = [bool(evidence.networks_timed(peer, OURS, rate, how)) for how in ways]
            any_timed |= any(timed)
            late = evidence.vision_ratio(peer, rate=rate) is None
            said = []
            for how in ("formula", *ways):
                ratio = evidence.vision_ratio(peer, rate=rate, at_least=late, seconds=how)
                count = len(evidence.networks_timed(peer, OURS, rate, how))
                of = "" if how == "formula" or count == len(NETWORKS) else f" ({count} networks)"
                said.append("-" if ratio is None else f"{'> ' * late}{ratio:.2f} x{of}")
            cells.append(" / ".join(said))
        if any_timed:
            seeds = ", ".join(f"{len(evidence.paired(workload, peer, OURS))} of {workload}"
                              for workload in evidence.vision_with(peer))  # fmt: skip
            rows.append([title(peer) + evidence.partly_words(peer), *cells, seeds])
    rates = (f"{rate:g} Mbps, formula / compression slept / on processors" for rate in RATES_MBPS)
    return table(["against", *rates, "seeds"], rows)


def touched_words() -> str:
    """Of an element, by method; those of equal bytes together."""
    by_bytes: dict[float, list[str]] = {}
    for method, cost in COSTS.items():
        if cost.touched:
            by_bytes.setdefault(cost.touched, []).append(title(method))
    return "; ".join(f"{touched:g} bytes per element of {', '.join(methods)}"
                     for touched, methods in sorted(by_bytes.items()))  # fmt: skip


def times_table(evidence: Evidence, topology: str, rate: float) -> str:
    rows = []
    for method in COSTS:
        times = [step_time(method, network, evidence.topologies[topology], rate,
                           evidence.codec_gb_per_s) for network in NETWORKS.values()]  # fmt: skip
        rows.append([title(method), *(f"{short(t.seconds)} ({short(t.bound)})" for t in times)])
    return table(
        ["seconds per step (bound of its bytes)", *(n.title for n in NETWORKS.values())], rows
    )


def tta_table(evidence: Evidence, workload: str) -> str:
    """DDP's time to the target over each row's: the mean of the shapes that go with it."""
    rows = []
    networks = evidence.networks(workload)
    if not networks:
        return "Step times of this network are not computed."
    for method in COSTS:
        if not evidence.seeds(workload, method):
            continue
        cells = []
        for topology in evidence.topologies:
            rates = RATES_MBPS if topology == "chain" else RATES_MBPS[:1]
            for rate in rates:
                ratio = evidence.ratio(workload, "ddp", method, networks, rate, topology)
                cells.append("not reached" if ratio is None else f"{ratio:.2f} x")
        rows.append([title(method), *cells])
    heads = []
    for topology in evidence.topologies:
        rates = RATES_MBPS if topology == "chain" else RATES_MBPS[:1]
        for rate in rates:
            own = evidence.topologies[topology].layout.own_mbps or rate
            world = evidence.topologies[topology].layout.world
            others = "" if world == WORKERS else f", steps of {WORKERS} workers, bytes of {world}"
            heads.append(f"{topology}, {own:g} Mbps{others}")
    return table(["as many times as fast as DDP", *heads], rows)


def measured_table(evidence: Evidence) -> str:
    """What `make bench-exchange` measured beside what the formula says of its shapes."""
    rows = []
    for rate, asked in MEASURED_RATES.items():
        found = evidence.measured.get(rate)
        if not found:
            rows.append([rate, *[NOT_RUN] * 4])
            continue
        network = Network("as measured", model_shapes(found["elements"]), 0.0)
        for row in found["rows"]:
            if row["name"] not in SAME:
                continue
            formula = step_time(SAME[row["name"]], network, evidence.topologies["chain"], asked,
                                evidence.codec_gb_per_s).seconds  # fmt: skip
            rows.append([rate, MEASURED_TITLES[row["name"]], short(row["seconds"]), short(formula),
                         f"{row['seconds'] / formula:.2f}"])  # fmt: skip
    return table(["rate", "row", "measured, seconds", "formula", "measured / formula"], rows)


def blocks_of(blocks: Blocks, keep: float) -> float:
    """Of the workloads' masks those with fewest blocks in use; not counted: all are."""
    return min((shares[f"{keep:g}"] for shares in blocks.values()), default=1.0)


def blocks_words(blocks: Blocks) -> str:
    if not blocks:
        return f"Blocks in use of our masks: {NOT_RUN}; here all are."
    said = [
        f"{workload} " + ", ".join(f"{share:.3f} at {keep}" for keep, share in shares.items())
        for workload, shares in sorted(blocks.items())
    ]
    return f"Share of 256-blocks in use, counted on our magnitude masks by keep: {'; '.join(said)}."


def systems_table(blocks: Blocks) -> str:
    def bytes_at(of: Callable[[float], float]) -> list[str]:
        return [f"{of(keep):.3g}" for keep in KEEPS]

    def own(system: Formula) -> Callable[[float], float]:
        if not system.by_blocks:
            return system.bytes_of  # type: ignore[no-any-return]
        return lambda keep: float(system.bytes_of(keep)) * blocks_of(blocks, keep)

    rows = [[s.title, s.formula, *bytes_at(own(s)), s.needs, s.source] for s in SYSTEMS]
    rows.append(["**PacTrain, 7 levels**", "2.35 k / 8", *bytes_at(lambda keep: 2.346 * keep / 8),
                 "masks that all workers share", "here"])  # fmt: skip
    return table(["system", "bytes per element and direction", *(f"k = {k}" for k in KEEPS),
                  "what it needs", "source"], rows)  # fmt: skip


PAGE = Path(__file__).with_suffix("").with_name("results.md.in").read_text()
WHEN = Path(__file__).with_name("when.md.in").read_text()
SECTION = """## {title}

Rate: of the workload's own the multiple that was chosen; not tuned: 1 x. Steps to the target;
after DDP's steps the test score ({unit}) and what is missing to DDP's; r is the share of the
batch that a step's error costs.

{steps}

![Curves](images/results-{workload}.png)

Time to the target (steps x seconds, by formula; other topologies at 100 Mbps):

{times}
"""


def workload_section(evidence: Evidence, workload: str, title: str) -> str:
    unit = evidence.targets.get(workload, {}).get("unit", "")
    return SECTION.format(title=title, workload=workload, unit=unit,
                          steps=steps_tables.steps_table(evidence, workload),
                          times=tta_table(evidence, workload))  # fmt: skip


@dataclass(frozen=True)
class AtScale:
    """What was measured, simulated and counted beside the steps to accuracy."""

    testbed: scale_tables.Testbed = field(default_factory=dict)
    speeds: Speeds = field(default_factory=Speeds)
    simulated: Sequence[Mapping[str, Any]] = ()
    many: Sequence[Mapping[str, Any]] = ()
    blocks: Blocks = field(default_factory=dict)
    runs: Sequence[Mapping[str, Any]] = ()


def page(
    evidence: Evidence, titles: dict[str, str], experiments: Experiments, at_scale: AtScale
) -> str:
    pieces = Pieces(experiments)
    compared = scale_tables.compare(at_scale.testbed, at_scale.speeds)
    chain = evidence.topologies["chain"]
    network = NETWORKS["resnet152"]
    bound = step_time(OURS, network, chain, 100.0, evidence.codec_gb_per_s)
    losses = losing.losing_cases(evidence)
    sections = {w: workload_section(evidence, w, titles[w]) for w in evidence.workloads()}
    versions = sorted({f"torch {p['versions']['torch']}" for p in evidence.pieces.values()})
    machines = sorted({p["machine"] for p in evidence.pieces.values()})
    return PAGE.format(
        runs=run_list.run_list(evidence),
        hours=run_list.hours_words(evidence, experiments, at_scale.runs),
        not_reached=run_list.not_reached_words(evidence),
        limits=run_list.limits_words(evidence, MOST_TIMES),
        settings=run_list.settings_table(),
        pieces_by_machine=run_list.machines_words(evidence),
        spread=step_times_tables.spread_words(evidence),
        late=len(evidence.not_reached()),
        pieces=len(evidence.pieces),
        by_sites=losing.by_sites_table(evidence),
        ours=ROWS[OURS].title,
        goals=goal_table(
            [
                *goals.goals(evidence),
                *gpu_tables.accuracy_goals(evidence),
                scale_tables.simulator_goal(compared),
                *run_tables.runs_goals(at_scale.runs),
                run_list.hours_goal(evidence),
            ]
        ),
        resnet_bound=short(bound.bound),
        resnet_compute=short(network.compute_seconds),
        share=f"{network.compute_seconds / bound.seconds:.2f}",
        sooner=losing.sooner_words(evidence),
        warmed=losing.warmed_words(evidence),
        tuned=run_list.tuning_words(evidence),
        ends=run_list.ends_words(evidence),
        plan=run_list.plan_words(evidence),
        losing=losing.short_table(evidence, losses),
        losing_measured=step_times_tables.losing(evidence),
        losing_steps_slept=step_times_tables.losing(evidence, ready=True),
        losses_measured=str(len(slept := losing.losing_cases(evidence, "ready"))),
        cases_measured=str(len(losing.measured_cases(evidence))),
        losing_slept=losing.short_table(evidence, slept),
        losses=len(losses),
        lost_cases=losing.cases_words(evidence),
        lost_slept=losing.cases_words(evidence, "ready"),
        cases=len(list(losing.cases(evidence))),
        losing_whole=losing.whole_table(evidence, losses),
        claims=claims_table(evidence, pieces),
        measured_against=measured_against(evidence),
        accuracy=accuracy_tables.accuracy_table(evidence),
        long=experiment_tables.long_words(pieces),
        outer_words=experiment_tables.outer_words(pieces),
        workloads="\n".join(section for w, section in sections.items() if w not in ON_GPU),
        gpu="\n".join(section for w, section in sections.items() if w in ON_GPU),
        gpu_runs=gpu_tables.run_table(evidence),
        gpu_steps=STEPS,
        amounts=experiment_tables.amounts_table(pieces),
        criteria=experiment_tables.criteria_table(pieces),
        fresh=experiment_tables.fresh_table(pieces),
        noise=experiment_tables.noise_table(pieces),
        noise_words=experiment_tables.noise_words(pieces),
        sites=experiment_tables.sites_table(pieces),
        risks=experiment_tables.risk_table(pieces),
        risk_words=experiment_tables.risk_words(pieces),
        compute=", ".join(f"{n.title} {n.compute_seconds:g} s" for n in NETWORKS.values()),
        touched=touched_words(),
        codec=f"{evidence.codec_gb_per_s:.2f}",
        times=times_table(evidence, "chain", 100.0),
        packed_above=f"{PACKED_ABOVE_MBPS:g}",
        one_bucket=step_times_tables.one_bucket_words(evidence),
        timed_ready=step_times_tables.section(evidence, ready=True),
        timed=step_times_tables.section(evidence),
        timed_elsewhere=step_times_tables.elsewhere(evidence),
        timed_missing=step_times_tables.missing_words(evidence),
        measured=measured_table(evidence),
        real_compute=f"{COMPUTE_SECONDS:g}",
        real_runs=run_tables.runs_table(at_scale.runs),
        real_runs_formula=run_tables.formula_words(at_scale.runs),
        real_runs_missing=run_tables.missing_words(at_scale.runs),
        real_runs_words=run_tables.runs_words(at_scale.runs),
        systems=systems_table(at_scale.blocks),
        blocks=blocks_words(at_scale.blocks),
        testbed=scale_tables.testbed_table(compared),
        losing_at_scale=scale_tables.losing_words(at_scale.simulated),
        scale_chain=scale_tables.scale_table(at_scale.simulated, "chain"),
        scale_star=scale_tables.scale_table(at_scale.simulated, "star"),
        growing=scale_tables.growing_table(),
        many=scale_tables.many_table(at_scale.many),
        versions="; ".join([*versions, *machines]),
    )


def when_page(evidence: Evidence, experiments: Experiments) -> str:
    """docs/when-it-helps.md."""
    said = advice.sections(evidence).replace("](#", "](results.md#")
    return WHEN.format(summary=summary.summary_table(evidence), advice=said,
                       frozen=experiment_tables.frozen_words(Pieces(experiments)),
                       sooner=losing.sooner_words(evidence))  # fmt: skip


def last_line(evidence: Evidence) -> str:
    found: dict[str, Any] = {"headline": figures.headline(evidence)}
    return json.dumps(found)
