"""An empty Debian 12 to install into: a folder with its own mounts and no network."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# Beside Debian's minimum; no compiler, no header, no -dev package.
PACKAGES = "python3,python3-venv"
FOLDER = ROOT / ".cache/dist"
TOOLS = ("debootstrap", "unshare", "chroot", "ip", "hostname", "apt-get")
UNSHARE = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child")
# Arguments: the root, a script for inside, then pairs of a folder and where it is seen.
ENTER = """
root=$1 script=$2; shift 2
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
while [ $# -gt 0 ]; do
  mkdir -p "$root$2"
  mount --bind "$1" "$root$2"
  mount -o remount,bind,ro "$root$2"
  shift 2
done
ip link set lo up
echo "127.0.0.1 localhost $(hostname)" >"$root/etc/hosts"
cd /
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
  chroot "$root" sh -euc "$script"
"""


def cache_of(packages: str) -> Path:
    return FOLDER / f"debian-12,{packages}.tar"


def why_none(packages: str = PACKAGES) -> str | None:
    """Why there can be no such root here; None if there can be."""
    if os.geteuid() != 0:
        return "not root"
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    if missing:
        return f"not installed: {', '.join(missing)}"
    tried = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        return f"no namespaces: {tried.stderr.strip()}"
    if not cache_of(packages).exists() and not _mirror():
        return "apt knows no mirror of Debian 12 (bookworm)"
    return None


class DebianRoot:
    """`folder` becomes the root; `seen` are folders of ours: path -> read-only place inside."""

    def __init__(self, folder: Path, seen: dict[Path, str], packages: str = PACKAGES) -> None:
        cache = cache_of(packages)
        if not cache.exists():
            _make_cache(folder.with_name("new"), packages)
        folder.mkdir()
        subprocess.run(["tar", "-xpf", cache, "-C", folder], check=True)
        self.folder = folder
        self._seen = [str(word) for pair in seen.items() for word in pair]

    def run(self, script: str, seconds: float = 240) -> str:
        """What the script says; AssertionError if it fails. All that it started ends with it."""
        done = subprocess.run(
            [*UNSHARE, "bash", "-euc", ENTER, "enter", str(self.folder), script, *self._seen],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
        )
        assert done.returncode == 0, f"status {done.returncode}:\n{done.stdout}"
        return done.stdout


def _mirror() -> str:
    """Where this machine's own apt gets Debian 12 from."""
    wanted = ["Created-By: Packages", "Codename: bookworm", "Component: main"]
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", *wanted]
    return subprocess.run(command, capture_output=True, text=True).stdout.partition("\n")[0]


def _make_cache(folder: Path, packages: str) -> None:
    cache = cache_of(packages)
    command = ["debootstrap", "--variant=minbase", f"--include={packages}", "bookworm"]
    done = subprocess.run(
        [*command, str(folder), _mirror()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    FOLDER.mkdir(parents=True, exist_ok=True)
    new = cache.with_suffix(".new")
    without = [f"--exclude=./{name}" for name in ("var/cache/apt/*", "var/lib/apt/lists/*")]
    subprocess.run(["tar", "-cf", new, *without, "-C", folder, "."], check=True)
    new.rename(cache)
    shutil.rmtree(folder)
