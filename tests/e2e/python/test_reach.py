"""Agents that cannot all be dialled: firewalls that let connections out only, NAT."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import scenarios
from firewalled import Firewalled, make_bed

from bench import testbed
from bench.processes import Children

pytestmark = pytest.mark.skipif(
    testbed.why_no_namespaces() is not None or shutil.which("nft") is None,
    reason=f"{testbed.why_no_namespaces() or 'no nft'}",
)
Start = Callable[..., Firewalled]


@pytest.fixture
def firewalled() -> Iterator[Start]:
    # Not pytest's folder: its path may be too long for a socket.
    with (
        tempfile.TemporaryDirectory(prefix="pactrain-e2e-") as folder,
        make_bed() as bed,
        Children(Path(folder)) as children,
    ):

        def start(**options: Any) -> Firewalled:
            return Firewalled(bed, children, Path(folder), **options)

        yield start


def trains(network: Firewalled, launch: Any) -> None:
    ranks = launch(network, scenarios.seeded_differently).finish()
    assert not any(rank.error for rank in ranks), ranks
    assert len({rank.value["digest"] for rank in ranks}) == 1


@pytest.mark.parametrize("closed", ["a", "b"])
@pytest.mark.parametrize("advertise", [None, "none"])
def test_one_side_that_can_be_dialled_is_enough(firewalled, launch, closed, advertise):
    network = firewalled(
        closed=[closed], advertise={} if advertise is None else {closed: advertise}
    )
    trains(network, launch)


def test_with_certificates_the_larger_name_dials_as_well(firewalled, launch):
    network = firewalled(closed=["b"], tls=True)
    trains(network, launch)
    doctor = network.doctor("a")
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    assert "(TLS), version" in doctor.stdout
    assert "b0 of site b cannot be dialled at 10.77.0.2:7072: no answer" in doctor.stdout
    assert "fine if it can dial this node" in doctor.stdout
    doctor = network.doctor("b")
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    assert "1 of 1 can be dialled from here" in doctor.stdout


def test_two_agents_that_nobody_can_dial_are_refused_by_name(firewalled, launch):
    network = firewalled(closed=["a", "b"], advertise={"a": "none", "b": "none"})
    for rank in launch(network, scenarios.attach_only).finish():
        assert rank.error == "RefusedError", rank
        assert "'a0' (site 'a')" in rank.text
        assert "'b0' (site 'b')" in rank.text
        assert "neither can dial the other" in rank.text
    doctor = network.doctor("a")
    assert doctor.returncode == 1
    assert "b0 of site b has no address either" in doctor.stdout
