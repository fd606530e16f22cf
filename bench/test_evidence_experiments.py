"""The experiments' rows, and the tables that are made of their pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.evidence import experiment_tables, experiments, report
from bench.evidence.codec import CHAIN
from bench.evidence.experiment_tables import Pieces, Point
from bench.evidence.experiments import VARIANTS, Noise
from bench.evidence.methods import LAYOUT, Agents, Row, Setup
from bench.evidence.train import Run, risk
from bench.evidence.workloads import ByteTransformer
from bench.exchange_layout import all_reduce_bytes
from pactrain.types import Codec

EIGHT = 8


class Regression(ByteTransformer):
    """Small, and quick: three layers, of which the middle one may be pruned."""

    name, steps = "regression", 10

    def __init__(self) -> None:
        pass

    def make_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 1))

    def pretrained(self, say: Callable[[str], None]) -> dict[str, Tensor]:
        torch.manual_seed(3)
        return self.make_model().state_dict()

    def batches(self, seed: int, workers: int) -> Callable[[int], list[tuple[Tensor, Tensor]]]:
        def of_step(step: int) -> list[tuple[Tensor, Tensor]]:
            generator = torch.Generator().manual_seed(seed * 1000 + step)
            inputs = [torch.randn(8, 4, generator=generator) for _ in range(workers)]
            return [(x, x.sum(1, keepdim=True)) for x in inputs]

        return of_step

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        error: Tensor = (model(inputs) - targets).square().mean()
        return error

    def score(self, model: nn.Module, test: bool) -> float:
        return -float(self.loss(model, *self.batches(99, 1)(0)[0]).detach())


def run_of(name: str) -> Run:
    row: Row = VARIANTS[name].row
    workload = Regression()
    return Run(workload, name, 1, None, steps=row.steps * workload.steps, row=row)


def test_noise_has_the_risk_that_was_asked_for_and_only_where_the_mask_keeps() -> None:
    generator = torch.Generator().manual_seed(1)
    gradients = torch.randn(EIGHT, 20_000, generator=generator)
    kept = torch.arange(0, 20_000, 2)
    gradients[:, 1::2] = 0
    for places in (None, kept):
        update, sent = Noise(Setup([(20_000,)], 1), 4.0, places).exchange(gradients, 0)
        assert risk(update, gradients, places) == pytest.approx(4.0, rel=0.05)
        count = 20_000 if places is None else len(kept)
        assert sent == all_reduce_bytes(LAYOUT, 4 * count)
    assert not update[1::2].any()


def test_on_a_star_every_site_encodes() -> None:
    gradients = torch.randn(EIGHT, 20_000, generator=torch.Generator().manual_seed(1))
    setup = Setup([(20_000,)], 1)
    chain, star = (
        risk(Agents(setup, Codec.LEVELS7, None, tree).exchange(gradients, 0)[0], gradients, None)
        for tree in (CHAIN, experiments.STAR)
    )
    assert star != chain and star == pytest.approx(chain, rel=1)


@pytest.mark.parametrize("name", ["erk", "global", "grasp", "random"])
def test_what_a_criterion_prunes_stays_zero(name: str) -> None:
    run = run_of(name)
    for _ in range(3):
        run.step()
    middle = run._model[2].weight  # type: ignore[index]
    assert int((middle != 0).sum()) == round(0.2 * middle.numel())


def test_what_is_frozen_rests_as_it_was_and_is_not_zero() -> None:
    run = run_of("freeze")
    before = run._weights.clone()
    for _ in range(3):
        run.step()
    assert run._kept is not None
    resting = torch.ones(len(before), dtype=torch.bool)
    resting[run._kept] = False
    assert torch.equal(run._weights[resting], before[resting])
    assert before[resting].any()
    assert not torch.equal(run._weights, before)


def test_a_late_mask_is_taken_from_weights_that_trained_and_seeds_begin_anew() -> None:
    run = run_of("fresh-exact-0.5-late")
    run.step()
    assert run._kept is None
    while not run.done:
        run.step()
    assert run._kept is not None
    assert run._step == 2 * Regression.steps
    middle = run._model[2].weight
    assert int((middle == 0).sum()) == middle.numel() // 2


def test_the_front_has_what_nothing_else_beats() -> None:
    a, b, c = (Point(1, "exact", 7, 0.0), Point(0.5, "exact", 4, 0.2), Point(1, "7", 0.3, 0.1))
    assert experiment_tables.front([a, b, c]) == [a, c]


def test_rank_correlation_is_spearmans() -> None:
    found = experiment_tables.rank_correlation
    assert found([1, 2, 3, 9], [2, 4, 5, 70]) == pytest.approx(1)
    assert found([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert found([1, 2, 2, 4], [1, 3, 2, 4]) == pytest.approx(0.9487, abs=1e-4)
    assert found([1, 2], [1, 2]) is None
    assert found([1, 2, 3], [5, 5, 5]) is None


def piece(test: float, **more: Any) -> dict[str, Any]:
    return {"test": test, "keep": 0.5, "bytes_per_element": 1.0, "risk": 1.0, **more}


def test_noise_is_compared_with_the_same_mask_and_equal_seeds() -> None:
    pieces = Pieces({("exact-0.5", 1): piece(-2.1), ("ddp", 1): piece(-2.0),
                     ("noise1-0.5", 1): piece(-2.3), ("noise1-0.5", 2): piece(-9.0),
                     ("noise1-1", 1): piece(-2.1)})  # fmt: skip
    assert pieces.gaps("noise1-0.5", "exact-0.5") == [pytest.approx(0.2)]
    line = experiment_tables.noise_table(pieces).splitlines()[2]
    assert line == "| 1 | +0.100 (one seed) | +0.200 (one seed) | not run yet |"


def test_what_noise_costs_under_a_mask_is_told_of_what_it_costs_without() -> None:
    found = {("ddp", 1): piece(-2.0), ("exact-0.5", 1): piece(-2.1), ("exact-0.2", 1): piece(-2.2)}
    assert experiment_tables.noise_words(Pieces(found)) == "not run yet"
    for r, dense, half, fifth in ((1, 0.1, 0.1, 0.08), (4, 0.2, 0.22, 0.12)):
        found[f"noise{r}-1", 1] = piece(-2.0 - dense)
        found[f"noise{r}-0.5", 1] = piece(-2.1 - half)
        found[f"noise{r}-0.2", 1] = piece(-2.2 - fifth)
    assert experiment_tables.noise_words(Pieces(found)) == (
        "Under a mask the same noise costs, of what it costs without one, 1.00 to 1.10 times at "
        "keep 0.5 and 0.60 to 0.80 times at keep 0.2 (one seed, so a hint and no result)."
    )


def test_a_long_runs_rate_falls_to_nothing_and_others_stay() -> None:
    for name, last in (("long-ddp", 1 / 36), ("fresh-ddp", 1.0)):
        run = Run(Regression(), name, 1, None, steps=40, row=VARIANTS[name].row)
        shares = []
        for step in range(40):
            run._step = step
            shares.append(run._share_of_rate())
        assert shares[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
        assert shares == sorted(shares[:4]) + sorted(shares[4:], reverse=True)
        assert shares[-1] == pytest.approx(last)


def test_how_far_long_runs_came_is_said_of_those_that_were_run() -> None:
    said = experiment_tables.long_words(Pieces({}))
    assert said.endswith("not run yet (`make report-experiments`).")
    long = {**piece(88.5), "steps": 3120, "workload": "resnet9", "cpu_seconds": 1800.0}
    said = experiment_tables.long_words(Pieces({("long-ddp", 1): long}))
    assert said == ("With a rate that falls to 0 resnet9 came to 88.50 % with DDP all-reduce, fp32 "
                    "in 3120 steps (0.50 CPU hours): one seed. Not run yet: PacTrain, 7 levels, "
                    "keep 0.5 in 3120 steps, DDP all-reduce, fp32 in 6240 steps.")  # fmt: skip


def test_dilocos_outer_momentum_is_said_beside_what_others_brought() -> None:
    assert "one seed: not run yet. " in experiment_tables.outer_words(Pieces({}))
    found = {(f"outer-{m:g}", 1): piece(0) | {"curve": [(10, 60.0), (20, 70 + m)]}
             for m in (0.9, 0.5, 0.3)}  # fmt: skip
    said = experiment_tables.outer_words(Pieces(found))
    assert "outer momentum 0.9" in said
    assert "one seed: 70.9 with 0.9, 70.5 with 0.5, 70.3 with 0.3. " in said


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert experiments.main(["--names=erk,nothing"]) == 2
    assert "names has 'nothing', allowed: exact-0.3" in capsys.readouterr().err


def test_the_page_has_the_committed_pieces() -> None:
    pieces = Pieces(report.read_experiments())
    page = (report.DOCS / "results.md").read_text()
    for made in (experiment_tables.amounts_table, experiment_tables.criteria_table,
                 experiment_tables.fresh_table, experiment_tables.noise_table,
                 experiment_tables.noise_words):  # fmt: skip
        assert made(pieces) in page
