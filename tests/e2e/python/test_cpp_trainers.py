"""C++ trainers (examples/cpp_trainer) that train together, against their Python twin."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import twin
from daemons import BIN, Cluster
from patience import PATIENCE_SECONDS

from bench.processes import Child

WORLD = 4
FINAL = re.compile(
    r"accuracy (?P<accuracy>[\d.]+), parameters (?P<digest>\w+), keep (?P<keep>[\d.]+), "
    r"(?P<outside>\d+) weights outside"
)

Start = Callable[..., list[Child]]


@pytest.fixture
def trainers(digits: Path, tmp_path: Path) -> Iterator[Start]:
    """trainers(cluster, job=..., epochs=..., ...) -> one process per rank"""
    started: list[Child] = []

    def start(
        cluster: Cluster,
        job: str = "",
        environment: dict[str, str] | None = None,
        **flags: object,
    ) -> list[Child]:
        argv = [str(BIN / "cpp_trainer"), f"--data={digits}"]
        argv += [f"--{name}={value}" for name, value in flags.items()]
        for rank, place in enumerate(cluster.environments(WORLD, job or cluster.new_job())):
            here = {"RANK": str(rank), "WORLD_SIZE": str(WORLD), **(environment or {})}
            log = tmp_path / f"rank-{rank}-{len(started)}.log"  # Of one run of several.
            started.append(Child(f"rank-{rank}", argv, {**place, **here}, log))
        return started

    yield start
    for child in started:
        child.process.kill()
        child.process.wait()


def test_cpp_trainers_end_equal_and_as_good_as_the_python_twin(cluster, launch, trainers, digits):
    settings = {"epochs": 4, "batch": 16, "amount": 0.7}
    running = trainers(cluster, **settings)
    told = [
        running[0].wait_for(f"epoch {n + 1}:", PATIENCE_SECONDS) for n in range(settings["epochs"])
    ]
    assert " x FULL fp32" in told[0]
    assert any(" x COMPACTED fp32" in line for line in told)
    assert "FULL" not in told[-1]
    finals = [FINAL.search(child.wait_for("accuracy", PATIENCE_SECONDS)) for child in running]
    assert len({final["digest"] for final in finals}) == 1
    assert len({final["accuracy"] for final in finals}) == 1  # Buffers are equal, too.
    assert float(finals[0]["keep"]) < 0.5
    assert {final["outside"] for final in finals} == {"0"}
    assert [child.process.wait(PATIENCE_SECONDS) for child in running] == [0] * WORLD

    twins = launch(cluster, twin.train, world=WORLD, path=str(digits), **settings)
    ranks = twins.finish(PATIENCE_SECONDS)
    for rank in ranks:
        assert not rank.error, rank.text
    accuracy = float(finals[0]["accuracy"])
    assert accuracy > 0.9
    assert abs(accuracy - ranks[0].value) < 0.03


def test_a_batch_larger_than_the_images_is_refused(cluster, trainers):
    for child in trainers(cluster, batch=376):  # 1,500 images.
        assert child.process.wait(PATIENCE_SECONDS) == 1
        text = child.log.read_text()
        assert "--batch is 376; allowed is at most 375, the images of each of 4 ranks." in text


def test_cpp_trainers_go_through_all_three_modes_and_learn(cluster, trainers):
    """The policy of this cluster never says TERNARY: that is pinned."""
    job = cluster.new_job()
    running = trainers(cluster, job, epochs=20, batch=16, amount=0.7)
    assert " x FULL fp32" in running[0].wait_for("epoch 1:", PATIENCE_SECONDS)
    running[0].wait_for(" COMPACTED fp32", PATIENCE_SECONDS)
    pin = cluster.admin("pin", job, "TERNARY", "--levels", "7")
    subprocess.run(pin, check=True, timeout=PATIENCE_SECONDS)
    running[0].wait_for(" TERNARY 7 levels", PATIENCE_SECONDS)
    finals = [FINAL.search(child.wait_for("parameters", PATIENCE_SECONDS)) for child in running]
    assert len({final["digest"] for final in finals}) == 1
    assert {final["outside"] for final in finals} == {"0"}
    assert float(finals[0]["accuracy"]) > 0.9
    assert [child.process.wait(PATIENCE_SECONDS) for child in running] == [0] * WORLD


def test_masks_of_a_cpp_program_are_found_and_found_again_when_they_move(cluster, trainers):
    """It prunes by hand. In mid-run what was pruned comes back, and half as much goes."""
    job = cluster.new_job()
    running = trainers(cluster, job, epochs=4, batch=16, amount=0.7, track="true")
    modes = [running[0].wait_for(f"epoch {n}:", PATIENCE_SECONDS) for n in range(1, 5)]
    assert " x FULL fp32" in modes[0]
    assert "DENSE" in modes[2]
    for moving, settled in (modes[:2], modes[2:]):
        assert " x COMPACTED fp32" in moving
        assert ", 23 x COMPACTED fp32, " in settled
    finals = [FINAL.search(child.wait_for("parameters", PATIENCE_SECONDS)) for child in running]
    assert len({final["digest"] for final in finals}) == 1
    assert {final["outside"] for final in finals} == {"0"}
    assert 0.5 < float(finals[0]["keep"]) < 0.8
    assert [child.process.wait(PATIENCE_SECONDS) for child in running] == [0] * WORLD
    admin = cluster.admin("job", job)
    shown = subprocess.run(
        admin, check=True, timeout=PATIENCE_SECONDS, capture_output=True, text=True
    ).stdout
    assert "settled: unchanged for 10 steps at all ranks" in shown
    assert re.search(r"\nmoved +last before step \d+: \d+\.weight [\d,]+.* elements moved\n", shown)
    assert re.search(r"\ncompacted +first at step \d+\n", shown)


def test_equal_cpp_runs_are_equal_bit_for_bit(cluster, trainers):
    """Also in TERNARY, if the script says from which step on."""
    pinned = {"pin": "TERNARY 7", "pin-from": 8, "epochs": 1, "batch": 16}
    ends = []
    for _ in range(2):
        running = trainers(cluster, **pinned)[-WORLD:]
        assert "16 x TERNARY 7 levels" in running[0].wait_for("epoch 1:", PATIENCE_SECONDS)
        finals = [FINAL.search(child.wait_for("parameters", PATIENCE_SECONDS)) for child in running]
        assert [child.process.wait(PATIENCE_SECONDS) for child in running] == [0] * WORLD
        ends += [final["digest"] for final in finals]
    assert len(set(ends)) == 1


def test_a_killed_cpp_trainer_ends_the_others_in_words(own_cluster, trainers):
    """If they are told to abort."""
    running = trainers(own_cluster, environment={"PACTRAIN_ON_SHRINK": "abort"}, epochs=100_000)
    running[0].wait_for("epoch 1:", PATIENCE_SECONDS)
    running[3].process.kill()
    for rank, child in enumerate(running[:3]):
        assert child.process.wait(PATIENCE_SECONDS) == 1, f"rank {rank}"
        assert "rank 3" in child.log.read_text()
