"""What is said of a start: nothing while it is healthy."""

from __future__ import annotations

import dataclasses
import queue

import pytest

from pactrain import _abi
from pactrain._library import Waits, _attach
from pactrain.broadcast import said_if_long
from pactrain.types import AttachOptions, Plan


def test_a_healthy_wait_says_nothing():
    said = []
    waits = Waits(said.append)
    waits.hear("waiting for the coordinator: not reached yet")
    waits.hear("waiting for rank 1 of 2")
    assert said == []


def test_a_long_wait_says_what_it_waits_for_now_and_from_then_on():
    said = []
    waits = Waits(said.append)
    waits.hear("waiting for the coordinator: not reached yet")
    waits.hear("waiting for rank 1 of 2")
    waits.speak()
    waits.hear("waiting for rank 3 of 4")
    assert said == ["waiting for rank 1 of 2", "waiting for rank 3 of 4"]


def test_a_long_wait_for_nothing_says_nothing():
    said = []
    Waits(said.append).speak()
    assert said == []


def test_what_takes_long_is_said_once_and_nothing_of_what_does_not():
    said = queue.SimpleQueue()
    with said_if_long(lambda: said.put("long"), patience_seconds=0):
        assert said.get(timeout=30) == "long"
    with said_if_long(lambda: said.put("short")):
        pass
    assert said.empty()


def test_options_that_c_does_not_take_are_an_error_and_no_wait_for_ever():
    with pytest.raises(TypeError):
        _attach(object(), print, "", None)


@pytest.mark.parametrize(
    ("ours", "struct", "beside"),
    [(AttachOptions, _abi.AttachOptions, {"previous"}), (Plan, _abi.Plan, set())],
)
def test_values_have_the_fields_of_their_structs(ours, struct, beside):
    """ctypes takes a name that is no field, and does nothing with it."""
    names = {field.name for field in dataclasses.fields(ours)}
    assert names | beside == {name for name, _ in struct._fields_}
