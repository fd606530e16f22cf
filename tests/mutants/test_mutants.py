"""The switch that weakens rules: its table is whole, and nothing that is shipped has it."""

from __future__ import annotations

import pytest
from table import ROOT, places, rules

SHIPPED = [
    "out/bin/pactrain-agent",
    "out/bin/pactrain-coordinator",
    "python_client/src/pactrain/_native/libpactrain_trainer.so",
]


def test_the_table_names_each_rule_once_and_where_it_is() -> None:
    names = [rule.name for rule in rules()]
    assert len(names) == len(set(names))
    in_code = places()
    assert set(names) == set(in_code)
    wrong = [rule.name for rule in rules() if rule.where not in in_code[rule.name]]
    assert wrong == []


def test_the_sample_has_eight_that_the_simulator_notices() -> None:
    sample = [rule for rule in rules() if rule.sample]
    assert len(sample) == 8
    assert [rule.name for rule in sample if "sim" not in rule.caught_by] == []


@pytest.mark.parametrize("file", SHIPPED)
def test_what_is_shipped_cannot_be_weakened(file: str) -> None:
    assert b"WEAKENED_RULE" not in (ROOT / file).read_bytes()
