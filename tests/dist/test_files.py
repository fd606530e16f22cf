"""The wheel and the tarball by their files: what they need, say and show."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
# Of the package libc6; all else has to lie inside.
GLIBC = re.compile(r"(libc|libm|libpthread|libdl|librt|libresolv|ld-linux-x86-64)\.so\.\d+")


def output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def elf_files(folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"
    ]


@pytest.fixture(params=["wheel", "tarball"])
def binaries(request: pytest.FixtureRequest) -> list[Path]:
    found = elf_files(request.getfixturevalue("site" if request.param == "wheel" else "tree"))
    names = {path.name for path in found}
    assert {
        "pactrain-admin",
        "pactrain-agent",
        "pactrain-coordinator",
        "libpactrain_trainer.so",
    } < names
    return found


def test_all_but_glibc_is_found_inside(binaries: list[Path]) -> None:
    for binary in binaries:
        dynamic = output("readelf", "-W", "-d", binary)
        assert "(RUNPATH)" not in dynamic, f"LD_LIBRARY_PATH would go before that of {binary}"
        paths = re.findall(r"\(RPATH\).*\[(.*)\]", dynamic)
        folders = [binary.parent / p.removeprefix("$ORIGIN/") for p in paths if p != "$ORIGIN"]
        assert all(p.startswith("$ORIGIN") and ":" not in p for p in paths), (binary, paths)
        for name in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
            inside = any((folder / name).is_file() for folder in [*folders, binary.parent])
            assert GLIBC.fullmatch(name) or inside, f"{binary} needs {name}"


def test_the_tag_names_the_glibc_that_they_need(binaries: list[Path], wheel: Path) -> None:
    symbols = output("objdump", "-T", *binaries)
    newest = max((int(a), int(b)) for a, b in re.findall(r"\(GLIBC_(\d+)\.(\d+)", symbols))
    assert wheel.name.endswith(f"-py3-none-manylinux_{newest[0]}_{newest[1]}_x86_64.whl")


def test_the_licence_of_every_library_is_there(site: Path, tree: Path) -> None:
    (text,) = (path.read_text() for path in site.rglob("*.dist-info/licenses/LICENSE-third-party"))
    assert text == (tree / "LICENSE-third-party").read_text()
    for words in ("libgrpc29 1.51", "libssl3 3.", "libstdc++6 12", "libasio-dev", "libcli11-dev"):
        assert words in text
    packages = text.partition("\n\n")[2].partition("\n\n")[0].splitlines()
    assert len(packages) > 10
    for package in packages:
        assert f"\n{package.split()[0]}\n====" in text
    assert list(site.rglob("*.dist-info/licenses/LICENSE"))
    assert (tree / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_a_type_checker_knows_the_types(site: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import pactrain\nversion: int = pactrain.__version__\n")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (packages / "site.pth").write_text(str(site))
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable"]
    said = subprocess.run(
        [*command, tmp_path / "venv/bin/python", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    ).stdout
    assert 'expression has type "str", variable has type "int"' in said
    assert "Found 1 error" in said


def test_a_cpp_trainer_compiles_with_the_tarball(tree: Path, compiler: str, tmp_path: Path) -> None:
    headers = [path for path in tree.glob("include/trainer/cpp/*.h") if path.name != "libtorch.h"]
    source = tmp_path / "main.cc"
    lines = [f'#include "{path.relative_to(tree / "include")}"' for path in sorted(headers)]
    source.write_text(
        "\n".join([*lines, "#include <cstdio>", "int main() { puts(pt_version()); }"])
    )
    library = ["-L", tree / "lib", "-lpactrain_trainer", f"-Wl,-rpath,{tree / 'lib'}"]
    program = tmp_path / "main"
    command = [compiler, "-std=c++20", "-I", tree / "include", source, *library, "-o", program]
    subprocess.run(command, check=True)
    assert tree.name == "pactrain-" + output(program).strip()


def test_what_its_headers_include_of_ours_is_there(tree: Path) -> None:
    include = tree / "include"
    headers = list(include.rglob("*.h"))
    assert include / "trainer/cpp/libtorch/model.h" in headers
    for header in headers:
        for name in re.findall(r'^#include "([^"]+)"', header.read_text(), re.M):
            assert (include / name).is_file(), f"{header.name} includes {name}"


def test_links_between_its_texts_hold(tree: Path) -> None:
    wrong = []
    for page in tree.rglob("*.md"):
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            # How to work on the code is for a checkout.
            if link != "CONTRIBUTING.md" and not (page.parent / link).exists():
                wrong.append(f"{page.relative_to(tree)}: {link}")
    assert not wrong, wrong


def test_what_makes_certificates_is_beside_the_texts_that_name_it(
    tree: Path, tmp_path: Path
) -> None:
    assert "\ntools/certs pki " in (tree / "docs/beyond-one-machine.md").read_text()
    subprocess.run([tree / "tools/certs", tmp_path, "--coordinator"], check=True)
    assert (tmp_path / "policy.yaml").is_file()


def test_programs_and_only_they_can_be_run(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        modes = {info.filename: info.external_attr >> 16 & 0o777 for info in archive.infolist()}
    binary = re.compile(r"pactrain/_native/.+(?<!\.h)$")
    assert {mode for name, mode in modes.items() if binary.match(name)} == {0o755}
    assert {mode for name, mode in modes.items() if name.endswith((".py", ".h"))} == {0o644}


def test_the_headers_are_beside_the_library_in_the_wheel(site: Path, tree: Path) -> None:
    headers = {path.name: path.read_bytes() for path in (site / "pactrain/_native").glob("*.h")}
    shipped = {path.name: path.read_bytes() for path in (tree / "include/trainer").glob("*.h")}
    assert "pactrain.h" in headers and headers == shipped


def test_the_same_inputs_give_the_same_bytes(tree: Path) -> None:
    def digests() -> dict[str, str]:
        files = sorted((ROOT / "out/dist").iterdir())
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    before = digests()
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(int(tree.stat().st_mtime))}
    command = [sys.executable, ROOT / "tools/dist.py"]
    subprocess.run(command, env=environment, umask=0o027, check=True)
    assert digests() == before


def test_manual_pages_say_what_help_says(tree: Path) -> None:
    for program in (tree / "bin").iterdir():
        (page,) = (tree / "share/man").glob(f"man?/{program.name}.[18]")
        shown = page.read_text()
        flags = re.findall(r"--[a-z-]+", output(program, "--help"))
        assert flags
        for flag in flags:
            assert flag.replace("-", r"\-") in shown
        assert not re.search(rf"TEXT={os.uname().nodename}\s", shown)
        # A renderer finds nothing to say against it, where there is one.
        if shutil.which("groff"):
            command = ["groff", "-man", "-Tutf8", "-ww", "-z", str(page)]
            assert subprocess.run(command, capture_output=True, text=True).stderr == ""
    assert "--force" in (tree / "share/man/man1/pactrain-admin.1").read_text().replace("\\", "")
