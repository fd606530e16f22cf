"""What the page of advice says, and that `pactrain bench` says of trainings what they showed."""

from __future__ import annotations

from statistics import fmean

import pytest

from bench.evidence import report, summary
from bench.evidence.figures import OURS, VISION
from bench.evidence.shapes import NETWORKS
from bench.exchange_layout import powersgd_bytes
from bench.test_evidence_report import evidence, on_both, piece
from pactrain import calculator


def test_the_summary_says_of_each_row_what_it_brings_and_where_it_does_not_arrive() -> None:
    own = [piece("ddp", 1, 20, 76), piece("levels7-0.5", 1, 30, 75.5)]
    found = evidence(*on_both(*own, piece("paper", 1, None, 70)), piece("local30", 1, 40, 75))
    lines = {line.split(" | ")[0].strip("| *"): line for line in
             summary.summary_table(found).splitlines()}  # fmt: skip
    ratio = found.vision_ratio("ddp", "levels7-0.5")
    assert (
        f"| 30 | 30 | not run yet | not run yet | {ratio:.1f} x, by formula | 0.50 (0.50) | 0.50"
        in lines["PacTrain, 7 levels, keep 0.5"]
    )
    assert (
        "does not arrive with resnet9 and vgg" in lines["the paper's ternary, int8 ring, keep 0.5"]
    )
    assert "x, by formula (resnet9 alone)" in lines["local SGD, H = 30"]


def test_what_the_calculator_says_of_trainings_is_what_the_committed_showed() -> None:
    found = report.read_evidence()
    trained = (*VISION, "transformer")
    assert all(found.mean_steps(workload, OURS) for workload in trained)
    assert not all(found.mean_steps(workload, "levels7-0.2") for workload in trained)
    run = [w for w in trained if found.seeds(w, "local30")]
    arrived = [w for w in run if found.mean_steps(w, "local30")]
    # "the most of the two trainings of three here that arrived"
    assert (len(run), len(arrived)) == (3, 2)
    pairs = [
        [(found.steps(w, "local30", seed), found.steps(w, "ddp", seed))
         for seed in found.paired(w, "ddp", "local30")]
        for w in arrived
    ]  # fmt: skip
    most = max(fmean(own / ddp for own, ddp in both if own and ddp) for both in pairs)
    assert 0 < calculator.MORE_LOCAL_STEPS - most < 0.1


def test_what_the_calculator_says_of_steps_is_what_was_measured() -> None:
    found = report.read_evidence()
    for row in ("powersgd1", "powersgd4"):
        for network in found.networks_timed(row, OURS, 100.0, "processors"):
            assert found.timed_ratio(network, row, OURS, 100.0, "processors") > 1
    cluster = [found.timed("resnet18", row, 10_000.0, "cluster") for row in ("ddp", "fp16", OURS)]
    seconds = [entry["seconds"] for entry in cluster if entry]
    assert len(seconds) == 3
    assert seconds[0] == min(seconds)
    slower = []
    for rate in (100.0, 500.0, 1000.0):
        for name, shape in NETWORKS.items():
            if entry := found.timed(name, OURS, rate):
                job = calculator.Job(shape.elements, (3, 2, 3), rate,
                                     shape.compute_seconds, 0.5)  # fmt: skip
                rows = calculator.candidates(job, found.codec_gb_per_s / 4 * 1e9)
                own = next(r for r in rows if r.name == "PacTrain, 7 levels, keep 0.5")
                slower.append((rate, entry["seconds"] / own.step_seconds))
    assert max(times for rate, times in slower if rate <= calculator.CLOSE_MBPS) < 2
    most = max(times for _, times in slower)
    assert 0 <= calculator.MOST_SLOWER - most < 1


@pytest.mark.parametrize(("rank", "share"), calculator.POWERSGD_SHARES.items())
def test_the_calculators_powersgd_has_the_bytes_of_resnet18(rank: int, share: float) -> None:
    network = NETWORKS["resnet18"]
    assert powersgd_bytes(network.shapes, rank) / 4 / network.elements == pytest.approx(
        share, rel=0.01
    )
