"""Accelerate, Lightning and HF Trainer give the bits of plain torchrun with attach()."""

from __future__ import annotations

import json

import device_scenarios
import pytest
from patience import PATIENCE
from test_torchrun import HERE, Torchrun


def train(kind, place, cluster, folder):
    """What both ranks left, after two ranks on two sites."""
    environment = {
        "PACTRAIN_JOB_ID": cluster.new_job(),
        "PACTRAIN_ATTACH_TIMEOUT": PATIENCE,
        "HF_HUB_OFFLINE": "1",
    }
    agents = [f"unix:{cluster.socket(site)}" for site in (0, 1)]
    script = HERE / "framework_script.py"
    launcher = ("--standalone", "--nproc-per-node=2", script, kind, place, folder)
    Torchrun(folder / f"{kind}.log", environment, *launcher, *agents).finish()
    results = [json.loads((folder / f"{kind}-{rank}.json").read_text()) for rank in (0, 1)]
    assert results[0]["digests"] == results[1]["digests"]
    return results


@pytest.fixture(scope="module", autouse=True)
def built():
    """Before ranks wait for each other."""
    device_scenarios.queued.build()


@pytest.fixture(scope="module")
def plain(cluster, tmp_path_factory):
    return train("plain", "cpu", cluster, tmp_path_factory.mktemp("plain"))[0]["digests"]


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("lightning", "cpu"),
        ("accelerate", "queued"),
        *(
            pytest.param(kind, place, marks=pytest.mark.nightly)
            for kind, place in (
                ("lightning", "queued"),
                ("accelerate", "cpu"),
                ("transformers", "cpu"),
                ("transformers", "queued"),
            )
        ),
    ],
)
def test_a_framework_gives_the_bits_of_plain_torchrun(kind, place, plain, cluster, tmp_path):
    """Also on the device of tests/device, which needs no GPU."""
    for rank, result in enumerate(train(kind, place, cluster, tmp_path)):
        steps = len(result["digests"])
        assert len(set(result["digests"])) == steps
        # It ends after 12 steps of COMPACTED; how many come before depends on the machine.
        both = min(steps, len(plain))
        assert both >= 12
        assert result["digests"][:both] == plain[:both]
        assert result["places"] == ["cpu" if place == "cpu" else f"{place}:{rank}"]
        assert result["modes"][-12:] == ["COMPACTED fp32"] * 12
        stats = result["stats"]
        # Every gradient went through the agent, and between sites only the kept ones.
        assert stats["pactrain/steps"] == steps
        assert 0 < stats["pactrain/step_sent_bytes"] < 4 * stats["pactrain/elements"]
        assert stats["pactrain/submitted_elements"] < 0.7 * stats["pactrain/elements"]
        # The next script, with other weights and no pruning, went on with the masks.
        assert result["after"]["masks"] == result["before"]["masks"]
        assert result["after"]["step"] > result["before"]["step"]
        if kind != "accelerate":  # Whose scripts log themselves.
            assert result["logged"] == steps
