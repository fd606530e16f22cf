"""The evidence's step times, figures and page."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.evidence import (
    accuracy_tables,
    blocks,
    figures,
    goals,
    gpu_tables,
    losing,
    many,
    report,
    run_list,
    scale,
    scale_tables,
    steps,
    tables,
    times,
)
from bench.evidence.blocks import filled_share
from bench.evidence.experiment_tables import Pieces
from bench.evidence.figures import Evidence, headline, upper95
from bench.evidence.methods import ROWS
from bench.evidence.shapes import NETWORKS
from bench.evidence.times import COSTS, step_time
from bench.evidence.workloads import ROOT, ByteTransformer, Workload
from bench.topologies import topologies

RESNET18 = NETWORKS["resnet18"]
TITLES = {"resnet9": "ResNet-9", "transformer": "transformer"}


def piece(method: str, seed: int, arrives: int | None, test: float) -> dict[str, Any]:
    """A row that is at the target from that step on."""
    curve = [(n, 80.0 if arrives and n >= arrives else 70.0) for n in range(10, 81, 10)]
    return {"workload": "resnet9", "method": method, "seed": seed, "curve": curve, "test": test,
            "bytes_per_element": 1.0, "keep": 1.0, "risk": 0.1, "cpu_seconds": 36.0,
            "rate_factor": 1.0, "steps": 80, "steps_run": 80, "versions": {"torch": "2"},
            "machine": "this"}  # fmt: skip


def evidence(*pieces: dict[str, Any]) -> Evidence:
    found = {(p["workload"], str(p["method"]), int(p["seed"])): p for p in pieces}
    target = {"target": 75.0, "ddp_finals": {"1": 76.0}, "below": 1.0, "unit": "points"}
    return Evidence(found, {p["workload"]: target for p in pieces}, topologies(), {}, 2.8)


def on_both(*pieces: dict[str, Any]) -> list[dict[str, Any]]:
    """Of both vision workloads the same."""
    return [piece | {"workload": workload} for piece in pieces for workload in figures.VISION]


def test_methods_that_were_run_at_one_rate_only_are_named() -> None:
    others = [piece("fp16", 1, 30, 80.0) | {"rate_factor": factor} for factor in (0.5, 2.0)]
    found = replace(evidence(piece("fp16", 1, 30, 80.0), piece("dgc", 1, 30, 80.0)), others=others)
    assert run_list.tuning_words(found) == "resnet9: 0 methods tuned"
    found = replace(found, factors={("resnet9", "fp16"): 0.5})
    assert run_list.tuning_words(found) == (
        "resnet9: 1 methods tuned, of which 1 took 0.5 x, 0 took 2 x; at 1 x without a try: "
        "DGC, density 0.001"
    )
    tuned = replace(found, factors={("resnet9", "fp16"): 1.0})
    assert "tried" not in run_list.tuning_words(tuned)


def test_bytes_are_those_of_the_plans_table() -> None:
    chain = topologies()["chain"]
    per_element = {
        name: round(step_time(name, RESNET18, chain, 100, 0).bytes_per_element, 3) for name in COSTS
    }
    expected = {"ddp": 7.0, "fp16": 3.5, "topk0.1": 5.6, "dgc": 0.056, "paper": 0.875,
                "terngrad": 1.75, "thc": 3.0, "exact-0.5": 2.0, "levels7-0.5": 0.147,
                "powersgd1": 0.029, "local30": 0.233}  # fmt: skip
    assert {name: per_element[name] for name in expected} == expected
    assert set(ROWS) <= set(COSTS)


def test_what_a_mask_left_is_charged_not_what_was_asked_for() -> None:
    asked = evidence(piece("ddp", 1, 20, 76), piece("exact-0.5", 1, 20, 75) | {"keep": 0.5})
    left = evidence(piece("ddp", 1, 20, 76), piece("exact-0.5", 1, 20, 75) | {"keep": 0.625})
    ratios = [found.ratio("resnet9", "ddp", "exact-0.5", ["vgg19"], 100) for found in (asked, left)]
    assert ratios[0] is not None and ratios[1] is not None
    assert ratios[0] / ratios[1] == pytest.approx(1.25, abs=0.01)
    rows = [{"row": row, "rate_mbps": 100.0, "seconds": 20.0} for row in ("ddp", "exact-0.5")]
    timed = [replace(found, times={"vgg19": {"rows": rows}}).ratio(
        "resnet9", "ddp", "exact-0.5", ["vgg19"], 100.0, seconds="processors") for found in
        (asked, left)]  # fmt: skip
    more = 0.125 * 4 * NETWORKS["vgg19"].elements * 8 / 0.956 / 1e8  # Seconds on the link.
    assert timed == [1.0, pytest.approx(20 / (20 + more), rel=1e-3)]


def test_sums_of_many_workers_need_wider_integers() -> None:
    bits = {(name, world): COSTS[name].element_bits(100, world)
            for name, worlds in (("paper", (8, 127, 128)), ("thc", (8, 17, 18)), ("ddp", (1024,)))
            for world in worlds}  # fmt: skip
    assert bits == {("paper", 8): 8, ("paper", 127): 8, ("paper", 128): 16, ("thc", 8): 8,
                    ("thc", 17): 8, ("thc", 18): 16, ("ddp", 1024): 32}  # fmt: skip


def test_peers_that_go_site_by_site_send_less_and_are_sooner() -> None:
    chain = topologies()["chain"]
    for name, share in (("local8", 2 / 7), ("powersgd1", 4 / 7), ("dgc_cold", 5 / 7)):
        flat = step_time(name, RESNET18, chain, 100, 0)
        sites = times.by_sites_time(name, RESNET18, chain, 100)
        assert sites.bytes_per_element == pytest.approx(share * flat.bytes_per_element)
        assert sites.seconds < flat.seconds
    found = evidence(piece("ddp", 1, 20, 76), piece("local8", 1, 20, 75))
    line = next(o for o in losing.by_sites_table(found).splitlines() if "H = 8" in o)
    ratio = found.ratio("resnet9", "ddp", "local8", list(NETWORKS), 100)
    assert f"| {ratio:.1f} x / " in line


def test_who_arrives_at_another_rate_is_not_said_never_to() -> None:
    other = piece("local30", 1, 30, 75) | {"rate_factor": 0.5}
    found = replace(
        evidence(piece("ddp", 1, 20, 76), piece("local30", 1, None, 70)), others=[other]
    )
    assert found.elsewhere_words("resnet9", "local30") == ", but some seed at 0.5 x its rate"
    assert "local30 (seed 1, but some seed at 0.5 x its rate)" in run_list.not_reached_words(found)
    text = tables.page(found, TITLES, {}, tables.AtScale())
    assert "| not reached, but some seed at 0.5 x its rate |" in text


def test_a_star_and_a_slow_direction_cost_what_they_must() -> None:
    all_of = topologies()
    assert all_of["star"].layout.tree_crossings == pytest.approx(1.6)
    assert all_of["asymmetric"].rate(100) == pytest.approx(20)
    assert all_of["cluster"].rate(100) == 10_000
    slow = step_time("exact-0.5", RESNET18, all_of["asymmetric"], 100, 0)
    fast = step_time("exact-0.5", RESNET18, all_of["chain"], 100, 0)
    assert slow.bound == pytest.approx(5 * fast.bound)


def test_a_step_is_never_shorter_than_compute_or_its_bound() -> None:
    for topology in topologies().values():
        for network in NETWORKS.values():
            for name in COSTS:
                found = step_time(name, network, topology, 1000, 2.8)
                assert found.seconds >= max(network.compute_seconds, found.bound)


def test_what_dgcs_warm_up_sends_is_charged() -> None:
    where = RESNET18, topologies()["chain"], 100, 0.0
    after, cold, ddp = (step_time(n, *where).seconds for n in ("dgc", "dgc_cold", "ddp"))
    warm = times.mean_step_seconds("dgc", *where, steps=4, planned=40)
    first = times.mean_step_seconds("dgc", *where, steps=1, planned=40)
    compressing = times.compression_seconds(COSTS["dgc"], RESNET18)
    assert first == pytest.approx(ddp + compressing)  # Dense is less than a quarter with indices.
    assert ddp / 3 < warm < ddp / 2
    assert times.mean_step_seconds("dgc", *where, steps=40, planned=40) == pytest.approx(
        (4 * warm + 36 * after) / 40
    )
    assert times.mean_step_seconds("dgc_cold", *where, steps=40, planned=40) == cold == after


def test_gaps_at_the_workloads_own_rate_leave_out_what_another_rate_does() -> None:
    own = [piece("ddp", 1, 40, 76), piece("levels7-0.5", 1, 40, 75.5)]
    found = evidence(*own)
    best = {**piece("ddp", 1, 40, 77), "rate_factor": 0.5}
    found.pieces = {**found.pieces, ("resnet9", "ddp", 1): best}
    found.others, found.factors = own[:1], {("resnet9", "ddp"): 0.5}
    assert found.gaps("resnet9", "levels7-0.5") == [1.5]
    assert found.gaps_at_one("resnet9", "levels7-0.5") == {1: 0.5}
    first = gpu_tables.accuracy_goals(found)[0]
    assert "narrow resnet9 1.50 points, one seed, both at 1 x its rate 0.50" in first.value


def test_steps_of_eight_beside_bytes_of_more_are_said() -> None:
    found = evidence(piece("ddp", 1, 40, 76))
    star = found.topologies["star"]
    wide = replace(star, layout=replace(star.layout, sites=(4,) * 5))
    found.topologies = {**found.topologies, "star": wide}
    assert ", steps of 8 workers, bytes of 20 |" in tables.tta_table(found, "resnet9")


def test_a_ratio_is_of_steps_times_seconds_with_paired_seeds() -> None:
    found = evidence(piece("ddp", 1, 40, 76), piece("levels7-0.5", 1, 20, 75.5),
                     piece("ddp", 2, 40, 76))  # fmt: skip
    ratio = found.ratio("resnet9", "ddp", "levels7-0.5", ["resnet18"], 100)
    chain = topologies()["chain"]
    seconds = [
        step_time(name, RESNET18, chain, 100, 2.8).seconds for name in ("ddp", "levels7-0.5")
    ]
    assert ratio == pytest.approx(2 * seconds[0] / seconds[1])
    assert found.gaps("resnet9", "levels7-0.5") == [0.5]
    assert found.vision_gap("levels7-0.5") == {"mean": 0.5, "upper95": None}


def test_a_row_that_does_not_arrive_is_listed_and_never_averaged() -> None:
    found = evidence(piece("ddp", 1, 20, 76), piece("levels7-0.5", 1, 20, 75),
                     piece("ddp", 2, 20, 76), piece("levels7-0.5", 2, None, 70))  # fmt: skip
    assert found.mean_steps("resnet9", "levels7-0.5") is None
    line = headline(found)
    assert line["against"]["ddp"] is None
    assert line["not_reached"] == [["resnet9", "levels7-0.5", 2]]
    text = tables.page(found, TITLES, {}, tables.AtScale())
    assert "1 of 2 seeds" in text
    assert "resnet9 levels7-0.5 (seed 2)" in text


def test_the_last_line_has_what_the_issue_asks_for() -> None:
    line = json.loads(tables.last_line(evidence(piece("ddp", 1, 20, 76))))["headline"]
    assert set(line) == {"against", "against_by_formula", "against_measured",
                         "against_on_processors", "share_of_bound",
                         "gap_keep0.5", "gap_keep0.2", "seeds", "vision_not_run",
                         "not_reached"}  # fmt: skip
    assert set(line["against"]) == {"ddp", "best_ddp", "hier_bf16", "fp16", "topk0.1", "topk0.01",
                                    "paper", "powersgd_best", "dgc", "diloco30"}  # fmt: skip
    assert set(line["against"].values()) == {None}


def test_the_best_powersgd_is_the_soonest_of_those_that_arrived() -> None:
    own = [piece("ddp", 1, 20, 76), piece("levels7-0.5", 1, 20, 75),
           piece("powersgd1", 1, None, 60), piece("powersgd2", 1, 40, 75),
           piece("powersgd4", 1, 30, 75)]  # fmt: skip
    found = evidence(*on_both(*own))
    expected = found.vision_ratio("powersgd2")
    assert figures.soonest(found, figures.POWERSGD, "formula") == (expected, "powersgd2")
    assert headline(found)["against"]["powersgd_best"] == pytest.approx(expected, abs=1e-3)


def test_a_mean_over_fewer_than_all_vision_workloads_says_so_and_decides_nothing() -> None:
    own = [piece(name, seed, 20, 76) for name in ("ddp", "levels7-0.5") for seed in (1, 2, 3)]
    for pieces, met, words in ((on_both(*own), True, ""), (own, None, " (resnet9 alone)")):
        found = evidence(*pieces)
        (goal,) = (g for g in goals.goals(found) if g.text == "to the target against DDP, mean")
        assert goal.met is met
        assert f"x by formula{words} (95 %" in goal.value
        assert (headline(found)["against"]["ddp"] is None) == (met is None)
    assert f"x{words}" in tables.claims_table(found, Pieces({}))


def test_a_run_that_diverged_has_no_bound() -> None:
    assert figures.upper95([1.0, float("nan")]) == float("inf")


def test_a_peer_that_is_sooner_is_a_losing_case() -> None:
    found = evidence(piece("ddp", 1, 20, 76), piece("levels7-0.5", 1, 60, 75),
                     piece("powersgd1", 1, 20, 75))  # fmt: skip
    every = losing.losing_cases(found)
    losses = [loss for loss in every if loss.peer == "powersgd1"]
    assert {o.case.network for o in losses if o.case.topology == "chain"} == set(NETWORKS)
    assert all(loss.ratio < 1 for loss in losses)
    assert not [loss for loss in every if loss.peer == "fp16"]
    assert losing.sooner_words(found).endswith("x.") and "rank 1 " in losing.sooner_words(found)


def test_the_short_list_of_losing_cases_drops_none_silently() -> None:
    peers = [row for row in ROWS if not ROWS[row].ours]
    found = evidence(piece("levels7-0.5", 1, 60, 75), *(piece(row, 1, 10, 75) for row in peers))
    losses = [losing.Loss(losing.Case("resnet9", "chain", "vgg19", 100.0), row, "levels7-0.5",
                          0.9 - n / 50) for n, row in enumerate(peers)]  # fmt: skip
    lines = losing.short_table(found, losses).splitlines()[2:]
    assert len(lines) == losing.MOST_LINES < len(peers)
    assert ROWS[peers[-1]].title in lines[0]
    assert all(ROWS[row].title in "".join(lines) for row in peers)
    assert sum(int(line.split("|")[5]) for line in lines) == len(peers)
    assert losing.short_table(found, []) == losing.NONE


def test_readme_names_those_who_are_sooner() -> None:
    names = {
        ROWS[row].title.split()[0].rstrip(",") for row in losing.sooner(report.read_evidence())
    }
    line = next(line for line in (ROOT / "README.md").read_text().splitlines()
                if "docs/results.md#losing-cases" in line)  # fmt: skip
    assert {name for name in ("DGC", "PowerSGD", "THC", "TopK-0.1") if name in line} == names


def test_no_peer_sooner_and_nothing_run_are_not_the_same() -> None:
    ddp = piece("ddp", 1, 20, 76)
    assert "not run yet" in losing.sooner_words(evidence(ddp))
    assert losing.sooner_words(evidence(ddp, piece("levels7-0.5", 1, 20, 75))).startswith("No peer")


def test_goals_that_are_missed_come_first_and_what_was_not_run_says_so() -> None:
    found = evidence(piece("ddp", 1, 20, 76), piece("levels7-0.5", 1, 80, 75))
    found.pieces["resnet9", "levels7-0.5", 1]["curve"].append((90, 80.0))
    lines = tables.goal_table(goals.goals(found)).splitlines()[2:]
    states = [line.rsplit("|", 2)[1].strip() for line in lines]
    assert states == sorted(states, key=["**missed**", tables.UNDECIDED, "met"].index)
    assert tables.UNDECIDED in states


def test_one_seed_decides_no_goal() -> None:
    pieces = [piece(name, seed, 20, 76) for name in ("ddp", "levels7-0.5") for seed in (1, 2, 3)]
    states = {}
    for count in (1, 3):
        found = evidence(*on_both(*(p for p in pieces if p["seed"] <= count)))
        states[count] = {goal.text: goal.met for goal in goals.goals(found)}
    text = "to the target against DDP, mean"
    assert (states[1][text], states[3][text]) == (None, True)


def test_a_peer_with_one_seed_decides_no_goal_either() -> None:
    pieces = [piece(name, seed, 20, 76) for name in ("ddp", "levels7-0.5") for seed in (1, 2, 3)]
    found = goals.goals(evidence(*on_both(*pieces, piece("fp16", 1, 20, 76))))
    (goal,) = (goal for goal in found if goal.text == "against fp16")
    assert goal.met is None
    assert goal.value.endswith("steps of 1 seed")


def test_a_peer_that_did_not_arrive_counts_with_the_steps_that_it_ran() -> None:
    row, ours = piece("ddp", 1, 40, 76.0), piece("levels7-0.5", 1, 40, 76.0)
    found = evidence(row, ours, piece("paper", 1, None, 70.0))
    in_time = evidence(row, ours, piece("paper", 1, 40, 76.0)).vision_ratio("paper")
    said = {goal.text: goal.value for goal in goals.goals(found)}
    assert in_time is not None and found.vision_ratio("paper") is None
    assert said["against the paper's scheme"].startswith(
        f"> {2 * in_time:.2f} x by formula (resnet9 alone): it did not arrive on resnet9"
    )
    assert said["against the best DGC"] == "not run yet"


def test_what_88_percent_costs_is_a_power_law_of_the_curve() -> None:
    curve = [(10 * n, 100 - 40 / (10 * n) ** 0.5) for n in range(1, 9)]
    assert accuracy_tables.steps_to(96.0, curve) == pytest.approx(100)
    assert accuracy_tables.steps_to(96.0, [(10, 80.0), (20, 80.0)]) == float("inf")
    text = accuracy_tables.accuracy_table(
        evidence(piece("ddp", 1, 20, 79), piece("fp16", 1, 9, 81))
    )
    row, vgg = text.splitlines()[2:]
    assert "| 79.00 % after 80 steps | 81.00 % (DDP, fp16 hook) | 0.45 |" in row
    assert "not run yet" in vgg


def test_an_upper_bound_needs_two_values() -> None:
    assert upper95([0.3]) is None
    assert upper95([0.0, 0.2]) == pytest.approx(0.1 + 6.314 * 0.1)


class Stub(ByteTransformer):
    name = "resnet9"

    def __init__(self) -> None:
        pass


def test_a_target_is_fixed_from_all_of_ddps_seeds_and_then_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "FOLDER", tmp_path)
    monkeypatch.setattr(steps, "ROOT", tmp_path)
    workload: Workload = Stub()
    with pytest.raises(ValueError, match=r"ddp-1\.json is missing"):
        steps.fix_target(workload, [1, 2])
    for seed, final in ((1, -2.0), (2, -2.2)):
        path = steps.piece_path("resnet9", "ddp", seed)
        path.parent.mkdir(exist_ok=True)
        curve = [[10, -3.0], [20, final]]
        path.write_text(json.dumps(piece("ddp", seed, None, final) | {"curve": curve}))
    assert steps.fix_target(workload, [1, 2]) == pytest.approx(-2.15)
    assert steps.fix_target(workload, [1]) == pytest.approx(-2.15)


@pytest.mark.parametrize("argument", ["--methods=ddp,nothing", "--workloads=mnist"])
def test_steps_refuse_what_they_do_not_know(
    argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert steps.main([argument]) == 2
    assert "allowed: " in capsys.readouterr().err


def test_the_page_has_what_is_committed() -> None:
    """`make figures` writes it, also where only what was measured beside is newer."""
    found = report.read_all()
    assert (report.DOCS / "results.md").read_text() == report.page(*found)
    assert (report.DOCS / "when-it-helps.md").read_text() == tables.when_page(*found[:2])


def test_systems_that_cannot_be_run_have_their_formulas() -> None:
    found = {
        system.title: [round(system.bytes_of(k), 2) for k in (0.5, 0.05)]
        for system in times.SYSTEMS
    }
    assert found["OmniReduce"] == [12.05, 12.05]
    assert found["Zen"] == [11.48, 1.36]


def test_blocks_are_counted_with_their_short_ends() -> None:
    mask = torch.zeros(256 * 3 + 10, dtype=torch.bool)
    mask[[0, 5, 300]] = True  # Two of four.
    assert filled_share([mask]) == 0.5
    assert filled_share([mask, torch.ones(16, 16, dtype=torch.bool)]) == pytest.approx(3 / 5)


def test_omnireduce_is_charged_for_the_blocks_that_were_counted() -> None:
    text = tables.systems_table({"resnet9": {"0.5": 1.0, "0.3": 1.0, "0.2": 0.5, "0.1": 0.5,
                                             "0.05": 0.25}})  # fmt: skip
    cells = next(line for line in text.splitlines() if "OmniReduce" in line).split("|")
    assert [cell.strip() for cell in cells[3:8]] == ["12", "12", "6.02", "6.02", "3.01"]
    assert "not run yet" in tables.blocks_words({})


@pytest.mark.parametrize(
    ("main", "argument"),
    [(blocks.main, "--workloads=x"), (many.main, "--worlds=3"), (scale.main, "--only=ring")],
)
def test_what_is_not_known_is_refused(
    main: Callable[[list[str]], int], argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([argument]) == 2
    assert "allowed: " in capsys.readouterr().err


def measured_chain(seconds: float, cpu: float) -> dict[str, Any]:
    row = {"name": "full", "seconds": seconds, "cpu_seconds": cpu, "rounds": [seconds, 9.0]}
    return {"figures": {"rate": "100mbit", "elements": 5_586_981, "sites": [3, 2, 3],
                        "links": [[0, 1], [1, 2]], "processors": 2, "rows": [row]}}  # fmt: skip


def test_rows_that_processors_hold_up_decide_nothing_of_the_simulator() -> None:
    testbed = {"busy": measured_chain(3.0, 2.0), "links": measured_chain(1.916, 0.55)}
    compared = scale_tables.compare(testbed, scale.Speeds())
    lines = scale_tables.testbed_table(compared).splitlines()[2:]
    assert [line.rsplit("|", 2)[1].strip() for line in lines] == ["links", "processors"]
    goal = scale_tables.simulator_goal(compared)
    assert (goal.value, goal.met) == ("0.98 to 0.98 of the measured, 1 rows", True)
    slow = scale_tables.compare({"links": measured_chain(2.2, 0.55)}, scale.Speeds())
    assert scale_tables.simulator_goal(slow).met is False
    assert scale_tables.simulator_goal([]).met is None


def test_where_a_ring_is_sooner_at_scale_is_said() -> None:
    rows = [{"shape": "star", "sites": 32, "workers": 1024, "row": row, "simulated": seconds}
            for row, seconds in (("ddp", 7.5), ("hier_fp32", 8.25),
                                 ("levels7-0.5", 0.3))]  # fmt: skip
    words = scale_tables.losing_words(rows)
    assert "takes 1.10 x in a star of 32 sites" in words
    assert "7 levels" not in words
    assert "no row of ours" in scale_tables.losing_words([])


def test_what_was_not_simulated_says_so() -> None:
    row = {"shape": "star", "sites": 3, "workers": 12, "row": "ddp", "formula": 6.86,
           "simulated": 6.87}  # fmt: skip
    text = scale_tables.scale_table([row], "star")
    assert "6.86 / 6.87" in text
    assert text.count("not run yet") == len(scale.ROWS) - 1
    assert "not run yet" in scale_tables.many_table([])
