"""Real trainings beside steps times seconds per step; the runs themselves are report-runs' own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.evidence import job_twin, run_ratios, run_tables, runs
from bench.evidence.scale import Speeds
from bench.exchange_layout import PAYLOAD_SHARE
from bench.exchange_rows import OURS
from bench.topologies import topologies

ROW = "levels7-0.5"
PIECE = {"keep": 0.5, "elements": 400_000, "bytes_per_element": 0.125, "rate_factor": 1.0}
CHAIN, CLUSTER = topologies()["chain"].layout, topologies()["cluster"].layout


def found(topology: str, row: str = ROW, steps: int | None = 100, seconds: float = 1.0) -> Any:
    """A run that was to take 100 steps of a second."""
    return {
        "topology": topology, "row": row, "committed_steps": 100, "steps": steps,
        "simulated": 1.0, "predicted": 1.0, "formula": 0.9,
        "compute_seconds": 0.25, "link_mbps": [[1.0, 1.0]],
        "seconds_of_steps": [seconds] * 120, "late_share": 0.01, "processors_busy": 0.5,
        "machine": "this", "commit": "abc", "seed": 1, "rate_factor": 1.0, "wall_seconds": 9.0,
        "curve": [[10, -2.5]],
    }  # fmt: skip


def all_of(**changed: Any) -> list[Any]:
    return [found(name, **changed) for name in topologies()]


def test_the_formula_is_compute_and_then_the_virtual_workers_bytes() -> None:
    rate = runs.RATES_MBPS[ROW] * 1e6
    on_link = 0.125 * 400_000 * 8 / (PAYLOAD_SHARE * rate)
    predicted = runs.predict(PIECE, ROW, CHAIN, Speeds())
    assert predicted.formula == pytest.approx(runs.COMPUTE_SECONDS + on_link)
    # A first record that nothing goes down beside, and headers.
    assert on_link < predicted.simulated - runs.COMPUTE_SECONDS < 1.5 * on_link


def test_a_fast_clusters_step_is_compute() -> None:
    predicted = runs.predict(PIECE, ROW, CLUSTER, Speeds())
    assert predicted.simulated == pytest.approx(runs.COMPUTE_SECONDS, rel=0.01)


@pytest.mark.parametrize("topology", topologies().values(), ids=lambda one: one.name)
def test_the_slowest_direction_has_the_rows_rate(topology: Any) -> None:
    layout = topology.layout
    asked = runs.asked_mbps(layout, ROW)
    wanted = layout.own_mbps or runs.RATES_MBPS[ROW]
    assert layout.slowest(asked) == pytest.approx(wanted)


def test_where_links_hold_nothing_an_exchange_measured_alone_is_what_counts() -> None:
    by_links = runs.Predicted(own_bytes=1e4, formula=0.3, simulated=0.31)
    assert by_links.seconds == 0.31
    assert replace(by_links, by_processors=0.35).seconds == 0.35


def test_an_idle_link_sends_little_of_a_step_at_once_and_a_whole_packet_at_least() -> None:
    for own_bytes, burst in ((1e4, 1600), (1e6, 20_000)):
        predicted = runs.Predicted(own_bytes, 0.3, 0.31)
        assert runs.shaping(CHAIN, predicted)["burst_bytes"] == burst
    assert runs.shaping(CLUSTER, runs.Predicted(1e4, 0.3, 0.31)) == {}


@pytest.mark.parametrize("row", runs.RATES_MBPS)
def test_alone_as_many_elements_are_exchanged(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def bench_exchange(environment: Any) -> Any:
        asked.append(environment)
        return 0, {"rows": [{"name": environment["ROWS"], "seconds": 0.03}]}

    monkeypatch.setattr(runs, "bench_exchange", bench_exchange)
    assert runs.exchange_alone(topologies()["cluster"], row, PIECE) == 0.03
    (one,) = asked
    assert int(one["ELEMENTS"]) * OURS[one["ROWS"]].keep == 0.5 * 400_000


def test_seconds_are_those_until_the_target_and_no_longer() -> None:
    one = found("chain", steps=108)
    assert run_ratios.seconds_to_target(one) == 108
    assert (run_ratios.steps_ratio(one), run_ratios.seconds_ratio(one)) == (1.08, 1.08)
    assert run_ratios.is_within(one)
    assert not run_ratios.is_within(found("chain", seconds=1.11))
    assert not run_ratios.is_within(found("chain", seconds=0.89))


def test_the_last_line_has_the_ratio_that_is_farthest_from_one() -> None:
    said = run_ratios.summary([found("chain", seconds=1.05), found("star", steps=80, seconds=0.7)])
    assert said == {
        "runs": 2, "worst_steps_ratio": 0.8, "worst_seconds_ratio": 0.56,
        "worst_step_ratio": 0.7, "worst_ratio_by_formula": 0.6222,
        "topologies": ["chain", "star"], "outside": [f"star, {ROW}"], "twins_equal": None,
    }  # fmt: skip


def test_who_did_not_arrive_is_outside_and_never_averaged_away() -> None:
    said = run_ratios.summary([found("chain"), found("star", steps=None)])
    assert said["worst_steps_ratio"] is said["worst_seconds_ratio"] is None
    assert said["outside"] == [f"star, {ROW}"]
    assert "not reached / 100" in run_tables.runs_table([found("star", steps=None)])


def test_errors_of_steps_and_of_a_steps_seconds_do_not_make_up_for_each_other() -> None:
    one = found("star", steps=106, seconds=0.88)
    assert run_ratios.off(run_ratios.seconds_ratio(one)) < run_ratios.MOST_OFF
    assert run_ratios.step_ratio(one) == pytest.approx(0.88)
    assert not run_ratios.is_within(one)


def test_nothing_run_has_a_last_line_and_a_table() -> None:
    assert run_ratios.summary([])["runs"] == 0
    assert [goal.met for goal in run_tables.runs_goals([])] == [None]
    assert run_tables.runs_table([]).count("not run yet") == 8 * len(topologies())


def test_what_was_not_run_is_listed_until_all_was() -> None:
    every = [found(name, row) for row in runs.RATES_MBPS for name in topologies()]
    assert run_tables.missing_words(every) == ""
    assert run_tables.missing_words(every[1:]).endswith(f"keep 0.5 ({every[0]['topology']}).")


def test_the_goal_needs_every_topology_and_every_run_near() -> None:
    assert run_tables.runs_goals(all_of())[0].met is True
    assert run_tables.runs_goals(all_of()[1:])[0].met is None
    far, formula = run_tables.runs_goals([*all_of()[1:], found("asymmetric", seconds=1.2)])
    assert far.met is False
    assert "outside: asymmetric" in far.value
    assert formula.met is False  # It is judged apart.


def test_the_page_says_where_the_formula_alone_is_outside() -> None:
    said = run_tables.formula_words([found("chain"), found("star", seconds=0.95)])
    assert f"chain, {run_tables._title(ROW)}: 1.11 x" in said
    assert "star" not in said
    assert run_tables.formula_words([found("chain", seconds=0.9)]) == ""


def test_a_run_takes_the_place_of_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "RESULT", tmp_path / "runs.json")
    for one in (found("star", row="ddp"), found("star"), found("chain"), found("star", steps=90)):
        runs.record(one)
    there = [(one["row"], one["topology"], one["steps"]) for one in runs.read_runs()]
    assert there == [(ROW, "chain", 100), (ROW, "star", 90), ("ddp", "star", 100)]


def test_only_the_chains_runs_have_a_twin_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "RESULT", tmp_path / "runs.json")
    own = {"curve": [[10, -2.5]], "seed": 1, "rate_factor": 1.0, "first_step": 2}
    for topology in ("chain", "star"):
        runs.record(found(topology) | own)
    asked: list[tuple[Any, ...]] = []

    def curve(*what: Any) -> Any:
        asked.append(what)
        return [(10, -2.5)]

    monkeypatch.setattr(job_twin, "curve", curve)
    runs.note_twins()
    runs.note_twins()
    assert asked == [(ROW, 1, runs.target(), 1.0, 2)]
    assert [one.get("twin_is_equal") for one in runs.read_runs()] == [True, None]
    assert run_ratios.summary(runs.read_runs())["twins_equal"] is True


@pytest.mark.parametrize(("again", "made"), [(False, ["star"]), (True, ["chain", "star"])])
def test_what_is_there_is_not_run_again(
    again: bool, made: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "RESULT", tmp_path / "runs.json")
    monkeypatch.setattr(runs, "ByteTransformer", Nothing)
    monkeypatch.setattr(runs, "note_twins", lambda: None)
    monkeypatch.setattr(runs, "pieces_of", lambda rows: dict.fromkeys(rows, PIECE))
    ran: list[str] = []

    def run(topology: Any, row: str, piece: Any) -> Any:
        ran.append(topology.name)
        return found(topology.name, row)

    monkeypatch.setattr(runs, "run", run)
    runs.record(found("chain"))
    runs.measure(["chain", "star"], [ROW], again)
    assert ran == made


class Nothing:
    """In place of a workload: nothing to pre-train."""

    name = "nothing"

    def pretrained(self, say: Any) -> None: ...


@pytest.mark.parametrize("argument", ["--topologies=chain,ring", "--rows=levels7-0.5,thc"])
def test_an_unknown_name_is_refused(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert runs.main([argument]) == 2
    assert "allowed: " in capsys.readouterr().err


@pytest.mark.parametrize("one", runs.read_runs(), ids=lambda one: f"{one['topology']}-{one['row']}")
def test_committed_runs_are_held_to_the_committed_steps(one: Any) -> None:
    piece = runs.pieces_of([one["row"]])[one["row"]]
    assert one["committed_steps"] == runs.steps_of(piece, runs.target())
    assert one["steps"] == runs.steps_of(one, runs.target())
    assert json.loads(json.dumps(one)) == one
