"""The trainer library's headers as ctypes has them: as a compiler has them."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest

from pactrain import _abi
from pactrain._c_header import Header

TRAINER = Path(__file__).resolve().parents[2] / "trainer"
NAMES = ("pactrain.h", "device_abi.h", "membership_abi.h")
REAL = Header(TRAINER / "pactrain.h")
STRUCTS = {
    name: kind._fields_
    for name, kind in REAL.types.items()
    if isinstance(kind, type) and issubclass(kind, ctypes.Structure)
}


def read(tmp_path, text, name="a.h"):
    (tmp_path / name).write_text(text)
    return Header(tmp_path / name)


def text_of(name):
    return re.sub(r"/\*.*?\*/", "", (TRAINER / name).read_text(), flags=re.S)


@pytest.mark.parametrize("name", NAMES)
def test_those_of_the_package_are_those_of_the_library(name):
    beside = _abi.NATIVE / name
    assert beside.read_bytes() == (TRAINER / name).read_bytes(), "run make build"


def test_structs_and_numbers_are_those_of_a_compiler(tmp_path):
    asked = {name: int(value) for name, value in REAL.numbers.items()}
    for name, fields in STRUCTS.items():
        kind = REAL.types[name]
        asked[f"sizeof({name})"] = ctypes.sizeof(kind)
        for field, _ in fields:
            in_c = field.removesuffix("_")
            place = getattr(kind, field)
            asked[f"offsetof({name}, {in_c})"] = place.offset
            asked[f"sizeof((({name}*)0)->{in_c})"] = place.size
    lines = ['#include "trainer/pactrain.h"', "#include <stddef.h>"]
    lines += [f'_Static_assert({c} == {n}u, "{c}");' for c, n in asked.items()]
    (tmp_path / "ask.c").write_text("\n".join(lines))
    command = ["gcc", "-std=c11", "-fsyntax-only", "-I", TRAINER.parent]
    subprocess.run([*command, tmp_path / "ask.c"], check=True)


def test_nothing_is_left_out():
    text = "".join(map(text_of, NAMES))
    assert set(REAL.functions) == set(re.findall(r"\b(pt_\w+)\(", text))
    assert set(STRUCTS) == set(re.findall(r"^\} (pt_\w+);", text, re.M))
    shown = re.findall(r"\b(PT_\w+)\b", text)
    assert set(REAL.numbers) == set(shown)


def test_kinds_of_parameters_are_checked():
    session = memory = ctypes.c_void_p
    digest, part, plan = (REAL.types[f"pt_{n}"] for n in ("digest", "part", "plan"))
    assert REAL.functions["pt_submit"] == (
        ctypes.c_int,
        [
            session,
            ctypes.c_uint32,
            ctypes.POINTER(part),
            ctypes.c_uint32,
            memory,
            ctypes.c_int,
            ctypes.c_int,
            digest,
            ctypes.c_int,
            ctypes.POINTER(digest),
        ],
    )
    assert REAL.functions["pt_close"] == (None, [session])
    assert REAL.functions["pt_abi_version"] == (ctypes.c_uint32, [])
    assert REAL.functions["pt_keep"][1][3:5] == [
        ctypes.POINTER(ctypes.c_char_p),
        ctypes.POINTER(ctypes.c_uint64),
    ]
    assert REAL.functions["pt_attach"][1][1] == ctypes.POINTER(session)
    assert REAL.functions["pt_attach"][1][2] is REAL.types["pt_on_waiting"]
    library = _abi.load_library()
    with pytest.raises(ctypes.ArgumentError):
        library.pt_plan_bucket(None, 0, 1, _abi.Digest(), ctypes.byref(_abi.Node()))
    assert plan is not _abi.Plan  # Each reading has its own.


def test_what_is_no_field_cannot_be_set():
    with pytest.raises(AttributeError, match="high"):
        _abi.Digest(high=1)


def test_names_of_other_headers_and_of_python(tmp_path):
    (tmp_path / "b.h").write_text("typedef struct {\n  int in, out;\n} pt_b;\n")
    header = read(
        tmp_path,
        '/* a\n */\n#include "trainer/b.h"\n#include "trainer/b.h"\n'
        "enum pt_e {\n  PT_A,\n  PT_B = 7,\n  PT_C\n};\n"
        "#define PT_MANY 0xFFu /* all */\n"
        "typedef void (*pt_call)(pt_b one, const char* text);\n",
    )
    assert [name for name, _ in header.types["pt_b"]._fields_] == ["in_", "out"]
    assert header.numbers == {"PT_A": 0, "PT_B": 7, "PT_C": 8, "PT_MANY": 255}
    call = header.types["pt_call"]
    assert call._argtypes_ == (header.types["pt_b"], ctypes.c_char_p)
    assert call._restype_ is None


@pytest.mark.parametrize(
    "text",
    [
        "long pt_f(void);",
        "unsigned int pt_f(void);",
        "int pt_f();",
        "int pt_f(int);",
        "int pt_f(int a, ...);",
        "int pt_f(int a[3]);",
        "int pt_f(float a);",
        "int pt_f(void a);",
        "int pt_f(pt_unknown* a);",
        "int pt_f(void (*call)(int a));",
        "static int pt_f(void);",
        "extern int pt_x;",
        "typedef int pt_x;",
        "typedef long (*pt_f)(int a);",
        "typedef union { int a; } pt_x;",
        "typedef struct { int a : 3; } pt_x;",
        "typedef struct { int a[2][2]; } pt_x;",
        "typedef struct { int a[PT_N]; } pt_x;",
        "typedef struct { int* a, b; } pt_x;",
        "typedef struct { int a, *b; } pt_x;",
        "typedef struct { struct { int a; } b; } pt_x;",
        "typedef struct { int a; } __attribute__((packed)) pt_x;",
        "enum pt_e { PT_A = 1 << 3 };",
        "enum pt_e { PT_A = 010 };",
        "#define PT_A (1)",
        "#define PT_A 010",
        "#define PT_A(b) b",
        "#pragma pack(1)",
        "#if 1",
        "// Words.",
    ],
)
def test_what_is_not_known_is_an_error_that_names_the_line(tmp_path, text):
    with pytest.raises(ValueError, match=r"a\.h:4: cannot be read: "):
        read(tmp_path, f"/* a\n */\nint pt_a(void);\n{text}\nint pt_b(void);\n")


def test_the_error_names_the_field(tmp_path):
    with pytest.raises(ValueError, match=r"a\.h:3: cannot be read: long b$"):
        read(tmp_path, "typedef struct {\n  int a;\n  long b;\n  int c;\n} pt_x;\n")


def test_the_error_names_the_header_that_is_included(tmp_path):
    (tmp_path / "b.h").write_text("\nint b;\n")
    with pytest.raises(ValueError, match=r"b\.h:2: cannot be read: int b;$"):
        read(tmp_path, '#include "trainer/b.h"\n')
