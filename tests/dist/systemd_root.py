"""A Debian 12 that has booted: systemd as its first process, in namespaces of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import debian_root

PACKAGES = "systemd,systemd-sysv,python3-minimal"
CGROUPS = ("/sys/fs/cgroup/unified", "/sys/fs/cgroup")
UNSHARE = (
    *("unshare", "--mount", "--net", "--pid", "--cgroup", "--ipc", "--uts"),
    *("--fork", "--kill-child"),
)
# Arguments: the root. In a cgroup that systemd may fill: the namespace shows no other.
BOOT = """
root=$1
# A mount of its own, and the only one: units have mounts of theirs made out of it.
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mkdir -p "$root/sys/fs/cgroup"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
ip link set lo up
cd "$root"
mkdir -p old
pivot_root . old
umount -l old
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --show-status=0
"""
SECONDS = 300.0  # A bound on hangs, not a measure.
UP = ("running", "degraded")


def _cgroups() -> Path | None:
    """Where this system has its cgroups of version 2; None: nowhere that we can write."""
    for folder in map(Path, CGROUPS):
        if (folder / "cgroup.controllers").exists() and os.access(folder, os.W_OK):
            return folder
    return None


def why_none() -> str | None:
    """Why none can boot here; None if one can."""
    why = debian_root.why_none(PACKAGES)
    if why is None and _cgroups() is None:
        why = "no cgroups of version 2 that we may write to"
    return why


class SystemdRoot:
    def __init__(self, folder: Path, first_process: int) -> None:
        self.folder = folder
        self._enter = ["nsenter", "-t", str(first_process), "-m", "-p", "-n", "-C", "-i", "-u"]
        self._enter += ["-r", "-w"]

    def run(self, script: str, seconds: float = SECONDS) -> str:
        """What the script says; AssertionError if it fails."""
        status, said = self.try_to_run(script, seconds)
        assert status == 0, f"status {status} of {script}:\n{said}"
        return said

    def try_to_run(self, script: str, seconds: float = SECONDS) -> tuple[int, str]:
        done = subprocess.run(
            [*self._enter, "sh", "-euc", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
            text=True,
            timeout=seconds,
        )
        return done.returncode, done.stdout


def _first_process(unshare: subprocess.Popen[bytes]) -> int:
    """systemd's number here, once its target is reached."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        assert unshare.poll() is None, "systemd ended"
        children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text().split()
        for child in map(int, children):
            if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                return child
        time.sleep(0.05)
    raise AssertionError("systemd did not start")


@contextlib.contextmanager
def booted(folder: Path) -> Iterator[SystemdRoot]:
    """`folder` becomes the root; all that ran in it ends with the block."""
    debian_root.DebianRoot(folder, {}, PACKAGES)
    cgroups = _cgroups()
    assert cgroups is not None
    cgroup = cgroups / f"pactrain-test-{os.getpid()}"
    cgroup.mkdir()

    def join() -> None:
        (cgroup / "cgroup.procs").write_text(str(os.getpid()))

    unshare = subprocess.Popen(
        [*UNSHARE, "bash", "-euc", BOOT, "boot", folder],
        stdin=subprocess.DEVNULL,
        preexec_fn=join,
    )
    end = time.monotonic() + SECONDS
    try:
        root = SystemdRoot(folder, _first_process(unshare))
        # Degraded is fine: units of Debian's own that need a real machine.
        while root.try_to_run("systemctl is-system-running")[1].strip() not in UP:
            assert time.monotonic() < end, "systemd did not reach its target"
        yield root
    finally:
        unshare.kill()
        unshare.wait()
        end = time.monotonic() + SECONDS
        # Deepest first; the last processes may be on their way out.
        for path in sorted(cgroup.rglob("*/"), reverse=True):
            while path.is_dir() and time.monotonic() < end:
                with contextlib.suppress(OSError):
                    path.rmdir()
        while cgroup.is_dir() and time.monotonic() < end:
            with contextlib.suppress(OSError):
                cgroup.rmdir()
