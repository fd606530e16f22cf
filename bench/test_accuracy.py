"""What bench/accuracy.py makes of the trainers' results."""

from __future__ import annotations

import pytest

from bench.accuracy import PLAIN, RISKS, Results, summary, table

EXACT, BALANCED = RISKS


def done(accuracy: float, sent: float = 0.0) -> dict[str, object]:
    return {"accuracy": accuracy, "seconds": 1.0, "mode": "FULL fp32", "sent_bytes": sent}


@pytest.fixture
def results() -> Results:
    return {
        PLAIN: [done(0.60), done(0.70)],
        EXACT: [done(0.61, 1e6), done(0.68, 3e6)],
        BALANCED: [done(0.55), done(0.65)],
    }


def test_a_row_is_compared_by_its_mean_over_the_seeds(results: Results) -> None:
    rows = summary(results)
    assert [rows[row]["mean"] for row in results] == pytest.approx([0.65, 0.645, 0.60])
    assert [rows[row]["below"] for row in results] == pytest.approx([0.0, 0.005, 0.05])


def test_the_table_has_every_seed_and_what_was_sent(results: Results) -> None:
    lines = table(summary(results), range(1, 3)).splitlines()
    assert lines[0].split()[:4] == ["seed", "1", "seed", "2"]
    exact = next(line for line in lines if EXACT in line)
    assert exact.removeprefix(f"  {EXACT}").split() == [
        *("0.6100", "0.6800", "0.6450", "0.0050", "2.0"),
        *("FULL", "fp32"),
    ]
