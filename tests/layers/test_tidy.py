"""What a reader may rely on in every source file, checked over the text."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from rooms import ALLOWED, FORBIDDEN_INCLUDES, TEST_ROOMS, room_of

ROOT = Path(__file__).resolve().parent.parent.parent

# Never in a core: it gets `now` as an argument and answers with effects.
CORE_FORBIDDEN = {
    "clock": r"absl::Now\(|GetCurrentTime|_clock::now|clock_gettime|gettimeofday|\btime\(",
    "sleep": r"sleep_for|sleep_until|SleepFor|usleep|nanosleep",
    "thread": r"std::(j?thread|async|mutex|atomic|condition_variable)\b|pthread_"
    r"|base/(mutex|crew)\.h",
    "log": r"\bLOG_(DEBUG|INFO|WARN|ERROR)|spdlog|base/log\.h|std::c(out|err)|\bf?printf\(",
    "I/O": r"<fstream>|<sys/socket\.h>|<unistd\.h>|<sys/mman\.h>|\bfopen\(",
    "unseeded randomness": r"random_device|\brand\(",
}
UNFINISHED = re.compile("|".join(("TO" + "DO", "FIX" + "ME", "(?<!X)XX" + "X")) + r"\b")
TEST_SLEEP = re.compile(r"sleep_for|sleep_until|SleepFor|usleep\(|\bsleep\(")


def tracked(*patterns: str) -> list[str]:
    names = subprocess.run(
        ["git", "ls-files", "--", *patterns], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\n")
    return [n for n in names if n and (ROOT / n).is_file()]


def text(name: str) -> str:
    return (ROOT / name).read_text()


def code(name: str) -> list[str]:
    """Lines without // comments and string contents."""
    lines = text(name).split("\n")
    return [re.sub(r"//.*", "", re.sub(r'(?<!include )"[^"]*"', '""', line)) for line in lines]


def cpp() -> list[str]:
    return tracked("*.cc", "*.h")


def test_there_are_files_to_check() -> None:
    assert len(cpp()) > 10


@pytest.mark.parametrize("what", sorted(CORE_FORBIDDEN))
def test_cores_are_pure(what: str) -> None:
    pattern = re.compile(CORE_FORBIDDEN[what])
    found = [
        f"{name}:{number}: {line.strip()}"
        for name in cpp()
        if "/core/" in name
        for number, line in enumerate(code(name), 1)
        if pattern.search(line)
    ]
    assert not found, f"{what} in a core:\n" + "\n".join(found)


def test_includes_follow_the_arrows() -> None:
    wrong = []
    for name in cpp():
        room = room_of(name)
        if room is None or room in TEST_ROOMS or is_test(name):
            continue
        for included in re.findall(r'^#include "([^"]+)"', text(name), re.M):
            used = room_of(included)
            if included.endswith((".pb.h",)):
                used = "proto"
            if used is not None and used != room and used not in ALLOWED[room]:
                wrong.append(f"{name} ({room}) includes {included} ({used})")
    assert not wrong, "\n".join(wrong)


def test_rooms_include_only_their_system_libraries() -> None:
    wrong = [
        f"{name} includes {included}"
        for name in cpp()
        if not is_test(name) and (room := room_of(name)) in FORBIDDEN_INCLUDES
        for included in re.findall(r'^#include [<"]([^">]+)[>"]', text(name), re.M)
        if included.startswith(FORBIDDEN_INCLUDES[room])
        and name not in ("base/log.h", "base/log.cc")
    ]
    assert not wrong, "\n".join(wrong)


def is_test(name: str) -> bool:
    return bool(
        re.search(r"(_test|_fuzz|_benchmark)\.cc$|/?(test_|testing)[^/]*$|_matchers\.h$", name)
    )


def test_headers_say_what_they_are_and_are_guarded() -> None:
    wrong = []
    for name in tracked("*.h"):
        guard = "PACTRAIN_" + re.sub(r"[/.]", "_", name).upper() + "_"
        if not text(name).startswith(("// ", "/* ")):
            wrong.append(f"{name}: begins without a comment that says what it is")
        if f"#ifndef {guard}\n#define {guard}\n" not in text(name):
            wrong.append(f"{name}: has no include guard {guard}")
    assert not wrong, "\n".join(wrong)


def test_python_modules_and_protos_say_what_they_are() -> None:
    modules = [n for n in tracked("*.py") if text(n) and not is_test(n)]
    wrong = [n for n in modules if not text(n).startswith(('"""', "#!"))]
    wrong += [n for n in tracked("*.proto") if not text(n).startswith("// ")]
    assert not wrong, wrong


def test_nothing_is_left_unfinished() -> None:
    names = tracked(
        "*.cc", "*.h", "*.py", "*.proto", "*.bzl", "BUILD", "*/BUILD", "tools/*", ".ci/*"
    )
    wrong = [
        f"{name}:{number}: {line.strip()}"
        for name in names
        for number, line in enumerate(text(name).split("\n"), 1)
        if UNFINISHED.search(line)
    ]
    assert not wrong, "\n".join(wrong)


def test_cpp_tests_do_not_sleep() -> None:
    wrong = [
        f"{name}:{number}"
        for name in tracked("*_test.cc")
        for number, line in enumerate(code(name), 1)
        if TEST_SLEEP.search(line)
    ]
    assert not wrong, wrong


def test_modes_are_the_three_of_the_glossary() -> None:
    enum = re.search(r"enum class Mode [^{]*\{([^}]*)\}", text("protocol/types.h"))
    assert enum and re.findall(r"k(\w+) =", enum[1]) == ["Full", "Compacted", "Ternary"]
    proto = re.search(r"enum Mode \{(.*?)^\}", text("proto/pactrain/v1/types.proto"), re.S | re.M)
    assert proto and re.findall(r"MODE_(\w+) =", proto[1]) == [
        "UNSPECIFIED",
        "FULL",
        "COMPACTED",
        "TERNARY",
    ]
    c_abi = re.search(r"enum pt_mode \{([^}]*)\}", text("trainer/pactrain.h"))
    assert c_abi and re.findall(r"PT_(\w+) =", c_abi[1]) == ["FULL", "COMPACTED", "TERNARY"]


# Code from a peer: whoever sends it runs it.
UNSAFE_LOADS = re.compile(
    r"^\s*(import|from)\s+(pickle|cPickle|dill|cloudpickle|joblib|marshal|shelve)\b"
    r"|\btorch\.load\((?!.*weights_only=True)|\bnumpy\.load\(|\bnp\.load\(|_object_list\(|\bobject_list\("
    r"|\ball_gather_object\(|\bgather_object\(|\bscatter_object|\bsend_object|\brecv_object"
    r"|\byaml\.(unsafe_|full_)?load\(|(?<!\.)\beval\(|\bexec\("
)


def unsafe_loads(lines: list[str]) -> list[str]:
    return [line.strip() for line in lines if UNSAFE_LOADS.search(re.sub(r"#.*", "", line))]


def test_lint_no_pickle() -> None:
    wrong = [
        f"{name}: {line}"
        for name in tracked("python_client/src/*.py", "python_client/src/**/*.py")
        for line in unsafe_loads(text(name).split("\n"))
    ]
    assert not wrong, "what comes from a peer must not be unpickled:\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "    from pickle import loads",
        "state = torch.load(file)",
        "dist.broadcast_object_list(names)",
        "dist.all_gather_object(out, mine)",
    ],
)
def test_lint_no_pickle_finds_it(line: str) -> None:
    assert unsafe_loads([line])


def test_lint_no_pickle_lets_others_be() -> None:
    assert not unsafe_loads(["import json", "model.eval()", "# never import pickle", "x.load(y)"])
