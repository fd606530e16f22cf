"""For tests of deploy/."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import programs


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> programs.Files:
    return programs.Files(tmp_path_factory.mktemp("etc"))
