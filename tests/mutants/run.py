"""Weakens one rule after the other and sees who notices.

python tests/mutants/run.py BIN [PACKAGE ...]: BIN has what was built with --config=weakened; the
unit tests of the packages are run; without one, the sample by the simulator alone. The last line
is one JSON object; the exit status is 0 if all are caught.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from table import ROOT, Rule, rules

SEEDS = 3000
# What turns for ever is known by the processor's time: the clock on the wall also runs while
# other work has the machine (CI runs this at a low priority beside all tests). What waits for
# ever takes no processor, so it is bounded by the wall's.
CPU_LIMIT_S = 300
WALL_LIMIT_S = 900


def bound_cpu() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S))


def why_noticed(command: list[str], rule: str) -> str | None:
    """How it notices: an exit status, a crash, or that it never ends; None if it does not."""
    with tempfile.TemporaryDirectory() as scratch:
        env = {**os.environ, "WEAKENED_RULE": rule, "TEST_TMPDIR": scratch}
        try:
            done = subprocess.run(
                command,
                env=env,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=WALL_LIMIT_S,
                check=False,
                preexec_fn=bound_cpu,
            )
        except subprocess.TimeoutExpired:
            return f"not ended after {WALL_LIMIT_S} s"
        return f"status {done.returncode}: {done.stdout[-2000:]}" if done.returncode else None


def simulation(binary: Path) -> list[str]:
    return [str(binary), f"--seeds={SEEDS}", "--until-violation"]


def unit_tests(bin_folder: Path, packages: list[str]) -> list[Path]:
    return [
        path
        for package in packages
        for path in sorted((bin_folder / package).glob("*_test"))
        if os.access(path, os.X_OK) and path.is_file()
    ]


def first_unit(tests: list[Path], rule: str) -> str | None:
    for test in tests:
        if why_noticed([str(test)], rule) is not None:
            return test.name
    return None


def judge(rule: Rule, sim: Path, tests: list[Path]) -> tuple[Rule, bool, str | None]:
    seen = why_noticed(simulation(sim), rule.name) is not None
    return rule, seen, first_unit(tests, rule.name)


def main(arguments: list[str]) -> int:
    bin_folder, packages = Path(arguments[0]), arguments[1:]
    sim = bin_folder / "tests/sim/sim"
    tests = unit_tests(bin_folder, packages)
    for command in (simulation(sim), *([str(test)] for test in tests)):
        if (why := why_noticed(command, "")) is not None:
            print(f"fails with no rule weakened, mend that first: {command[0]}: {why}")
            return 2
    chosen = [rule for rule in rules() if packages or rule.sample]
    by_sim = by_units = caught = 0
    with ThreadPoolExecutor(max_workers=max(1, (os.cpu_count() or 1) // 2)) as pool:
        for rule, seen, unit in pool.map(lambda rule: judge(rule, sim, tests), chosen):
            by_sim += seen
            by_units += unit is not None
            caught += seen or unit is not None
            words = [word for word, is_so in (("simulator", seen), (unit, unit)) if is_so]
            print(f"{rule.name:28} {', '.join(map(str, words)) or 'NOT CAUGHT'}", flush=True)
    result = {
        "mutants": len(chosen),
        "caught_sim": by_sim,
        "caught_units": by_units,
        "caught": caught,
    }
    print(json.dumps(result))
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
