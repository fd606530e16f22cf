"""tools/setup where it cannot simply install: without root, and on another system.

A copy of it runs with a stub for every command that would ask or change the machine, so
that nothing is installed and the machine's own packages do not matter.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DEBIAN_12 = "ID=debian\nVERSION_ID=12\n"
# What the script itself uses of the machine; anything else is not found.
USED = ("bash", "cat", "dirname", "sha256sum", "cut", "rm", "flock")


class Machine:
    """A folder with a copy of tools/setup, and a PATH of stubs only."""

    def __init__(self, folder: Path) -> None:
        self.tree = folder / "tree"
        self.bin = folder / "bin"
        self.log = folder / "log"
        self.log.touch()
        (self.tree / "tools").mkdir(parents=True)
        self.bin.mkdir()
        self.os_release = folder / "os-release"
        self.os_release.write_text(DEBIAN_12)
        script = (ROOT / "tools" / "setup").read_text()
        assert "/etc/os-release" in script
        script = script.replace("/etc/os-release", str(self.os_release))
        (self.tree / "tools" / "setup").write_text(script)
        for name in ("packages", "requirements.txt", "cuda-requirements.txt"):
            shutil.copy(ROOT / "tools" / name, self.tree / "tools")
        for name in USED:
            found = shutil.which(name)
            assert found is not None
            (self.bin / name).symlink_to(found)
        self.stub("uname", "echo x86_64")
        self.stub("id", "echo 1000")
        self.stub("apt-get", 'echo "apt-get $*" >> "$STUB_LOG"')

    def stub(self, name: str, script: str) -> None:
        path = self.bin / name
        path.write_text(f"#!{self.bin}/bash\n{script}\n")
        path.chmod(0o755)

    def installed(self, *without: str) -> None:
        """dpkg-query knows every package but these."""
        missing = " | ".join(without)
        self.stub(
            "dpkg-query",
            'for package in "${@:3}"; do\n'
            f'  case "$package" in {missing}) continue ;; esac\n'
            '  printf "installed:%s " "$package"\n'
            "done",
        )

    def has_venv(self, python: str) -> None:
        """A .venv that is as it should be; its python is this script."""
        binaries = self.tree / ".venv" / "bin"
        binaries.mkdir(parents=True)
        (binaries / "python").write_text(f"#!{self.bin}/bash\n{python}\n")
        (binaries / "python").chmod(0o755)
        parts = [f"{self.tree}\n"]
        parts += [(self.tree / "tools" / n).read_text() for n in ("setup", "requirements.txt")]
        stamp = hashlib.sha256("".join(parts).encode()).hexdigest()[:16]
        (self.tree / ".venv" / f"setup-{stamp}").touch()

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.bin / "bash"), str(self.tree / "tools" / "setup"), *arguments],
            env={"PATH": str(self.bin), "STUB_LOG": str(self.log)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def setup(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_root_it_prints_one_sudo_line_and_stops(machine: Machine) -> None:
    machine.installed("iproute2", "libasio-dev")
    done = machine.setup()
    assert done.returncode == 1
    sudo = [line for line in done.stderr.splitlines() if "sudo" in line]
    assert len(sudo) == 1
    assert sudo[0].startswith("setup: sudo apt-get update && sudo apt-get install -y")
    assert sudo[0].endswith(" libasio-dev iproute2")
    assert machine.log.read_text() == ""
    assert not (machine.tree / ".venv").exists()


@pytest.mark.parametrize(
    ("argument", "packages"),
    [
        ("test", "munge slurm-client slurmctld slurmd"),
        ("dist", "patchelf"),
        ("verify", "patchelf clang clang-format"),
        ("nightly", "patchelf clang clang-format debootstrap prometheus-alertmanager chromium"),
    ],
)
def test_test_dist_and_verify_also_ask_for_what_only_they_use(
    machine: Machine, argument: str, packages: str
) -> None:
    slurm = ("munge", "slurm-client", "slurmctld", "slurmd")
    machine.installed(
        "clang",
        "clang-format",
        "chromium",
        "debootstrap",
        "patchelf",
        "prometheus-alertmanager",
        *slurm,
    )
    done = machine.setup(argument)
    assert done.returncode == 1
    assert f"install -y --no-install-recommends {packages}\n" in done.stderr


@pytest.mark.parametrize(
    ("os_release", "kernel"),
    [("ID=fedora\nVERSION_ID=40\n", "x86_64"), (DEBIAN_12, "aarch64"), ("", "x86_64")],
)
def test_another_system_is_told_what_is_missing(
    machine: Machine, os_release: str, kernel: str
) -> None:
    machine.os_release.write_text(os_release)
    machine.stub("uname", f"echo {kernel}")
    done = machine.setup()
    assert done.returncode == 1
    assert "not Debian 12 on x86-64" in done.stderr
    missing = next(line for line in done.stderr.splitlines() if "missing:" in line)
    for tool in ("bazel", "g++", "protoc", "grpc_cpp_plugin"):
        assert f" {tool}" in missing
    assert "the Debian 12 packages are: bazel-bootstrap" in done.stderr
    assert "sudo" not in done.stderr
    assert machine.log.read_text() == ""


NVCC = ".cuda/nvidia/cu13/bin/nvcc"
INSTALLS_NVCC = f"""echo "pip $*" >> "$STUB_LOG"
/bin/mkdir -p {Path(NVCC).parent}
echo "#!/bin/sh" > {NVCC}
/bin/chmod +x {NVCC}"""


def test_cuda_installs_the_pinned_nvcc_once(machine: Machine) -> None:
    machine.installed("nothing")
    machine.has_venv(INSTALLS_NVCC)
    machine.stub("bazel", 'echo "bazel $*" >> "$STUB_LOG"')
    pinned = (ROOT / "tools/cuda-requirements.txt").read_text().splitlines()
    assert all("==" in line for line in pinned if not line.startswith("#"))
    done = machine.setup("cuda")
    assert done.returncode == 0, done.stderr
    pip, server = machine.log.read_text().splitlines()
    assert pip.endswith("--no-deps --target .cuda -r tools/cuda-requirements.txt")
    assert server == "bazel shutdown"  # It looks for nvcc when it starts.
    machine.log.write_text("")
    assert machine.setup("cuda").returncode == 0
    assert machine.log.read_text() == ""
    # Others do not bring it.
    shutil.rmtree(machine.tree / ".cuda")
    assert machine.setup("test").returncode == 0
    assert machine.log.read_text() == ""


def test_an_nvcc_that_does_not_start_is_said(machine: Machine) -> None:
    machine.installed("nothing")
    machine.has_venv(INSTALLS_NVCC.replace("#!/bin/sh", "#!/no/such/shell"))
    done = machine.setup("cuda")
    assert done.returncode == 1
    assert "nvcc does not start from .cuda; remove .cuda and try again" in done.stderr


def test_of_two_in_one_clone_the_second_waits_and_says_so(machine: Machine) -> None:
    machine.installed("nothing")
    machine.has_venv("")
    assert machine.setup().stdout == ""
    lock = ["flock", str(machine.tree / ".setup.lock"), "bash", "-c", "echo held; read"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(lock, text=True, **pipes) as first:
        assert first.stdout.readline() == "held\n"
        with machine.start() as second:
            assert "another make command sets this clone up" in second.stdout.readline()
            first.communicate("\n", timeout=60)
            assert second.wait(60) == 0


def test_where_files_cannot_be_locked_nobody_waits(machine: Machine) -> None:
    machine.installed("nothing")
    machine.has_venv("")
    (machine.bin / "flock").unlink()
    machine.stub("flock", 'echo "flock: 9: Bad file descriptor" >&2; exit 1')
    done = machine.setup()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (machine.tree / ".setup.lock").unlink()
    (machine.tree / ".setup.lock").mkdir()  # No file can be made.
    assert machine.setup().returncode == 0


def test_an_unknown_argument_is_named(machine: Machine) -> None:
    done = machine.setup("everything")
    assert done.returncode == 1
    assert (
        "unknown argument 'everything'; "
        "allowed: build, test, dist, verify, nightly, cuda, docs, ray" in done.stderr
    )
