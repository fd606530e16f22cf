"""`make test` counts what ran, and never hides a failure."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import run_tests
from run_tests import Count, Skip, count_junit, judge_skips, main, read_allowed, read_build_events

XML = """<testsuites><testsuite name="s">
<testcase name="a" status="run"/>
<testcase name="b" status="run"><failure message="1 != 2"/></testcase>
<testcase name="c" classname="C" status="notrun"/>
<testcase name="d" classname="D"><skipped message="x_test.cc:3&#x0A;needs root&#x0A;"/></testcase>
</testsuite></testsuites>"""
SKIPS = (Skip("C.c", "disabled"), Skip("D.d", "needs root"))


def events(path: Path, *results: dict[str, object]) -> Path:
    lines = [
        {"id": {"testResult": {"label": f"//x:t{i}"}}, "testResult": result}
        for i, result in enumerate(results)
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def test_cases_that_did_not_run_are_skips_with_their_reasons(tmp_path: Path) -> None:
    (tmp_path / "test.xml").write_text(XML)
    assert count_junit(tmp_path / "test.xml") == Count(1, 1, SKIPS)


def test_a_reason_of_pytest_is_one_line_and_stays_whole(tmp_path: Path) -> None:
    case = '<testcase name="d" classname="D"><skipped message="no namespaces here"/></testcase>'
    (tmp_path / "test.xml").write_text(f"<testsuite>{case}</testsuite>")
    assert count_junit(tmp_path / "test.xml").skips == (Skip("D.d", "no namespaces here"),)


def test_in_ci_a_skip_that_is_not_on_the_list_is_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "allowed").write_text("# a comment\nD.*  # and why\n\n")
    allowed = read_allowed(tmp_path / "allowed")
    assert judge_skips(Count(5, 0, SKIPS), allowed, ci=True) == Count(5, 1, SKIPS[1:])
    printed = capsys.readouterr().out
    assert "FAILED in CI, not in allowed_skips.txt: C.c: disabled\n" in printed
    assert "skipped: D.d: needs root\n" in printed
    assert judge_skips(Count(5, 0, SKIPS), allowed, ci=False) == Count(5, 0, SKIPS)


def test_a_parametrised_case_is_allowed_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "allowed").write_text("m.test_x[a#1]  # and why\n")
    allowed = read_allowed(tmp_path / "allowed")
    assert allowed == ["m.test_x[a#1]"]
    skips = (Skip("m.test_x[a#1]", "why"), Skip("m.test_x[b]", "why"))
    assert judge_skips(Count(1, 0, skips), allowed, ci=True).skips == skips[:1]


@pytest.mark.parametrize(("ci", "status"), [(False, 0), (True, 1)])
def test_the_last_line_counts_all_three(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], ci: bool, status: int
) -> None:
    script = "import pytest\ndef test_a(): pass\n@pytest.mark.skip(reason='why')\ndef test_b(): 0\n"
    (tmp_path / "test_x.py").write_text(script)
    assert main([str(tmp_path)], ci) == status
    last = capfd.readouterr().out.splitlines()[-1]
    assert last == f"1 passed, {status} failed, {1 - status} skipped"


def test_a_case_that_waits_for_ever_is_a_failure_that_shows_where(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_tests, "HUNG_SECONDS", 1)
    script = "import threading\ndef test_a(): threading.Event().wait()\n"
    (tmp_path / "test_x.py").write_text(script)
    assert main([str(tmp_path)], ci=True) == 1
    output = capfd.readouterr()
    assert output.out.splitlines()[-1] == "0 passed, 1 failed, 0 skipped"
    assert "test_x.py" in output.err + output.out
    assert "in test_a" in output.err + output.out


def test_a_target_that_crashed_without_xml_is_one_failure(tmp_path: Path) -> None:
    path = events(tmp_path / "events", {"status": "FAILED", "testActionOutput": []})
    assert read_build_events(path) == {"//x:t0": Count(0, 1)}


def test_a_target_that_timed_out_after_good_cases_is_one_failure(tmp_path: Path) -> None:
    good = XML.replace('<failure message="1 != 2"/>', "")
    (tmp_path / "test.xml").write_text(good)
    output = {"name": "test.xml", "uri": f"file://{tmp_path}/test.xml"}
    path = events(tmp_path / "events", {"status": "TIMEOUT", "testActionOutput": [output]})
    assert read_build_events(path) == {"//x:t0": Count(2, 1, SKIPS)}


def test_a_target_that_does_not_build_is_one_failure(tmp_path: Path) -> None:
    summary = {
        "id": {"testSummary": {"label": "//x:broken"}},
        "testSummary": {"overallStatus": "NO_STATUS"},
    }
    (tmp_path / "events").write_text(json.dumps(summary))
    assert read_build_events(tmp_path / "events") == {"//x:broken": Count(0, 1)}


# Instead of Bazel: writes where it is told to that a target passed, and what it was asked.
BAZEL = """#!/bin/bash
for word; do
  case $word in --build_event_json_file=*) cp '{events}' "${{word#*=}}" ;; esac
  echo "$word"
done >'{asked}'
exit {status}
"""


@pytest.fixture
def bazel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what a Bazel said, asked for, and the test.xml of a target with a skip."""
    good = XML.replace('<failure message="1 != 2"/>', "").replace(' status="notrun"', "")
    (tmp_path / "test.xml").write_text(good)
    output = {"name": "test.xml", "uri": f"file://{tmp_path}/test.xml"}
    said = events(tmp_path / "said", {"status": "PASSED", "testActionOutput": [output]})
    stub = tmp_path / "bin" / "bazel"
    stub.parent.mkdir()
    stub.write_text(BAZEL.format(events=said, asked=tmp_path / "asked", status=0))
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stub.parent}{os.pathsep}{os.environ['PATH']}")
    # Of the machine's own nothing is cleaned up.
    monkeypatch.setenv("PACTRAIN_BUILD_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize(("ci", "failed"), [(False, 0), (True, 1)])
def test_a_skip_under_a_sanitizer_is_judged_as_elsewhere(
    bazel: Path, capfd: pytest.CaptureFixture[str], ci: bool, failed: int
) -> None:
    assert main(["--config=asan", "//x:y"], ci) == failed
    last = capfd.readouterr().out.splitlines()[-1]
    assert last == f"3 passed, {failed} failed, {1 - failed} skipped"
    asked = (bazel / "asked").read_text().splitlines()
    assert {"test", "--config=asan", "//x:y"} <= set(asked)
    assert ("--nocache_test_results" in asked) == ci


def test_a_target_that_bazel_leaves_out_is_a_skip(tmp_path: Path) -> None:
    path = tmp_path / "events.json"
    left_out = {"reason": "SKIPPED", "description": "Target //x:t_test build was skipped."}
    path.write_text(
        "".join(
            json.dumps({"id": {"targetCompleted": {"label": label}}, "aborted": left_out}) + "\n"
            for label in ("//x:t_test", "//x:library")
        )
    )
    (count,) = read_build_events(path).values()
    assert [skip.case for skip in count.skips] == ["//x:t_test"]
    assert judge_skips(count, [], ci=True).failed == 1
