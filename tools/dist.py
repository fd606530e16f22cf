"""Makes what `make dist` leaves in out/dist, from tools/build's outputs: a wheel, a tarball
and a Debian package (tools/deb.py).

All bring every shared library that the daemons need, libstdc++ too, and find them by
$ORIGIN; only glibc is the system's, at least of the version in the file's name. The same
inputs give the same bytes (SOURCE_DATE_EPOCH, by default the time of the last commit).
"""

from __future__ import annotations

import gzip
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

import deb
import manual

ROOT = Path(__file__).resolve().parent.parent
BIN = ROOT / "out/bin"
NATIVE = ROOT / "python_client/src/pactrain/_native"
DIST = ROOT / "out/dist"
PROGRAMS = ("pactrain-agent", "pactrain-coordinator", "pactrain-admin")
TRAINER = "libpactrain_trainer.so"
# Debian packages of which code gets into our binaries without a shared library.
COMPILED_IN = ("libasio-dev", "libcli11-dev", "libxxhash-dev")
# In the tarball, at the same places, so that the links in the texts hold.
TEXTS = ("LICENSE", "README.md", "ARCHITECTURE.md", "CHANGELOG.md", "docs", "deploy", "examples")
HEADERS = (
    *("trainer/pactrain.h", "trainer/device_abi.h", "trainer/membership_abi.h"),
    *("trainer/cpp/*.h", "trainer/cpp/libtorch/*.h"),
)
NOT_SHIPPED = shutil.ignore_patterns("BUILD", "__pycache__")


def output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def shared_libraries(programs: Iterable[Path]) -> dict[str, Path]:
    """What the programs load, by the name they ask for."""
    found = {}
    for program in programs:
        for name, path in re.findall(r"(\S+) => (\S+)", output("ldd", program)):
            if path == "not":
                raise SystemExit(f"dist: {program} needs {name}, which is not installed")
            found[name] = Path(path).resolve()
    return dict(sorted(found.items()))


def debian_packages(files: Iterable[Path]) -> dict[str, str]:
    """Which Debian package has a file of that name."""
    # By name: dpkg may know a file of /usr/lib as one of /lib.
    lines = output("dpkg", "-S", *(f"*/{file.name}" for file in files)).splitlines()
    return {Path(line.split(": ")[1]).name: line.split(":")[0] for line in lines}


def place(source: Path, target: Path, library_folder: str | None = None) -> Path:
    """A copy without debug information that looks for libraries in `library_folder`.

    By RPATH, not RUNPATH: that a user's LD_LIBRARY_PATH goes before, and the libraries of
    a Conda environment under it are not those that the daemons were built with.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755)
    subprocess.run(["strip", "--strip-debug", target], check=True)
    if library_folder is not None:
        patch = ["patchelf", "--force-rpath", "--set-rpath", library_folder, str(target)]
        subprocess.run(patch, check=True)
    return target


def glibc_floor(files: Iterable[Path]) -> tuple[int, int]:
    """The oldest glibc that has all the symbols that the files use."""
    used = re.findall(r"GLIBC_(\d+)\.(\d+)", output("readelf", "-W", "-V", *files))
    return max((int(major), int(minor)) for major, minor in used)


def licences(packages: Iterable[str]) -> str:
    """The text that goes with other people's code: whose, which version, what terms."""
    versions, texts = [], []
    for package in sorted(packages):
        field = "${Package} ${Version} (source: ${source:Package})\n"
        # One line for each architecture that the package is installed for.
        versions.append(output("dpkg-query", "-W", "-f", field, package).splitlines()[0])
        text = Path(f"/usr/share/doc/{package}/copyright").read_text(errors="replace")
        texts.append(f"{'=' * 80}\n{package}\n{'=' * 80}\n\n{text.strip()}\n")
    head = "Code in or beside the binaries, as Debian built it (but RPATH is set to $ORIGIN):\n"
    return "\n".join([head, *versions, "", *texts])


def place_libraries(folder: Path) -> str:
    """Fills `folder` with what the programs need beside glibc; returns their licences."""
    libraries = shared_libraries(BIN / program for program in PROGRAMS)
    owners = debian_packages(libraries.values())
    bundled = {n: p for n, p in libraries.items() if owners[p.name] != "libc6"}
    for name, path in bundled.items():
        place(path, folder / name, "$ORIGIN")
    return licences({*(owners[path.name] for path in bundled.values()), *COMPILED_IN})


def build_wheel(folder: Path, libraries: Path, licence_texts: str) -> str:
    """Puts the wheel into out/dist; returns its platform tag."""
    shutil.copytree(
        ROOT / "python_client",
        folder,
        ignore=shutil.ignore_patterns("_native", "__pycache__", "tests", "*.egg-info"),
    )
    shutil.copy(ROOT / "LICENSE", folder)
    (folder / "LICENSE-third-party").write_text(licence_texts)
    native = folder / "src/pactrain/_native"
    shutil.copytree(libraries, native / "lib")
    place(NATIVE / TRAINER, native / TRAINER)
    for program in PROGRAMS:
        place(BIN / program, native / program, "$ORIGIN/lib")
    for path in folder.rglob("*"):  # Whatever they are in the checkout.
        path.chmod(0o755 if path.is_dir() or native in path.parents else 0o644)
    major, minor = glibc_floor(path for path in native.rglob("*") if path.is_file())
    platform = f"manylinux_{major}_{minor}_{os.uname().machine}"
    for header in NATIVE.glob("*.h"):
        shutil.copy(header, native)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--wheel-dir", str(DIST), str(folder)]
    command += [f"--config-settings=--build-option=--plat-name={platform}"]
    subprocess.run(command, check=True)
    return platform


def fill_tarball(folder: Path, libraries: Path, licence_texts: str, version: str) -> None:
    """Everything for a machine without Python: programs, C++ API, texts, manual pages."""
    folder.mkdir()
    for name in TEXTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=NOT_SHIPPED)
        else:
            shutil.copy(ROOT / name, folder)
    (folder / "tools").mkdir()
    shutil.copy(ROOT / "tools/certs", folder / "tools")  # Of the texts' commands.
    (folder / "LICENSE-third-party").write_text(licence_texts)
    for header in (path for pattern in HEADERS for path in ROOT.glob(pattern)):
        target = folder / "include" / header.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(header, target)
    shutil.copytree(libraries, folder / "lib/pactrain")
    place(NATIVE / TRAINER, folder / "lib" / TRAINER)
    for program in PROGRAMS:
        place(BIN / program, folder / "bin" / program, "$ORIGIN/../lib/pactrain")
    manual.write(folder / "bin", folder / "share/man", version)


def pack(folder: Path, target: Path, seconds: int) -> None:
    """A .tar.gz of the folder: owned by root, all times `seconds` since 1970."""

    def clean(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        member.mode = 0o755 if member.mode & 0o100 else 0o644
        member.mtime = seconds
        return member

    with (
        target.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=seconds) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as archive,
    ):
        archive.add(folder, folder.name, filter=clean)


def source_date() -> int:
    """SOURCE_DATE_EPOCH, else the last commit's time, else the earliest a zip can hold."""
    named = os.environ.get("SOURCE_DATE_EPOCH")
    if named:
        return int(named)
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    last = subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout
    return int(last or 315_532_800)


def main() -> None:
    version = runpy.run_path(str(ROOT / "python_client/src/pactrain/_version.py"))["__version__"]
    seconds = source_date()
    os.environ["SOURCE_DATE_EPOCH"] = str(seconds)
    os.umask(0o022)  # The wheel has the modes of files that pip makes.
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        libraries, folder = work / "lib", work / f"pactrain-{version}"
        licence_texts = place_libraries(libraries)
        platform = build_wheel(work / "python_client", libraries, licence_texts)
        fill_tarball(folder, libraries, licence_texts, version)
        pack(folder, DIST / f"pactrain-{version}-{platform}.tar.gz", seconds)
        glibc = ".".join(platform.split("_")[1:3])
        deb.build(folder, work / "deb", DIST / f"pactrain_{version}_amd64.deb", version, glibc)
    for path in sorted(DIST.iterdir()):
        print(f"dist: {path.relative_to(ROOT)} ({path.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
