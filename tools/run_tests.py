"""Runs all C++ and Python tests and ends with the line "N passed, N failed".

A C++ test counts by its GoogleTest cases, read from the XML that each target writes;
a target that wrote none (crash, time-out, does not build) counts as one failure.
Exit status 0 only if everything passed and something ran.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.parse
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTEST_FOLDERS = ("tools", "python_client/tests", "tests/e2e", "bench")


@dataclass(frozen=True)
class Count:
    passed: int = 0
    failed: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.passed + other.passed, self.failed + other.failed)


def count_junit(path: Path) -> Count:
    """Cases of one JUnit XML file; skipped ones count as neither."""
    suites = ElementTree.parse(path).getroot()
    cases = [case for suite in suites.iter("testsuite") for case in suite.findall("testcase")]
    bad = sum(1 for c in cases if c.find("failure") is not None or c.find("error") is not None)
    skipped = sum(1 for c in cases if c.find("skipped") is not None or c.get("status") == "notrun")
    return Count(len(cases) - bad - skipped, bad)


def count_target(result: dict[str, object]) -> Count:
    """Cases of one Bazel test result; at least one failure if its status is not PASSED."""
    outputs = result.get("testActionOutput", [])
    assert isinstance(outputs, list)
    xml = [o["uri"] for o in outputs if o["name"] == "test.xml"]
    count = Count()
    if xml:
        count = count_junit(Path(urllib.parse.unquote(urllib.parse.urlparse(xml[0]).path)))
    if result.get("status") != "PASSED" and count.failed == 0:
        return Count(count.passed, 1)
    return count


def read_build_events(path: Path) -> dict[str, Count]:
    """Counts by test label, from Bazel's --build_event_json_file."""
    counts: dict[str, Count] = {}
    for line in path.read_text().splitlines():
        event = json.loads(line)
        if "testResult" in event.get("id", {}):
            label = event["id"]["testResult"]["label"]
            counts[label] = counts.get(label, Count()) + count_target(event["testResult"])
        summary = event.get("testSummary")
        if summary and summary.get("overallStatus") not in ("PASSED", "FLAKY"):
            counts.setdefault(event["id"]["testSummary"]["label"], Count(0, 1))
    return counts


def run_cpp_tests() -> Count:
    """bazel test //... except what is tagged manual or nightly."""
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder) / "events.json"
        script = (
            "source tools/bazel_env; run_bazel test //... --keep_going "
            f"--test_tag_filters=-nightly --build_event_json_file={shlex.quote(str(events))}"
        )
        status = subprocess.run(["bash", "-c", script], cwd=ROOT).returncode
        counts = read_build_events(events) if events.exists() else {}
    total = sum(counts.values(), Count())
    if status != 0 and total.failed == 0:
        print(f"bazel test ended with status {status}: counted as one failure", flush=True)
        total += Count(0, 1)
    print(f"C++: {len(counts)} test targets, {total.passed} cases passed, {total.failed} failed")
    return total


def run_python_tests() -> Count:
    """pytest, one process per folder: their modules may have equal names."""
    total = Count()
    for folder in PYTEST_FOLDERS:
        if any((ROOT / folder).glob("**/test_*.py")):
            total += run_pytest(folder)
    return total


def run_pytest(folder: str) -> Count:
    with tempfile.TemporaryDirectory() as scratch:
        xml = Path(scratch) / "pytest.xml"
        # -rs says why tests were skipped, if any.
        options = ["-q", "-rs", "--durations=5", f"--junitxml={xml}"]
        command = [sys.executable, "-m", "pytest", *options]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        status = subprocess.run([*command, folder], cwd=ROOT, env=environment).returncode
        count = count_junit(xml) if xml.exists() else Count()
    if status != 0 and count.failed == 0:
        print(f"pytest {folder} ended with status {status}: counted as one failure", flush=True)
        count += Count(0, 1)
    return count


def main() -> int:
    total = Count()
    for name, run in (("C++", run_cpp_tests), ("Python", run_python_tests)):
        print(f"== {name} tests", flush=True)
        start = time.monotonic()
        total += run()
        print(f"== {name} tests took {time.monotonic() - start:.0f} s", flush=True)
    if "avx512bw" not in Path("/proc/cpuinfo").read_text():
        print("Not run: the AVX-512 kernels, which this processor has no instructions for")
    print(f"{total.passed} passed, {total.failed} failed", flush=True)
    return 0 if total.failed == 0 and total.passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
