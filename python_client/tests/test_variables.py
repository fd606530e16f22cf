"""Misspelt PACTRAIN_* variables are named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pactrain
from pactrain import variables

DOCTOR = Path(__file__).parents[2] / "coordinator" / "admin" / "variables.cc"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("PACTRAIN_AGNET", "PACTRAIN_AGENT"),
        ("PACTRAIN_SITS", "PACTRAIN_SITES"),
        ("PACTRAIN_JOBID", "PACTRAIN_JOB_ID"),
        ("PACTRAIN_XYZ", ""),
    ],
)
def test_a_misspelt_variable_is_named_with_the_nearest(name, nearest):
    assert variables.unknown({name: "1", "HOME": "/"}) == {name: nearest}


def test_known_ones_and_those_of_others_are_not_named():
    others = ("PACTRAIN_AGENT_SERVICE_HOST", "PACTRAIN_COORDINATOR_RISK")
    names = (*variables.KNOWN, *others, "PACTRAIN_TEST_BIN", "PACTRAIN_DATA")
    assert variables.unknown(dict.fromkeys(names, "1")) == {}


def test_they_are_those_of_the_doctor():
    text = DOCTOR.read_text()
    listed = set(re.findall(r'\{"(PACTRAIN_\w+)", ', text))
    embedded = re.search(r"kEmbedded\[\] = \{([^}]*)\}", text)
    assert embedded is not None
    listed |= {
        "PACTRAIN_" + key.upper().replace("-", "_")
        for key in re.findall(r'"([^"]+)"', embedded[1])
    }
    daemons = {name for name in listed if name.endswith("_CONFIG")}
    assert listed - daemons == variables.KNOWN


def test_attach_says_so_once(attach, net, monkeypatch, caplog):
    variables._warn.cache_clear()
    monkeypatch.setenv("PACTRAIN_AGNET", "unix:/run/agent.sock")
    attached = attach(net)
    attached.session.close()
    pactrain.attach(attached.ddp)
    texts = [r.getMessage() for r in caplog.records if "AGNET" in r.getMessage()]
    assert texts == [
        "PACTRAIN_AGNET is no variable of PacTrain and has no effect: did you mean "
        "PACTRAIN_AGENT?"
    ]
