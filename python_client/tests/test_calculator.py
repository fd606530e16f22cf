"""pactrain bench: what it predicts, and what it advises."""

from __future__ import annotations

import json

import pytest

from pactrain import calculator
from pactrain.calculator import Candidate, Job, advice, candidates
from pactrain.errors import PacTrainError

FAST_CORE = 1e9
RESNET18 = 11_173_962


def rows_of(job: Job, encode: float = FAST_CORE) -> dict[str, Candidate]:
    return {row.name: row for row in candidates(job, encode)}


def test_bytes_are_those_of_the_formulas() -> None:
    rows = rows_of(Job(1_000_000, (3, 2, 3), 100, 0.0, 0.5))
    assert rows["plain DDP"].link_bytes == 7e6
    assert rows["PacTrain, FULL"].link_bytes == 4e6
    assert rows["PacTrain, exact, keep 0.5"].link_bytes == 2e6
    assert rows["PacTrain, 7 levels, keep 0.5"].link_bytes == pytest.approx(146_625)
    assert rows["by hand: sites first, bf16"].link_bytes == 2e6
    assert rows["DGC, density 0.001, no warm-up"].link_bytes == pytest.approx(56e3)
    assert rows["plain DDP"].step_seconds == pytest.approx(7e6 * 8 / 95.6e6)


def test_a_step_is_never_shorter_than_its_compute() -> None:
    rows = rows_of(Job(1000, (4, 4), 1e4, 0.3, 0.5))
    assert all(0.3 <= row.step_seconds < 0.3001 for row in rows.values())


def test_on_a_core_the_links_carry_more_of_a_sum() -> None:
    star = rows_of(Job(1_000_000, (2, 2, 2, 1, 1), 100, 0.0, 0.5, core=True))
    assert star["PacTrain, FULL"].link_bytes == pytest.approx(1.6 * 4e6)


def test_the_exchange_of_own_steps_comes_after_them() -> None:
    rows = rows_of(Job(30_000_000, (4, 4), 1000, 0.5, 0.5))
    on_link = 2e6 * 8 / 956e6
    own = rows["local SGD, 30 own steps, bf16"].step_seconds
    assert own == pytest.approx(0.5 + on_link)


def test_compute_that_is_not_given_is_said() -> None:
    job = Job(RESNET18, (3, 2, 3), 100, 0.0, 0.5)
    assert "--compute-ms" in advice(job, candidates(job, FAST_CORE))


def test_a_slow_core_shows_in_levels_alone() -> None:
    job = Job(10_000_000, (3, 2, 3), 1000, 0.0, 0.5)
    fast, slow = rows_of(job), rows_of(job, encode=1e6)
    name = "PacTrain, 7 levels, keep 0.5"
    assert slow[name].step_seconds == pytest.approx(15.0)
    assert fast[name].step_seconds < 0.1
    assert slow["PacTrain, FULL"] == fast["PacTrain, FULL"]


@pytest.mark.parametrize(
    ("job", "begin"),
    [
        (Job(100_000, (4, 4), 10_000, 0.1, 0.5), "use plain DDP"),
        (
            Job(RESNET18, (3, 2, 3), 100, 0.3, 0.5),
            "try first, if your training bears it, what needs no agents: ",
        ),
        (
            Job(RESNET18, (3, 2, 3), 20_000, 0.026, 0.5),
            "use DDP with torch's fp16 hook",
        ),
        (Job(RESNET18, (3, 2, 3), 12_000, 0.026, 0.5), "use an all-reduce in bf16"),
    ],
)
def test_the_advice_names_what_fits_the_links(job: Job, begin: str) -> None:
    assert advice(job, candidates(job, FAST_CORE)).startswith(begin)


@pytest.mark.parametrize(
    ("rate_mbps", "keep", "other"),
    [
        (100, 0.5, "; else use PacTrain, 7 levels, keep 0.5: "),
        (2, 1.0, "; else use local SGD if your training bears it: "),
    ],
)
def test_peers_that_send_less_are_named_first_with_what_they_need(
    rate_mbps: float, keep: float, other: str
) -> None:
    job = Job(RESNET18, (3, 2, 3), rate_mbps, 0.02, keep)
    said = advice(job, candidates(job, FAST_CORE))
    first = "try first, if your training bears it, what needs no agents: "
    assert said.startswith(f"{first}DGC, density 0.001, no warm-up (SGD only) ")
    assert ", PowerSGD, rank 1" in said
    assert other in said
    assert said.endswith("to the same accuracy is in docs/when-it-helps.md")


@pytest.mark.parametrize(("keep", "is_said"), [(0.5, False), (0.2, True), (1.0, False)])
def test_a_mask_that_hardly_any_training_bore_is_said(
    keep: float, is_said: bool
) -> None:
    job = Job(RESNET18, (3, 2, 3), 100, 0.1, keep)
    said = advice(job, candidates(job, FAST_CORE))
    assert ("at 0.2 not all small trainings arrived" in said) is is_said
    assert ("use PacTrain, 7 levels, keep 0.2" in said) is False


@pytest.mark.parametrize("keep", [0.1, 0.001])
def test_a_mask_that_no_training_had_is_not_advised(keep: float) -> None:
    job = Job(RESNET18, (3, 2, 3), 100, 0.1, keep)
    said = advice(job, candidates(job, FAST_CORE))
    assert "use PacTrain, 7 levels, keep 0.5: " in said
    assert "below 0.2 no network of images was trained here" in said


def test_peers_whose_step_is_as_long_are_named_before_ours() -> None:
    job = Job(RESNET18, (3, 2, 3), 100, 0.5, 0.5)
    said = advice(job, candidates(job, FAST_CORE))
    assert said.startswith("try first, if your training bears it, what needs no agents")
    assert "DGC, density 0.001, no warm-up (SGD only) 1.0 times as fast, Pow" in said
    assert "; else use PacTrain" in said


@pytest.mark.parametrize(("rate_mbps", "is_said"), [(100, False), (500, True)])
def test_that_fast_links_steps_were_measured_longer_is_said(
    rate_mbps: float, is_said: bool
) -> None:
    job = Job(RESNET18, (3, 2, 3), rate_mbps, 0.026, 0.5)
    said = advice(job, candidates(job, FAST_CORE))
    assert ("up to 7 times as long as this" in said) is is_said


def test_own_steps_are_advised_where_twice_as_many_are_sooner_still() -> None:
    example = Job(RESNET18, (3, 2, 3), 100, 0.026, 0.5)
    rows = {row.name: row.step_seconds for row in candidates(example, FAST_CORE)}
    ours, local = rows["PacTrain, 7 levels, keep 0.5"], rows[calculator.LOCAL]
    assert local < ours < calculator.MORE_LOCAL_STEPS * local
    assert "; else use PacTrain" in advice(example, candidates(example, FAST_CORE))


@pytest.mark.parametrize("rate_mbps", [10_000, 12_000, 20_000])
def test_what_was_never_measured_is_said(rate_mbps: float) -> None:
    job = Job(RESNET18, (1,) * 8, rate_mbps, 0.026, 0.5, core=True)
    assert "above 1 Gbps this is by formula" in advice(job, candidates(job, FAST_CORE))
    unknown = Job(RESNET18, (1, 1), 5000, 0.0, 0.5)
    said = advice(unknown, candidates(unknown, FAST_CORE))
    assert said.startswith("use ")
    assert "no longer steps either, if compressing took nothing: DGC" in said
    slower = Job(RESNET18, (1,) * 8, 1000, 0.026, 0.5, core=True)
    assert "by formula" not in advice(slower, candidates(slower, FAST_CORE))


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--sites=3", "2 to 32 sites"),
        ("--sites=8", "with --core"),
        ("--sites=0,2", "at least 1"),
        ("--rate-mbps=nan", "0.1 to"),
        ("--keep=0", "0.001 to 1"),
    ],
)
def test_what_is_out_of_range_is_refused(
    argument: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"--elements": "1000", "--sites": "2,2", "--rate-mbps": "100"}
    name, _, value = argument.partition("=")
    argv = [f"{key}={text}" for key, text in (given | {name: value}).items()]
    with pytest.raises(SystemExit):
        calculator.main(argv)
    assert said in capsys.readouterr().err


def links(*goodputs: float) -> str:
    return json.dumps({"links": [{"goodputBytesPerSecond": g} for g in goodputs]})


def test_the_slowest_direction_that_was_measured_counts() -> None:
    found = calculator.slowest_mbps(links(24e6, 11.95e6, 0.0))
    assert found == pytest.approx(100.0)


@pytest.mark.parametrize("answer", [links(), links(0.0)])
def test_links_that_nobody_measured_are_said(answer: str) -> None:
    with pytest.raises(ValueError, match="give --rate-mbps"):
        calculator.slowest_mbps(answer)


def test_a_codec_that_is_not_built_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> float:
        raise PacTrainError("no trainer library")

    monkeypatch.setattr(calculator, "encode_rate", missing)
    with pytest.raises(SystemExit):
        calculator.main(["--elements=1000", "--sites=2,2", "--rate-mbps=100"])
    assert "no trainer library" in capsys.readouterr().err


def test_the_codec_is_timed_with_the_clock_given() -> None:
    times = iter([10.0, 12.0])
    assert calculator.encode_rate(lambda: next(times)) == pytest.approx(1 << 20)
