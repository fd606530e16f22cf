"""`make test` counts what ran, and never hides a failure."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from run_tests import Count, count_junit, read_build_events

XML = """<testsuites><testsuite name="s">
<testcase name="a" status="run"/>
<testcase name="b" status="run"><failure message="1 != 2"/></testcase>
<testcase name="c" status="notrun"/>
<testcase name="d"><skipped/></testcase>
</testsuite></testsuites>"""


def events(path: Path, *results: dict[str, object]) -> Path:
    lines = [
        {"id": {"testResult": {"label": f"//x:t{i}"}}, "testResult": result}
        for i, result in enumerate(results)
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def test_cases_that_did_not_run_count_as_neither(tmp_path: Path) -> None:
    (tmp_path / "test.xml").write_text(XML)
    assert count_junit(tmp_path / "test.xml") == Count(1, 1)


def test_a_target_that_crashed_without_xml_is_one_failure(tmp_path: Path) -> None:
    path = events(tmp_path / "events", {"status": "FAILED", "testActionOutput": []})
    assert read_build_events(path) == {"//x:t0": Count(0, 1)}


def test_a_target_that_timed_out_after_good_cases_is_one_failure(tmp_path: Path) -> None:
    good = XML.replace('<failure message="1 != 2"/>', "")
    (tmp_path / "test.xml").write_text(good)
    output = {"name": "test.xml", "uri": f"file://{tmp_path}/test.xml"}
    path = events(tmp_path / "events", {"status": "TIMEOUT", "testActionOutput": [output]})
    assert read_build_events(path) == {"//x:t0": Count(2, 1)}


def test_a_target_that_does_not_build_is_one_failure(tmp_path: Path) -> None:
    summary = {
        "id": {"testSummary": {"label": "//x:broken"}},
        "testSummary": {"overallStatus": "NO_STATUS"},
    }
    (tmp_path / "events").write_text(json.dumps(summary))
    assert read_build_events(tmp_path / "events") == {"//x:broken": Count(0, 1)}
