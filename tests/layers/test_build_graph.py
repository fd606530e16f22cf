"""The walls between the rooms, checked over the real Bazel graph."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

import pytest

from rooms import ALLOWED, LINKS, TEST_ROOMS, room_of

OWN_ROOMS = (
    *("wire", "membership_abi", "proto_convert", "libtorch"),
    *("fd", "safe_folders", "version", "weakened"),
)
ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Target:
    label: str
    deps: tuple[str, ...]
    test_only: bool

    @property
    def room(self) -> str | None:
        package, _, name = self.label.removeprefix("//").partition(":")
        # A target may be a room by its own name (//trainer:wire); else its folder is.
        return room_of(f"{package}/{name}") if name in OWN_ROOMS else room_of(package)


@functools.cache
def targets() -> dict[str, Target]:
    """All C++ rules of the workspace, of @system and of @torch, by label."""
    startup = os.environ.get("BAZEL_STARTUP", "").split()
    query = 'kind("cc_.* rule", deps(//...))'
    answer = subprocess.run(
        ["bazel", *startup, "query", query, "--output=xml", "--noimplicit_deps"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    found = {}
    for rule in ElementTree.fromstring(answer).iter("rule"):
        label = rule.attrib["name"]
        deps = [e.attrib["value"] for e in rule.findall("list[@name='deps']/label")]
        flag = rule.find("boolean[@name='testonly']")
        test_only = rule.attrib["class"] == "cc_test" or (
            flag is not None and flag.attrib["value"] == "true"
        )
        found[label] = Target(label, tuple(deps), test_only)
    return found


def product() -> list[Target]:
    """What is shipped: neither tests nor libraries for tests."""
    return [
        t
        for t in targets().values()
        if t.label.startswith("//") and not t.test_only and t.room not in TEST_ROOMS
    ]


def reachable(label: str) -> set[str]:
    seen: set[str] = set()
    todo = [label]
    while todo:
        current = todo.pop()
        if current not in seen and current in targets():
            seen.add(current)
            todo.extend(targets()[current].deps)
    return seen


def test_there_are_targets_to_check() -> None:
    assert len(product()) > 5


def test_every_target_has_a_room() -> None:
    homeless = [
        t.label for t in product() if t.room is None and not t.label.startswith("//third_party")
    ]
    assert not homeless, f"name these folders in tests/layers/rooms.py: {homeless}"


def test_rooms_use_only_what_the_arrows_allow() -> None:
    wrong = []
    for target in product():
        for dep in target.deps:
            used = targets()[dep].room if dep in targets() else None
            room = target.room
            if room is None or used is None or not dep.startswith("//"):
                continue
            if used != room and used not in ALLOWED[room]:
                wrong.append(f"{target.label} ({room}) uses {dep} ({used})")
    assert not wrong, "\n".join(wrong)


def test_nothing_uses_the_tests() -> None:
    wrong = [
        f"{t.label} uses {dep}"
        for t in targets().values()
        for dep in t.deps
        if t.room not in TEST_ROOMS and dep in targets() and targets()[dep].room in TEST_ROOMS
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("room", sorted(LINKS))
def test_room_links_only_its_system_libraries(room: str) -> None:
    wrong = []
    for target in (t for t in product() if t.room == room):
        for label in reachable(target.label):
            library = re.sub("^@(system|torch)//:", "", label)
            if library != label and library not in LINKS[room]:
                wrong.append(f"{target.label} links {label}")
    assert not wrong, "\n".join(sorted(wrong))


def test_only_logging_of_base_uses_spdlog() -> None:
    wrong = [
        t.label
        for t in product()
        if t.room == "base" and t.label != "//base:log" and "@system//:spdlog" in t.deps
    ]
    assert not wrong, wrong
