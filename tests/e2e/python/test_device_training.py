"""Models on a device that needs no GPU, with real agents: as on the CPU, bit for bit."""

from __future__ import annotations

import device_scenarios
import pytest
from device_scenarios import STEPS
from test_training import values


@pytest.fixture(scope="module", autouse=True)
def built():
    """Before ranks wait for each other."""
    device_scenarios.queued.build()


def run(cluster, launch, place, **arguments):
    """What each rank has at the end; ranks are alike."""
    results = values(launch(cluster, device_scenarios.train, place=place, **arguments).finish())
    assert results[0] == results[1]
    return results[0]


@pytest.mark.parametrize("kind", ["", "zero", "freeze"])
@pytest.mark.parametrize("own", [True, False])
def test_training_on_a_device_is_that_on_the_cpu(cluster, launch, own, kind):
    on_cpu, on_device = (
        run(cluster, launch, place, own=own, kind=kind) for place in ("cpu", "queued")
    )
    assert on_device == on_cpu
    assert on_device["mode"] == ("COMPACTED fp32" if kind else "FULL fp32")
    assert on_device["outside"] == 0


@pytest.mark.parametrize("places", [("queued", "cpu"), ("cpu", "queued")])
def test_a_checkpoint_goes_on_elsewhere(cluster, launch, tmp_path, places):
    first, second = places
    options = {"own": True, "kind": "zero", "folder": str(tmp_path)}
    whole = run(cluster, launch, first, **options)
    assert run(cluster, launch, second, resumes=True, **options) == whole


@pytest.mark.parametrize("kind", ["zero", "freeze"])
def test_buckets_that_are_packed_there_give_the_bits_of_the_cpu(cluster, launch, kind):
    """By the kernels' source and the library's way to the driver."""
    if "without nvcc" in device_scenarios.kernels_here():
        pytest.skip("the trainer library was built without nvcc")
    device_scenarios.queued.build_driver()
    on_cpu = run(cluster, launch, "cpu", own=True, kind=kind)
    ranks = launch(cluster, device_scenarios.train_packed, place="queued", kind=kind).finish()
    packed = values(ranks)
    launches = packed[0].pop("launches")
    assert packed[1].pop("launches") == launches > STEPS
    assert packed[0] == packed[1] == on_cpu
