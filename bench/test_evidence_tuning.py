"""Whose rate is chosen how, and what is run with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.evidence import steps, tuning
from bench.evidence.train import soonest
from bench.evidence.tuning import best_factor, steps_to_beat
from bench.evidence.workloads import ByteTransformer

TARGET = {"w": {"target": -2.0}}


def piece(
    factor: float, scores: list[float], seed: int = 1, method: str = "m", test: float = 0.0
) -> dict[str, Any]:
    """Evaluated every 10 steps; DDP's are 20."""
    curve = [[10 * (n + 1), score] for n, score in enumerate(scores)]
    return {"workload": "w", "method": method, "seed": seed, "rate_factor": factor, "steps": 20,
            "curve": curve, "test": test, "steps_run": 20, "keep": 1.0, "risk": None,
            "bytes_per_element": 4.0, "cpu_seconds": 1.0, "machine": "this",
            "versions": {}}  # fmt: skip


def test_the_fewest_steps_to_the_target_win_whatever_the_test_set_says() -> None:
    found = [piece(0.5, [-3, -3, -2, -2], test=9.0), piece(1.0, [-3, -2, -2, -1], test=5.0),
             piece(2.0, [-2, -2, -2.5, -3], test=-9.0)]  # fmt: skip
    assert best_factor(found, -2.0) == 2.0


def test_of_equal_steps_the_better_score_after_ddps_steps_wins_then_the_nearest_to_1() -> None:
    found = [piece(0.5, [-2, -1.9]), piece(1.0, [-2, -1.8]), piece(2.0, [-2, -1.7])]
    assert best_factor(found, -2.0) == 2.0
    assert best_factor([piece(f, [-2, -1.8]) for f in (0.5, 1.0, 2.0)], -2.0) == 1.0


def test_where_none_arrives_the_end_decides_and_what_broke_never_wins() -> None:
    found = [piece(0.5, [-3, -2.4]), piece(1.0, [-3, -2.5]), piece(2.0, [-3, float("nan")])]
    assert best_factor(found, -2.0) == 0.5


def test_what_is_to_be_beaten_is_the_best_of_the_first_seed() -> None:
    found = [piece(1.0, [-3, -2, -2, -2]), piece(0.5, [-3, -3, -2, -2]), piece(2.0, [-2, -2], 2)]
    assert steps_to_beat(found, -2.0) == 20
    assert steps_to_beat(found[2:], -2.0) is None


@pytest.mark.parametrize(
    ("scores", "at"),
    [([], 10), ([-3], 20), ([-3, -2], 20), ([-3, -2, -3], 40), ([-3, -2, -2, -3], 20)],
)
def test_the_soonest_that_a_run_may_still_arrive(scores: list[float], at: int) -> None:
    assert soonest(piece(1.0, scores)["curve"], -2.0, 10) == at


def test_no_factor_is_chosen_before_all_are_run_on_the_first_seed() -> None:
    found = [piece(1.0, [-2, -2]), piece(2.0, [-2, -2]), piece(0.5, [-2, -2], seed=2)]
    assert best_factor(found, -2.0) is None


def test_between_the_named_factor_and_1_all_seeds_decide_that_ran_with_both() -> None:
    first = [piece(0.5, [-2, -2, -2]), piece(1.0, [-3, -2, -2]), piece(2.0, [-3, -3, -3])]
    assert best_factor(first, -2.0) == 0.5
    slower = [piece(0.5, [-3, -3, -3, -3, -2, -2], 2), piece(1.0, [-3, -2, -2], 2)]
    assert best_factor([*first, *slower], -2.0) == 1.0
    assert best_factor([*first, slower[0]], -2.0) == 0.5  # Nothing to compare it with.
    fails = [piece(0.5, [-3, -3, -3], 2), piece(1.0, [-3, -3, -3, -2, -2], 2)]
    assert best_factor([*first, *fails], -2.0) == 1.0
    equal = [piece(0.5, [-3, -2, -2], 2), piece(1.0, [-2, -2, -2], 2)]
    assert best_factor([*first, *equal], -2.0) == 1.0


def test_of_each_method_the_pieces_of_its_factor_are_taken() -> None:
    tuned = [piece(f, [-2, -2 + f], seed) for f in tuning.FACTORS for seed in (1, 2)]
    alone = [piece(1.0, [-2, -2], method="n"), piece(2.0, [-1, -1], method="n")]
    factors = tuning.best_factors([*tuned, *alone], TARGET)
    assert factors == {("w", "m"): 2.0}  # Of "n" not all were tried.
    taken, others = tuning.split([*tuned, *alone], factors)
    assert {name: p["rate_factor"] for name, p in taken.items()} == {
        ("w", "m", 1): 2.0, ("w", "m", 2): 2.0, ("w", "n", 1): 1.0
    }  # fmt: skip
    assert len(others) == 5


class Stub(ByteTransformer):
    def __init__(self) -> None:
        pass


def test_tuning_runs_all_factors_once_and_later_seeds_with_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "FOLDER", tmp_path)
    ran: list[tuple[str, int, float]] = []

    def make(
        workload: Any, method: str, seed: int, target: float | None, factor: float, **_: Any
    ) -> Any:
        ran.append((method, seed, factor))
        return piece(factor, [-3, -2 - abs(factor - 2)], seed, method) | {"workload": "transformer"}

    def keep(run: Any, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(run))

    monkeypatch.setattr(steps, "Run", make)
    monkeypatch.setattr(steps, "run_piece", keep)
    monkeypatch.setattr(steps, "check_start", lambda workload: None)
    steps.run_workload(Stub(), ["ddp", "fp16"], [1, 2], tune=True)
    assert ran == [("ddp", 1, 1.0), ("ddp", 2, 1.0), ("ddp", 1, 0.5), ("ddp", 1, 2.0),
                   ("ddp", 2, 2.0), ("fp16", 1, 1.0), ("fp16", 1, 0.5), ("fp16", 1, 2.0),
                   ("fp16", 2, 2.0)]  # fmt: skip
    ran.clear()
    steps.run_workload(Stub(), ["fp16"], [1, 2, 3], tune=False)
    assert ran == [("ddp", 3, 2.0), ("ddp", 3, 1.0), ("fp16", 3, 2.0)]
    ran.clear()
    steps.run_workload(Stub(), ["fp16"], [1, 2, 3], tune=False)
    assert not ran  # What is missing is run once, whichever rate is best then.


def test_seeds_are_run_at_the_rate_that_the_page_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "FOLDER", tmp_path)
    (tmp_path / "transformer").mkdir()

    def keep(method: str, factor: float) -> None:
        found = piece(factor, [-3, -2 - abs(factor - 2)], method=method)
        path = steps.piece_path("transformer", method, 1, factor)
        path.write_text(json.dumps(found | {"workload": "transformer"}))

    for factor in tuning.FACTORS:
        assert steps.factors_of(Stub(), "fp16", -2.0) == [1.0]
        keep("fp16", factor)
    assert steps.factors_of(Stub(), "fp16", -2.0) == [2.0]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("fp16-1", "", "fp16-1.json is no JSON"),
        ("fp16-1", "[]", "fp16-1.json: '\\[\\]', allowed: an object"),
        ("fp16-1", {"seed": 2}, "fp16-1.json holds the piece of .*fp16-2.json"),
        ("fp16-1", {"rate_factor": 4.0}, "holds the piece of .*fp16@4-1.json"),
        ("fp17-1", {"method": "fp17"}, "method 'fp17', allowed: ddp"),
    ],
)
def test_a_file_that_is_no_piece_of_its_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: Any, said: str
) -> None:
    monkeypatch.setattr(steps, "FOLDER", tmp_path)
    (tmp_path / "transformer").mkdir()
    own = piece(1.0, [-2, -2], method="fp16") | {"workload": "transformer"}
    path = tmp_path / "transformer" / f"{name}.json"
    path.write_text(json.dumps(own | text) if isinstance(text, dict) else text)
    with pytest.raises(ValueError, match=said):
        steps.read_pieces()


class Starts(Stub):
    weight = 1.0

    def make_model(self) -> nn.Module:
        return nn.Linear(1, 1)

    adopted: dict[str, Tensor] | None = None

    def pretrained(self, say: Callable[[str], None]) -> dict[str, Tensor]:
        own = {"weight": torch.full((1, 1), self.weight), "bias": torch.zeros(1)}
        return self.adopted or own

    def adopt(self, state: dict[str, Tensor], cpu_seconds: float) -> None:
        self.adopted = state

    def score(self, model: nn.Module, test: bool) -> float:
        return 7.5


def test_rows_from_other_weights_than_the_others_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "FOLDER", tmp_path)
    workload = Starts()
    steps.check_start(workload)
    noted = steps.read_starts()
    assert noted["transformer"]["test"] == 7.5
    steps.check_start(workload)
    (tmp_path / "transformer" / steps.WEIGHTS).unlink()
    workload.weight += 1e-6  # Of which no score tells.
    workload.adopted = None
    words = (
        r"transformer is pre-trained to weights \w+ here, allowed: \w+, .* RESULTS=\.\./my-results"
    )
    with pytest.raises(ValueError, match=words):
        steps.run_workload(workload, ["fp16"], [1], tune=False)
    assert steps.read_starts() == noted


def test_another_machine_begins_with_the_weights_that_lie_beside_the_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "FOLDER", tmp_path)
    steps.check_start(Starts())
    other = Starts()
    other.weight = 2.0
    steps.check_start(other)
    assert other.pretrained(print)["weight"].item() == 1.0
    torch.save({"weight": torch.ones(1, 1), "bias": torch.ones(1)},
               tmp_path / "transformer" / steps.WEIGHTS)  # fmt: skip
    with pytest.raises(ValueError, match=r"start.pt holds weights \w+, allowed: those that start"):
        steps.check_start(other)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"text"])
def test_damaged_weights_beside_the_pieces_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setattr(steps, "FOLDER", tmp_path)
    steps.check_start(Starts())
    (tmp_path / "transformer" / steps.WEIGHTS).write_bytes(content)
    with pytest.raises(ValueError, match=r"transformer/start\.pt is damaged"):
        steps.check_start(Starts())


def test_a_damaged_piece_of_ddp_fixes_no_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "FOLDER", tmp_path)
    path = steps.piece_path("transformer", "ddp", 1)
    path.parent.mkdir(parents=True)
    path.write_text('{"curve": []}')
    with pytest.raises(ValueError, match=r"ddp-1\.json: field 'workload' is missing"):
        steps.fix_target(Starts(), [1])
    assert not steps.read_targets()
