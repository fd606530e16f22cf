"""The wheel in an empty Debian 12: installed by pip, trained with, without network."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import debian_root
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PYTHON = (3, 11)  # Debian 12's.


def packages() -> dict[Path, str]:
    """The folders with .venv's torch and what it needs; pip there sees them, too."""
    folders = [Path(p) for p in sys.path if Path(p).name in ("site-packages", "dist-packages")]
    return {folder: f"/packages/{number}" for number, folder in enumerate(folders)}


def why_skipped() -> str | None:
    if sys.version_info[:2] != PYTHON:
        # Its torch is seen inside, where it is not downloaded again.
        return f".venv is Python {sys.version_info[0]}.{sys.version_info[1]}, Debian 12 has 3.11"
    return debian_root.why_none()


pytestmark = pytest.mark.skipif(why_skipped() is not None, reason=str(why_skipped()))


@pytest.fixture(scope="module")
def debian(wheel: Path, tree: Path) -> Iterator[debian_root.DebianRoot]:
    """With the wheel in /venv and the tarball in /opt/pactrain."""
    (ROOT / ".cache/dist").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / ".cache/dist") as temporary:
        seen = packages()
        root = debian_root.DebianRoot(Path(temporary) / "root", seen)
        shutil.copy(wheel, root.folder / "opt")
        shutil.copy(ROOT / "examples/ddp.py", root.folder / "opt")
        shutil.copytree(tree, root.folder / "opt/pactrain")
        places = "\\n".join(seen.values())
        said = root.run(
            "python3 -m venv /venv; "
            # Older than what torch wants, and in the way of the one beside torch.
            "/venv/bin/pip uninstall -qy setuptools; "
            f'printf "{places}\\n" >/venv/lib/python3.11/site-packages/torch.pth; '
            "/venv/bin/pip install --no-index --no-cache-dir /opt/pactrain-*.whl"
        )
        assert "Successfully installed pactrain-" in said
        yield root


def test_nothing_of_a_build_is_there(debian: debian_root.DebianRoot) -> None:
    names = debian.run("dpkg-query -W -f '${Package}\\n'").split()
    assert "libc6" in names
    assert not [name for name in names if name.endswith("-dev") or name in ("gcc", "libgrpc29")]


def test_every_binary_resolves_inside_the_package(debian: debian_root.DebianRoot) -> None:
    said = debian.run(
        "cd /venv/lib/python3.11/site-packages/pactrain/_native; "
        'for file in * lib/*; do [ -d "$file" ] || { echo "$file:"; ldd "./$file"; }; done'
    )
    glibc = set(debian.run("dpkg -L libc6").split())
    assert said.count("pactrain-agent:") == 1
    for line in said.splitlines():
        path = line.partition(" => ")[2].partition(" (")[0]
        inside = "/site-packages/pactrain/_native/" in path
        assert not path or inside or path in glibc, line


@pytest.mark.parametrize(
    "folder", ["/venv/lib/python3.11/site-packages/pactrain/_native", "/opt/pactrain/bin"]
)
def test_daemons_run_whatever_the_library_path_holds(
    debian: debian_root.DebianRoot, tree: Path, folder: str
) -> None:
    said = debian.run(
        "mkdir -p /tmp/other; "
        "for name in libprotobuf.so.32 libstdc++.so.6; do echo no >/tmp/other/$name; done; "
        "export LD_LIBRARY_PATH=/tmp/other; "
        f"{folder}/pactrain-agent --version; {folder}/pactrain-coordinator --version"
    )
    version = tree.name.removeprefix("pactrain-")
    assert said.split() == [version, version]
    assert (
        debian.run("/venv/bin/python -c 'import pactrain; print(pactrain.__version__)'").split()[-1]
        == version
    )


def test_the_doctor_is_a_command(debian: debian_root.DebianRoot) -> None:
    said = debian.run("/venv/bin/pactrain doctor")
    assert said.endswith("0 problems, 0 warnings\n")
    said = debian.run("PACTRAIN_SITS=a:1 /venv/bin/pactrain doctor || echo exit code $?")
    assert "did you mean PACTRAIN_SITES?" in said
    assert said.endswith("exit code 1\n")


def test_the_example_trains_with_its_own_daemons(debian: debian_root.DebianRoot) -> None:
    said = debian.run(
        "export OMP_NUM_THREADS=1; "
        "/venv/bin/python -m torch.distributed.run --nproc-per-node=2 /opt/ddp.py --epochs=2"
    )
    assert "epoch 2: " in said
    assert "COMPACTED" in said
