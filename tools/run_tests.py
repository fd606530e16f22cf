"""Runs C++ and Python tests; the last line is "N passed, N failed, N skipped".

  run_tests.py                       C++ tests, then the Python folders, but for what is
                                     marked nightly
  run_tests.py --nightly             all of them
  run_tests.py tests/dist bench      all of these Python folders or files
  run_tests.py --config=asan //x:y   these C++ tests, with these flags of Bazel

A C++ test counts by its GoogleTest cases, read from the XML that each target writes;
a target that wrote none (crash, time-out, does not build) counts as one failure.
Each skip is printed with its reason. With CI=true a skip that tests/allowed_skips.txt does
not name counts as a failure: what CI does not run nobody has seen.
Exit status 0 only if everything passed and something ran.
"""

from __future__ import annotations

import fnmatch
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.parse
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORES = os.cpu_count() or 1
# How many processes share the tests of a folder (0: none but pytest's own). Ranks end to end
# mostly wait for each other; each process has a cluster of its own. What counts bytes on links
# (bench) is disturbed by its neighbours.
PYTEST_FOLDERS = {
    "tools": 0,
    "python_client/tests": min(CORES, 8),
    # In a process of its own: torch's autograd counts devices once, at its first backward pass.
    "python_client/tests/test_devices.py": 0,
    "python_client/tests/test_device_packing.py": 0,
    "tests/mutants": 0,
    "tests/chaos": 0,
    "tests/deploy": 0,
    "tests/e2e": min(2 * CORES, 8),
    "bench": 0,
}
# A bound, not a measure, as .bazelrc has one for each C++ target: what waits for ever is shown
# with the stacks of its threads, and fails.
HUNG_SECONDS = 1200
IN_CI = os.environ.get("CI") == "true"
ALLOWED_SKIPS = ROOT / "tests" / "allowed_skips.txt"
NO_AVX512 = "this processor has no AVX-512; the kernels' variants for it did not run"


@dataclass(frozen=True)
class Skip:
    case: str
    reason: str  # One line.


@dataclass(frozen=True)
class Count:
    passed: int = 0
    failed: int = 0
    skips: tuple[Skip, ...] = ()

    def __add__(self, other: Count) -> Count:
        return Count(
            self.passed + other.passed, self.failed + other.failed, self.skips + other.skips
        )


def count_junit(path: Path) -> Count:
    """Cases of one JUnit XML file; those that are disabled (notrun) count as skipped."""
    suites = ElementTree.parse(path).getroot()
    cases = [case for suite in suites.iter("testsuite") for case in suite.findall("testcase")]
    bad = sum(1 for c in cases if c.find("failure") is not None or c.find("error") is not None)
    skips = tuple(skip for case in cases if (skip := read_skip(case)) is not None)
    return Count(len(cases) - bad - len(skips), bad, skips)


def read_skip(case: ElementTree.Element) -> Skip | None:
    """GoogleTest puts the place on a first line of its own before the reason."""
    skipped = case.find("skipped")
    if skipped is None and case.get("status") != "notrun":
        return None
    said = (skipped.get("message") if skipped is not None else None) or "disabled"
    reason = " ".join(said.splitlines()[1:] or [said])
    return Skip(f"{case.get('classname')}.{case.get('name')}", reason.strip())


def count_target(result: Mapping[str, object]) -> Count:
    """Cases of one Bazel test result; at least one failure if its status is not PASSED."""
    outputs = result.get("testActionOutput", [])
    assert isinstance(outputs, list)
    xml = [o["uri"] for o in outputs if o["name"] == "test.xml"]
    count = Count()
    if xml:
        count = count_junit(Path(urllib.parse.unquote(urllib.parse.urlparse(xml[0]).path)))
    if result.get("status") != "PASSED" and count.failed == 0:
        return Count(count.passed, 1, count.skips)
    return count


def read_build_events(path: Path) -> dict[str, Count]:
    """Counts by test label, from Bazel's --build_event_json_file. A target that Bazel leaves out
    (libtorch's, where there is none) is a skip."""
    counts: dict[str, Count] = {}
    for line in path.read_text().splitlines():
        event = json.loads(line)
        if "testResult" in event.get("id", {}):
            label = event["id"]["testResult"]["label"]
            counts[label] = counts.get(label, Count()) + count_target(event["testResult"])
        label = event["id"].get("targetCompleted", {}).get("label", "")
        if label.endswith("_test") and event.get("aborted", {}).get("reason") == "SKIPPED":
            counts[label] = Count(skips=(Skip(label, "its target cannot be built here"),))
        summary = event.get("testSummary")
        if summary and summary.get("overallStatus") not in ("PASSED", "FLAKY"):
            counts.setdefault(event["id"]["testSummary"]["label"], Count(0, 1))
    return counts


def run_cpp_tests(words: Sequence[str], ci: bool) -> Count:
    """bazel test with these flags and targets."""
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder) / "events.json"
        # In CI nothing is taken from a run of before: it may have been another machine's.
        again = ["--nocache_test_results"] if ci else []
        command = ["--keep_going", *again, f"--build_event_json_file={events}", *words]
        script = f"source tools/bazel_env; run_bazel test {shlex.join(command)}"
        status = subprocess.run(["bash", "-c", script], cwd=ROOT).returncode
        counts = read_build_events(events) if events.exists() else {}
    total = sum(counts.values(), Count())
    if status != 0 and total.failed == 0:
        print(f"bazel test ended with status {status}: counted as one failure", flush=True)
        total += Count(0, 1)
    print(f"C++: {len(counts)} test targets, {total.passed} cases passed, {total.failed} failed")
    return total


def run_python_tests(paths: Iterable[str], nightly: bool) -> Count:
    """pytest, by folder: their modules may have equal names."""
    total = Count()
    for path in paths:
        total += run_pytest(path, nightly)
    return total


def run_pytest(path: str, nightly: bool) -> Count:
    with tempfile.TemporaryDirectory() as scratch:
        xml = Path(scratch) / "pytest.xml"
        workers = PYTEST_FOLDERS.get(path, 0)
        options = ["-q", "--durations=5", f"--junitxml={xml}", f"--numprocesses={workers}"]
        options += ["-o", f"faulthandler_timeout={HUNG_SECONDS}"]
        options += ["-o", "faulthandler_exit_on_timeout=true"]
        options.append("--dist=worksteal")  # Neighbours stay together, and with their cluster.
        if not nightly:
            options += ["-m", "not nightly"]
        command = [sys.executable, "-m", "pytest", *options]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        status = subprocess.run([*command, path], cwd=ROOT, env=environment).returncode
        count = count_junit(xml) if xml.exists() else Count()
    if status != 0 and count.failed == 0:
        print(f"pytest {path} ended with status {status}: counted as one failure", flush=True)
        count += Count(0, 1)
    return count


def read_allowed(path: Path) -> list[str]:
    """The names or patterns of cases that may be skipped in CI; " #" begins a comment."""
    lines = (f" {line}".split(" #")[0].strip() for line in path.read_text().splitlines())
    return [line for line in lines if line]


def is_allowed(skip: Skip, patterns: Iterable[str]) -> bool:
    # A parametrised name has brackets, which a pattern takes for a set of characters.
    return any(skip.case == p or fnmatch.fnmatchcase(skip.case, p) for p in patterns)


def judge_skips(count: Count, allowed: Sequence[str], ci: bool) -> Count:
    """Prints each skip; in CI one that is not allowed becomes a failure."""
    refused = [skip for skip in count.skips if ci and not is_allowed(skip, allowed)]
    for skip in count.skips:
        verdict = f"FAILED in CI, not in {ALLOWED_SKIPS.name}" if skip in refused else "skipped"
        print(f"{verdict}: {skip.case}: {skip.reason}")
    kept = tuple(skip for skip in count.skips if skip not in refused)
    return Count(count.passed, count.failed + len(refused), kept)


def run_all(nightly: bool, ci: bool) -> Count:
    print("== C++ tests", flush=True)
    start = time.monotonic()
    total = run_cpp_tests(["//...", *([] if nightly else ["--test_tag_filters=-nightly"])], ci)
    if "avx512bw" not in Path("/proc/cpuinfo").read_text():
        total += Count(skips=(Skip("//kernels (AVX-512)", NO_AVX512),))
    print(f"== C++ tests took {time.monotonic() - start:.0f} s\n== Python tests", flush=True)
    start = time.monotonic()
    total += run_python_tests(PYTEST_FOLDERS, nightly)
    print(f"== Python tests took {time.monotonic() - start:.0f} s", flush=True)
    return total


def main(argv: Sequence[str], ci: bool) -> int:
    nightly = "--nightly" in argv
    words = [word for word in argv if word != "--nightly"]
    if not words:
        total = run_all(nightly, ci)
    elif any(word.startswith(("-", "//")) for word in words):
        total = run_cpp_tests(words, ci)
    else:
        total = run_python_tests(words, nightly=True)
    total = judge_skips(total, read_allowed(ALLOWED_SKIPS), ci)
    print(f"{total.passed} passed, {total.failed} failed, {len(total.skips)} skipped", flush=True)
    return 0 if total.failed == 0 and total.passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], IN_CI))
