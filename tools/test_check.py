"""`make check` builds and tests what a file can break."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("changed", "needs"),
    [
        ("agent/core/ballot.cc", {"//agent/core:all"}),
        ("coordinator/page/assets/page.css", {"//coordinator/page:all"}),
        ("trainer/pactrain.map", {"//trainer:all"}),
        ("python_client/src/pactrain/_version.py", {"//base:all", "python_client/tests"}),
        (
            "python_client/src/pactrain/masks.py",
            {"python_client/tests", "python_client/tests/test_devices.py"},
        ),
        ("docs/settings.md", {"//agent:all", "//coordinator:all", "tools"}),
        ("docs/session.md", {"python_client/tests/test_stats.py", "bench/test_figures.py"}),
        ("docs/metrics.md", {"tools", "bench/test_figures.py"}),
        ("deploy/pactrain-agent.yaml", {"//agent:all", "tests/deploy"}),
        ("bench/demo_report.py", {"bench/test_demo_report.py"}),
        ("bench/evidence/report.py", {"bench/test_evidence_report.py"}),
        ("WORKSPACE", {"//..."}),
    ],
)
def test_a_change_has_its_tests(changed: str, needs: set[str]) -> None:
    command = ["tools/check", "--what", changed]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    found = set(said.stdout.split("\n")) - {""}
    assert needs <= found
    assert all((ROOT / name).exists() for name in found if not name.startswith("//"))
