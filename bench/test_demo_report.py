"""summary.json has the promised keys, and its figures follow from the runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import demo_report
from bench.demo import computed_bytes
from bench.demo_report import Outcome


def outcome(seconds: float, curve: list[tuple[float, float]], sent: int) -> Outcome:
    return Outcome(
        seconds=seconds,
        steps=10,
        parameters=100,
        kept=30,
        accuracy=curve[-1][1],
        curve=curve,
        link_bytes=[(sent, sent + 1), (sent + 2, sent + 3)],
        step_ends=[0.0, 1.0, 1.5, 3.5],
        bucket_bytes=[1 << 20, 3 << 19],
    )


@pytest.fixture
def summary(tmp_path: Path) -> dict[str, object]:
    compute = outcome(1.0, [(0.0, 0.0)], 0)
    ddp = outcome(40.0, [(0.0, 0.5), (20.0, 0.6), (40.0, 0.7)], 1000)
    ours = outcome(10.0, [(0.0, 0.5), (5.0, 0.61), (10.0, 0.69)], 200)
    ours.modes = [{"step": 1, "mode": "FULL", "codec": "fp32", "reason": "r"}]
    ours.mode_seconds = [0.0]
    demo_report.finish(tmp_path, "cifar10", True, compute, ddp, ours, 10)
    assert (tmp_path / "plot.png").stat().st_size > 1000
    loaded: dict[str, object] = json.loads((tmp_path / "summary.json").read_text())
    return loaded


def test_summary_has_exactly_the_promised_keys(summary: dict[str, object]) -> None:
    assert set(summary) == {
        "data", "steps", "parameters", "kept", "ddp", "pactrain", "target_accuracy", "speedup",
        "speedup_ceiling", "accuracy_gap", "first_compacted_step", "first_ternary_step", "modes",
        "risk", "network",
    }  # fmt: skip
    keys = {"seconds", "seconds_per_step", "seconds_to_accuracy", "accuracy", "link_bytes"}
    ddp, ours = summary["ddp"], summary["pactrain"]
    assert isinstance(ddp, dict) and isinstance(ours, dict)
    assert (set(ddp), set(ours)) == (keys | {"bucket_bytes"}, keys)
    assert ours["seconds_per_step"] == {"median": 1.0, "min": 0.5, "max": 2.0, "n": 3}


def test_the_last_line_is_the_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = outcome(10.0, [(0.0, 0.5), (10.0, 0.7)], 200)
    steps = {1: "FULL", 5: "COMPACTED", 18: "TERNARY", 40: "TERNARY"}
    run.modes = [{"step": n, "mode": m, "codec": "", "reason": ""} for n, m in steps.items()]
    run.mode_seconds = [0.0, 1.0, 2.0, 3.0]
    demo_report.finish(tmp_path, "digits", True, run, run, run, 10)
    out = capsys.readouterr().out
    last = json.loads(out.splitlines()[-1])
    assert last == json.loads((tmp_path / "summary.json").read_text())
    assert (last["first_compacted_step"], last["first_ternary_step"]) == (5, 18)
    assert (last["speedup"], last["accuracy_gap"]) == (1.0, 0.0)
    assert "plain DDP's buckets: 1.0 + 1.5 MiB, torch's default" in out


def test_the_target_is_what_both_runs_reach(summary: dict[str, object]) -> None:
    assert summary["target_accuracy"] == 0.69
    ddp, ours = summary["ddp"], summary["pactrain"]
    assert isinstance(ddp, dict) and isinstance(ours, dict)
    assert (ddp["seconds_to_accuracy"], ours["seconds_to_accuracy"]) == (40.0, 10.0)


def test_speedups_compare_seconds_of_the_same_steps(summary: dict[str, object]) -> None:
    assert (summary["speedup"], summary["speedup_ceiling"]) == (4.0, 40.0)


def judged(**changed: object) -> list[bool]:
    """Whether speed-up, accuracies and modes are met."""
    modes = [{"mode": mode} for mode in ("COMPACTED", "TERNARY", "TERNARY")]
    good = {"speedup": 6.0, "speedup_ceiling": 17.0, "modes": modes,
            "accuracy_gap": 0.009}  # fmt: skip
    return [goal.met for goal in demo_report.goals(good | changed)]


def test_a_goal_is_missed_by_little() -> None:
    assert judged() == [True, True, True]
    assert judged(speedup=5.99) == [False, True, True]
    assert judged(accuracy_gap=0.011) == [True, False, True]


def test_where_computing_takes_long_less_speedup_is_wanted() -> None:
    assert judged(speedup=4.0, speedup_ceiling=5.0) == [True, True, True]
    assert judged(speedup=3.9, speedup_ceiling=5.0) == [False, True, True]


@pytest.mark.parametrize(
    "modes",
    [
        [],
        ["COMPACTED"],
        ["TERNARY", "COMPACTED"],
        ["TERNARY"],
        ["FULL", "COMPACTED", "TERNARY"],
        ["COMPACTED", "TERNARY", "COMPACTED"],
    ],
)
def test_all_modes_come_in_their_order(modes: list[str]) -> None:
    assert judged(modes=[{"mode": mode} for mode in modes]) == [True, True, False]


def test_a_missed_goal_is_said_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = outcome(10.0, [(0.0, 0.5), (10.0, 0.7)], 200)
    assert not demo_report.finish(tmp_path, "digits", True, run, run, run, 10)
    assert "NOT met: modes none, wanted COMPACTED, TERNARY" in capsys.readouterr().out


def test_without_interfaces_a_ring_is_computed_and_agents_are_asked() -> None:
    assert computed_bytes("ddp", 600, []) == [(4000, 4000), (4000, 4000)]
    agents = [[10, 11], [10, 11], [30, 31], [30, 31], [20, 21], [20, 21]]
    assert computed_bytes("pactrain", 600, agents) == [(10, 11), (21, 20)]
