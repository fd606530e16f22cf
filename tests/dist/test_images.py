"""The images are small, have no shell, and their daemons start as nobody of this system."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import images
import pytest

pytestmark = pytest.mark.skipif(images.why_none() is not None, reason=str(images.why_none()))
LOOPBACK = ["--insecure-local", "--listen=127.0.0.1:0", "--listen-metrics=127.0.0.1:0"]
WORDS = {
    "pactrain-coordinator": [*LOOPBACK, "--state-dir=/run/pactrain/state"],
    "pactrain-agent": [
        *(*LOOPBACK, "--name=a", "--coordinator=127.0.0.1:1"),
        "--socket=/run/pactrain/agent.sock",
    ],
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[images.Store]:
    store = images.Store(tmp_path_factory.mktemp("images"))
    yield store
    store.close()


@pytest.fixture(scope="module")
def built(store: images.Store) -> list[images.Image]:
    return store.build()


def test_they_are_small_and_hold_nothing_else(built: list[images.Image]) -> None:
    version = next(images.DIST.glob("*.tar.gz")).name.split("-")[1]
    assert [image.name for image in built] == [f"localhost/{name}:{version}" for name in WORDS]
    for image in built:
        assert images.problems(image) == []
        assert (image.root / "usr/share/doc/pactrain/LICENSE-third-party").is_file()


def test_what_they_must_not_have_is_found(built: list[images.Image], tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sh").touch()
    for change, said in (
        ({"root": tmp_path}, "has bin/sh"),
        ({"bytes": 60_000_001}, "has 60 MB"),
        ({"user": "0:0"}, "runs as user '0:0'"),
    ):
        (problem,) = images.problems(dataclasses.replace(built[0], **change))
        assert said in problem


def test_their_daemons_start(
    store: images.Store, built: list[images.Image], tmp_path: Path
) -> None:
    for image, (daemon, words) in zip(built, WORDS.items(), strict=True):
        folder = tmp_path / daemon
        folder.mkdir()
        assert store.start(image, folder, words).startswith("listening ")
