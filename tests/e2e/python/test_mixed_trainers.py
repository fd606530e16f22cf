"""Python trainers (pactrain.DistributedDataParallel) and C++ trainers in one job."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import twin
from daemons import BIN, Cluster
from launcher import Launch
from patience import PATIENCE_SECONDS
from test_cpp_trainers import FINAL

from bench.processes import Child

SITES = {"PACTRAIN_SITES": "site-0:2,site-1:2"}
EPOCHS, BATCH = 3, 16  # 69 steps: buffers are synchronised in between, too.

Start = Callable[..., tuple[Launch, list[Child]]]


def one_launch(cluster: Cluster) -> list[dict[str, str]]:
    """Four ranks that were started by hand, by rank."""
    places = cluster.environments(4, cluster.new_job())
    return [
        {**place, "RANK": str(rank), "WORLD_SIZE": "4", "PACTRAIN_SITE": ""}
        for rank, place in enumerate(places)
    ]


def launch_per_site(cluster: Cluster) -> list[dict[str, str]]:
    """Two ranks in each of two sites, which share nothing but the agents."""
    places = cluster.environments(4, cluster.new_job())
    return [
        {
            **place,
            **SITES,
            "RANK": str(rank % 2),
            "WORLD_SIZE": "2",
            "PACTRAIN_SITE": f"site-{rank // 2}",
        }
        for rank, place in enumerate(places)
    ]


@pytest.fixture
def start(digits: Path, tmp_path: Path) -> Iterator[Start]:
    """start(environments, python ranks, ...) -> the Python ranks, the C++ ranks"""
    launches: list[Launch] = []
    children: list[Child] = []

    def run(
        environments: list[dict[str, str]], python: tuple[int, ...], **arguments: object
    ) -> tuple[Launch, list[Child]]:
        common = {"epochs": EPOCHS, "batch": BATCH, "amount": arguments.pop("amount", 0.7)}
        flags = [
            f"--{name.replace('_', '-')}={value}"
            for name, value in {**common, **arguments.get("onset", {})}.items()
        ]
        flags += ["--track"] * bool(arguments.get("track"))
        for rank, environment in enumerate(environments):
            if rank not in python:
                argv = [str(BIN / "cpp_trainer"), f"--data={digits}", *flags]
                log = tmp_path / f"rank-{rank}.log"
                children.append(Child(f"rank-{rank}", argv, environment, log))
        places = [environments[rank] for rank in python]
        every = {"path": str(digits), **common, **arguments}
        launches.append(Launch(twin.train_with_cpp, places, tmp_path / "store", every))
        return launches[-1], children

    yield run
    for launched in launches:
        launched.__exit__()
    for child in children:
        child.process.kill()
        child.process.wait()


@pytest.mark.parametrize("amount", [0.0, 0.7])
@pytest.mark.parametrize(
    ("environments", "python"), [(launch_per_site, (0, 1)), (one_launch, (2, 3))]
)
def test_python_and_cpp_trainers_end_with_the_same_bits(
    cluster, start, environments, python, amount
):
    running, children = start(environments(cluster), python, amount=amount)
    finals = [FINAL.search(child.wait_for("parameters ", PATIENCE_SECONDS)) for child in children]
    ranks = running.finish(PATIENCE_SECONDS)
    assert not any(rank.error for rank in ranks), ranks
    assert [child.process.wait(PATIENCE_SECONDS) for child in children] == [0, 0]
    digests = [final["digest"] for final in finals] + [r.value["digest"] for r in ranks]
    assert len(set(digests)) == 1, digests
    # Buffers are equal, too.
    accuracies = [final["accuracy"] for final in finals]
    accuracies += [f"{rank.value['accuracy']:.4f}" for rank in ranks]
    assert len(set(accuracies)) == 1, accuracies
    modes = [rank.value["modes"] for rank in ranks]
    assert modes[0] == modes[1]
    assert modes[0][0] == "FULL fp32"
    assert modes[0][-1] == ("COMPACTED fp32" if amount else "FULL fp32")
    assert {final["outside"] for final in finals} == {"0"}


def test_both_find_the_masks_that_a_script_makes_by_hand(cluster, start):
    running, children = start(launch_per_site(cluster), (0, 1), track=True)
    finals = [FINAL.search(child.wait_for("parameters ", PATIENCE_SECONDS)) for child in children]
    ranks = running.finish(PATIENCE_SECONDS)
    assert not any(rank.error for rank in ranks), ranks
    digests = [final["digest"] for final in finals] + [r.value["digest"] for r in ranks]
    assert len(set(digests)) == 1, digests
    modes = ranks[0].value["modes"]
    assert ranks[1].value["modes"] == modes
    assert (modes[0], modes[-1]) == ("FULL fp32", "COMPACTED fp32")
    assert {float(final["keep"]) for final in finals} == {ranks[0].value["keep"]}


def test_cpp_trainers_hold_frozen_weights_as_a_python_rank_0_declared_them(cluster, start):
    running, children = start(launch_per_site(cluster), (0, 1), kind="freeze")
    finals = [FINAL.search(child.wait_for("parameters ", PATIENCE_SECONDS)) for child in children]
    ranks = running.finish(PATIENCE_SECONDS)
    assert not any(rank.error for rank in ranks), ranks
    assert ranks[0].value["modes"][-1] == "COMPACTED fp32"
    digests = [final["digest"] for final in finals] + [r.value["digest"] for r in ranks]
    assert len(set(digests)) == 1, digests


def test_what_both_languages_pin_comes_in_force_with_the_same_step(cluster, start):
    onset = {"activate_at": 4, "pin": "TERNARY 7", "pin_from": 8}
    running, children = start(launch_per_site(cluster), (0, 1), onset=onset)
    finals = [FINAL.search(child.wait_for("parameters ", PATIENCE_SECONDS)) for child in children]
    ranks = running.finish(PATIENCE_SECONDS)
    assert not any(rank.error for rank in ranks), ranks
    digests = [final["digest"] for final in finals] + [r.value["digest"] for r in ranks]
    assert len(set(digests)) == 1, digests
    modes = [mode for mode in ranks[0].value["modes"] if mode != "TERNARY 7 levels"]
    assert modes == ranks[0].value["modes"][: len(modes)]
    assert modes[-1] == "COMPACTED fp32"
    assert len(modes) == 6


def test_another_model_in_the_other_language_is_refused_in_words(cluster, start):
    running, children = start(launch_per_site(cluster), (0, 1), classes=11)
    ranks = running.finish(PATIENCE_SECONDS)
    assert [child.process.wait(PATIENCE_SECONDS) for child in children] == [1, 1]
    texts = [rank.text for rank in ranks] + [child.log.read_text() for child in children]
    assert {rank.error for rank in ranks} == {"RefusedError"}
    for text in texts:
        assert re.search(r"\bSequential: 14 parameters of float32, 94,539 elements", text), text
        assert re.search(r"SequentialImpl: 14 parameters of float32, 94,410 elements", text), text
