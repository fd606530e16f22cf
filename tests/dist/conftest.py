"""What `make dist` left in out/dist, unpacked."""

from __future__ import annotations

import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(Path(__file__).parent))


def the_one(pattern: str) -> Path:
    found = list((ROOT / "out/dist").glob(pattern))
    assert len(found) == 1, f"out/dist/{pattern}: {found}; run make dist"
    return found[0]


@pytest.fixture(scope="session")
def wheel() -> Path:
    return the_one("*.whl")


@pytest.fixture(scope="session")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's content, as it lies in a site-packages."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tarball's one folder."""
    folder = tmp_path_factory.mktemp("tree")
    with tarfile.open(the_one("*.tar.gz")) as archive:
        archive.extractall(folder, filter="tar")
    (top,) = folder.iterdir()
    return top


@pytest.fixture(scope="session")
def compiler() -> str:
    found = shutil.which("g++")
    assert found is not None
    return found
