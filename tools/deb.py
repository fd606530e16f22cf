"""The Debian package of `make dist`: both daemons, pactrain-admin, their systemd units and
manual pages.

It lies in /usr as the tarball does in its folder, with the same libraries beside it; only
glibc and systemd are the system's. Settings are conffiles. Nothing is started by
installing it: the daemons have to be told their places first (docs/deployment.md).
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UNITS = ("pactrain-coordinator.service", "pactrain-agent.service")
# Where files of deploy/ go; .yaml ones are conffiles.
PLACES = {
    "pactrain-coordinator.yaml": "etc/pactrain/coordinator.yaml",
    "pactrain-agent.yaml": "etc/pactrain/agent.yaml",
    "systemd/pactrain-coordinator.service": "usr/lib/systemd/system/pactrain-coordinator.service",
    "systemd/pactrain-agent.service": "usr/lib/systemd/system/pactrain-agent.service",
    "systemd/pactrain.sysusers": "usr/lib/sysusers.d/pactrain.conf",
    "systemd/pactrain.tmpfiles": "usr/lib/tmpfiles.d/pactrain.conf",
}
PROGRAMS = "usr/bin"
LIBRARIES = "usr/lib/pactrain"
DOCS = "usr/share/doc/pactrain"
COMPLETION = "usr/share/bash-completion/completions/pactrain-admin"

POSTINST = """#!/bin/sh
set -e
if [ "$1" = configure ]; then
  systemd-sysusers pactrain.conf
  systemd-tmpfiles --create pactrain.conf
  if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
fi
"""
# An upgrade stops nothing: what runs goes on with its files, until it is started again.
PRERM = f"""#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
  systemctl disable --now {" ".join(UNITS)}
fi
"""
# Users, keys and the coordinator's state stay, as is usual: files of theirs may be left.
POSTRM = """#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
"""


def control(version: str, glibc: str, kilobytes: int) -> str:
    return f"""Package: pactrain
Version: {version}
Architecture: amd64
Maintainer: PacTrain <pactrain@localhost>
Section: science
Priority: optional
Installed-Size: {kilobytes}
Depends: libc6 (>= {glibc}), systemd
Description: data-parallel training across slow links
 Coordinator and agents of PacTrain, which sum the gradients of training jobs on
 several sites and send as little as they can between them, and the operator's
 command, pactrain-admin. Training scripts need the Python wheel, or the C++
 library of the tarball.
"""


def copy(source: Path, target: Path, mode: int = 0o644) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def write(target: Path, text: str, mode: int = 0o644) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    target.chmod(mode)


def build(tree: Path, folder: Path, target: Path, version: str, glibc: str) -> None:
    """Packs the tarball's content `tree` by way of `folder`, which it makes.

    The same inputs give the same bytes (SOURCE_DATE_EPOCH).
    """
    for program in (tree / "bin").iterdir():
        copy(program, folder / PROGRAMS / program.name, 0o755)
    for library in (tree / "lib/pactrain").iterdir():
        copy(library, folder / LIBRARIES / library.name)
    for source, place in PLACES.items():
        copy(tree / "deploy" / source, folder / place)
    for text in ("README.md", "CHANGELOG.md"):
        copy(tree / text, folder / DOCS / text)
    for page in (tree / "docs").glob("*.md"):
        copy(page, folder / DOCS / "docs" / page.name)
    copy(tree / "tools/certs", folder / DOCS / "tools/certs", 0o755)
    for manual in (tree / "share/man").rglob("*.[18]"):
        zipped = folder / "usr" / manual.relative_to(tree).with_name(f"{manual.name}.gz")
        zipped.parent.mkdir(parents=True, exist_ok=True)
        zipped.write_bytes(gzip.compress(manual.read_bytes(), mtime=0))
        zipped.chmod(0o644)
    admin: list[str | Path] = [tree / "bin/pactrain-admin", "completion", "bash"]
    write(folder / COMPLETION, subprocess.check_output(admin, text=True))
    own, others = ((tree / name).read_text() for name in ("LICENSE", "LICENSE-third-party"))
    write(folder / DOCS / "copyright", f"{own}\n{others}")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    scripts = {"postinst": POSTINST, "prerm": PRERM, "postrm": POSTRM}
    for name, script in scripts.items():
        write(folder / "DEBIAN" / name, script, 0o755)
    conffiles = [f"/{place}\n" for place in PLACES.values() if place.startswith("etc/")]
    write(folder / "DEBIAN/conffiles", "".join(conffiles))
    write(folder / "DEBIAN/control", control(version, glibc, size // 1024))
    for path in folder.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
    folder.chmod(0o755)
    command: list[str | Path] = [
        "dpkg-deb",
        "--root-owner-group",
        "-Zxz",
        "-z1",
        "--build",
        folder,
        target,
    ]
    # One thread: how many there are shows in the bytes.
    environment = {**os.environ, "DPKG_DEB_THREADS_MAX": "1"}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
