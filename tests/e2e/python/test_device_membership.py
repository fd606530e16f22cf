"""Ranks that come, go and stand still while their models are on a device, with real agents."""

from __future__ import annotations

import signal

import device_losses
import device_scenarios
import pytest
from elastic import BATCHES, STOP, equal, logged, on, stopped, values
from patience import PATIENCE_SECONDS
from test_failures import TYPED

BUCKET = 20  # Of the fourth step: each has five.


@pytest.fixture(scope="module", autouse=True)
def built():
    """Before ranks wait for each other."""
    device_scenarios.queued.build()
    device_scenarios.queued.build_driver()


@pytest.mark.parametrize(
    ("where", "path", "at", "applied"),  # So many steps are.
    [
        ("staging", "torch", BUCKET, 3),
        ("staging", "device", BUCKET, 3),
        ("exchange", "torch", 4, 2),  # Attaching has had two of them.
        ("copy", "torch", BUCKET, 4),
        ("copy", "device", BUCKET, 4),
    ],
)
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_rank_lost_in_a_copy_leaves_a_step_to_all_or_to_none(
    own_cluster, launch, where, path, at, applied, number
):
    if path == "device" and "without nvcc" in device_scenarios.kernels_here():
        pytest.skip("the trainer library was built without nvcc")
    how = {"path": path, "where": where, "at": at, "number": number}
    running = launch(
        own_cluster, device_losses.interrupted, environment={"PACTRAIN_ON_SHRINK": "abort"}, **how
    )
    running.tell(15)
    first, last = running.ranks
    running.wait_until(lambda: bool(first.value or first.error), PATIENCE_SECONDS)
    assert first.value["error"] in TYPED, first
    # Who dies while it waits has given all gradients: its agent votes for that step, or hears of
    # the end first, which ends the generation before its vote.
    dies_waiting = where == "exchange" and number == signal.SIGKILL
    assert first.value["steps"] in ({applied - 1, applied} if dies_waiting else {applied})
    assert first.value["untouched"]
    assert first.value["cleared"]
    if number == signal.SIGKILL:
        running.finish()
        assert last.error == "Killed"
        return
    assert not last.value
    running.kill(1, signal.SIGCONT)
    running.finish()
    assert last.value["error"] in TYPED, last
    for key in ("steps", "digest"):
        assert last.value[key] == first.value[key]


@pytest.mark.parametrize(("where", "at"), [("staging", 60), ("exchange", 12), ("copy", 60)])
def test_a_rank_that_stood_still_in_a_copy_comes_back_with_the_bits_of_the_cpu(
    own_cluster, join, undisturbed, where, at
):
    wanted = undisturbed()
    job, lost = own_cluster.new_job(), (where, at, signal.SIGSTOP)
    how = {"scenario": device_losses.trained, "stops": ()}
    first = join(own_cluster, job, 0, 0, **how)
    second = join(own_cluster, job, 1, 1, lost=lost, **how)
    logged(own_cluster.agents[0], "generation 1 ended (straggler)")
    second.kill(0, signal.SIGCONT)
    results = values(first, second)
    assert equal(results)
    assert [result["batches"] for result in results] == [list(range(BATCHES))] * 2
    assert results[0]["digest"] == wanted


@pytest.mark.parametrize("amount", [0.0, 0.6])
@pytest.mark.parametrize(("first", "second"), [("queued", "cpu"), ("cpu", "queued")])
def test_a_newcomer_takes_the_state_from_another_kind_of_device(
    own_cluster, join, undisturbed, first, second, amount
):
    """By agents; both are then what they were on the CPU."""
    how = {"scenario": device_losses.trained, "amount": amount}
    wanted, job = undisturbed(amount=amount), own_cluster.new_job()
    donor = join(own_cluster, job, 0, 0, device=first, **how)
    other = join(own_cluster, job, 1, 1, device=second, **how)
    stopped(donor, other)
    other.kill(0)
    on(donor)
    newcomer = join(own_cluster, job, 1, 1, device=second, stops=(), **how)
    results = values(donor, newcomer)
    assert equal(results)
    assert results[0]["digest"] == wanted
    assert [result["began"] for result in results] == [0, STOP]
