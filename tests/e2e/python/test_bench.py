"""`pactrain bench` asks a coordinator for the links' rate."""

from __future__ import annotations

import pytest
from elastic import STOP, eventually, on, pair, stopped, values

from pactrain import calculator

JOB = ["--elements=1000000", "--sites=1,1"]


def is_measured(address: str) -> bool:
    try:
        return calculator.ask_rate(address) > 0
    except ValueError:
        return False


def test_the_rate_is_what_the_agents_of_a_running_job_measured(
    own_cluster, join, capsys, monkeypatch
):
    monkeypatch.setattr(calculator, "encode_rate", lambda: 1e9)
    ranks = pair(join, own_cluster, own_cluster.new_job(), stops=(STOP,))
    stopped(*ranks)
    eventually(lambda: is_measured(own_cluster.address))  # Agents tell it now and then.
    assert calculator.main([*JOB, f"--coordinator={own_cluster.address}"]) == 0
    on(*ranks)
    values(*ranks)
    first, *rows = capsys.readouterr().out.splitlines()
    assert float(first.removeprefix("the slowest link that agents measured: ").split()[0]) > 0
    assert rows[-1].startswith(("use ", "try first, "))


def test_where_no_job_runs_it_says_what_to_give(own_cluster, capsys):
    with pytest.raises(SystemExit):
        calculator.main([*JOB, f"--coordinator={own_cluster.address}"])
    assert "no job runs over two sites" in capsys.readouterr().err


def test_a_coordinator_that_is_not_there_is_named(own_cluster, capsys):
    own_cluster.coordinator.kill()
    with pytest.raises(SystemExit):
        calculator.main([*JOB, f"--coordinator={own_cluster.address}"])
    assert f"coordinator {own_cluster.address} cannot be reached" in capsys.readouterr().err
