"""C++ trainers (examples/cpp_trainer) that train together, against their Python twin."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import twin
from daemons import BIN, ROOT

TRAINER = BIN / "cpp_trainer"
EXPORT = ROOT / "examples" / "cpp_trainer" / "export_images.py"
WORLD = 4
FINAL = re.compile(r"rank (\d): accuracy ([\d.]+), parameters (\w+), keep ([\d.]+)")


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "digits.images"
    environment = {k: v for k, v in os.environ.items() if k != "PACTRAIN_DATA"}
    subprocess.run([sys.executable, str(EXPORT), str(path)], check=True, env=environment)
    return path


def run_trainers(cluster, *flags: str) -> list[tuple[int, str, str]]:
    """Exit status, stdout and stderr of each rank."""
    ranks = []
    for rank, place in enumerate(cluster.environments(WORLD, cluster.new_job())):
        ranks.append(
            subprocess.Popen(
                [str(TRAINER), *flags],
                env={
                    **os.environ,
                    **place,
                    "RANK": str(rank),
                    "WORLD_SIZE": str(WORLD),
                    "OMP_NUM_THREADS": "1",
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        said = [rank.communicate(timeout=120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [(r.returncode, out, err) for r, (out, err) in zip(ranks, said, strict=True)]


def test_cpp_trainers_end_equal_and_as_good_as_the_python_twin(cluster, launch, digits):
    epochs, batch, amount = 4, 16, 0.7
    flags = [f"--data={digits}", f"--epochs={epochs}", f"--batch={batch}", f"--amount={amount}"]
    outcomes = run_trainers(cluster, *flags)
    finals = []
    for status, out, err in outcomes:
        assert status == 0, err
        final = FINAL.search(out)
        assert final, out
        finals.append(final)
    assert len({final[3] for final in finals}) == 1, outcomes
    assert len({final[2] for final in finals}) == 1  # Buffers, too.
    assert all(float(final[4]) < 0.5 for final in finals)
    told = outcomes[0][1]
    assert " x FULL (fp32)" in told.splitlines()[0]
    assert " x COMPACTED (fp32)" in told
    assert " x FULL" not in told.splitlines()[epochs - 1]

    launched = launch(cluster, twin.train, world=WORLD, epochs=epochs, batch=batch, amount=amount)
    ranks = launched.finish()
    for rank in ranks:
        assert not rank.error, rank.text
    accuracy = float(finals[0][2])
    assert accuracy > 0.8
    assert abs(accuracy - ranks[0].value["accuracy"]) < 0.05
