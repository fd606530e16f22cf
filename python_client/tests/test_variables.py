"""Misspelt PACTRAIN_* variables are named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pactrain
from pactrain import variables

ROOT = Path(__file__).parents[2]
DOCTOR = ROOT / "coordinator" / "admin" / "variables.cc"
SCHEMA = ROOT / "proto" / "pactrain" / "v1" / "config.proto"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("PACTRAIN_AGNET", "PACTRAIN_AGENT"),
        ("PACTRAIN_SITS", "PACTRAIN_SITES"),
        ("PACTRAIN_JOBID", "PACTRAIN_JOB_ID"),
        ("PACTRAIN_XYZ", ""),
        ("PACTRAIN_AGENT_ADDR", "PACTRAIN_AGENT"),
        ("PACTRAIN_COORDINATOR_ADDR", "PACTRAIN_COORDINATOR"),
        ("PACTRAIN_AGENT_LISTN", "PACTRAIN_AGENT_LISTEN"),
        ("PACTRAIN_COORDINATOR_RISKS", "PACTRAIN_COORDINATOR_RISK"),
        ("PACTRAIN_AGENT_PORT", "PACTRAIN_AGENT"),  # Not as Kubernetes makes it.
    ],
)
def test_a_misspelt_variable_is_named_with_the_nearest(name, nearest):
    assert variables.unknown({name: "1", "HOME": "/"}) == {name: nearest}


def test_known_ones_and_those_of_others_are_not_named():
    kubernetes = {
        "PACTRAIN_AGENT_SERVICE_HOST": "10.0.0.1",
        "PACTRAIN_AGENT_SERVICE_PORT": "7072",
        "PACTRAIN_AGENT_SERVICE_PORT_GRPC": "7072",
        "PACTRAIN_AGENT_PORT_7072_TCP_PORT": "7072",
        "PACTRAIN_SERVICE_PORT": "7070",
        "PACTRAIN_AGENT_PORT": "tcp://10.0.0.1:7072",
        "PACTRAIN_COORDINATOR_PAGE_PORT_80_TCP_ADDR": "10.0.0.1",
        "PACTRAIN_SERVICE_HOST": "10.0.0.1",
        "PACTRAIN_PORT": "tcp://10.0.0.1:7070",
    }
    others = {"PACTRAIN_TEST_BIN", "PACTRAIN_DATA"}
    names = variables.KNOWN | variables.OF_DAEMONS | others
    assert variables.unknown({**dict.fromkeys(names, "1"), **kubernetes}) == {}


def test_those_of_daemons_are_their_settings():
    schema = SCHEMA.read_text()
    listed = set()
    for daemon in ("Agent", "Coordinator"):
        message = schema.partition(f"message {daemon}Config {{")[2].partition("\n}")[0]
        fields = re.findall(r"^  (?:\w+ )?\w+ (\w+) = \d+", message, re.MULTILINE)
        listed |= {f"PACTRAIN_{daemon}_{f}".upper() for f in (*fields, "config")}
    assert listed == variables.OF_DAEMONS


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
