"""Every limit of protocol/limits.h is tested, and means the same wherever it is copied."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CONSTANT = re.compile(r"constexpr \w+ (k\w+) =\s*([^;]+);")
# A test of that name, to the brace that ends it.
LIMIT_TEST = re.compile(r"^TEST(?:_F|_P)?\(\w+, (sec_limits_\w+)\) \{\n(.*?)^\}$", re.S | re.M)


def value(text: str) -> int:
    """Of a C++ integer expression: 4 << 20, (1ull << 31) - 1, uint64_t{1} << 62, 20'000."""
    plain = re.sub(r"(?<=\d)(ull|')|u?int\d+_t(?=\{\d+\})|(?<=\d)\}", "", text).replace("{", "")
    expression = ast.parse(plain, mode="eval")
    allowed = (ast.Expression, ast.BinOp, ast.LShift, ast.Sub, ast.Constant)
    assert all(isinstance(node, allowed) for node in ast.walk(expression)), text
    return int(eval(compile(expression, "limits.h", "eval")))  # Integers alone: see above.


def constants(path: Path) -> dict[str, str]:
    return dict(CONSTANT.findall(path.read_text()))


def limits() -> dict[str, int]:
    return {k: value(v) for k, v in constants(ROOT / "protocol/limits.h").items()}


def tracked(*patterns: str) -> list[Path]:
    command = ["git", "ls-files", "--", *patterns]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in names.split()]


def limit_tests() -> dict[str, str]:
    """Bodies of all sec_limits_* tests, by file and name."""
    return {
        f"{path.name}:{name}": body
        for path in tracked("*_test.cc")
        for name, body in LIMIT_TEST.findall(path.read_text())
    }


def test_every_limit_has_a_test_that_names_it() -> None:
    tests = limit_tests()
    assert len(tests) > 30
    named = {word for body in tests.values() for word in re.findall(r"protocol::(k\w+)", body)}
    # The protocol's own tests are within its namespace.
    named |= {
        word
        for test, body in tests.items()
        if test.startswith("proto")
        for word in re.findall(r"\bk\w+", body)
    }
    assert not set(limits()) - named


def test_copies_of_a_limit_are_equal() -> None:
    """The trainer library includes nothing of the protocol."""
    known = limits()
    copies = [
        (path.name, name, value(text))
        for path in tracked("trainer/*.h", "trainer/*.cc", "trainer/**/*.h", "trainer/**/*.cc")
        for name, text in constants(path).items()
        if name in known
    ]
    assert {name for _, name, _ in copies} >= {"kMaxRanks", "kMaxBuckets", "kMaxElements"}
    assert not [copy for copy in copies if copy[2] != known[copy[1]]]
