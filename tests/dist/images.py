"""The images of deploy/images: built by buildah on an empty root, and started."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DIST = ROOT / "out/dist"
MOST_BYTES = 60_000_000
SECONDS = 300.0
SHELLS = ("sh", "bash", "dash", "busybox", "apt", "dpkg", "perl")


def why_none() -> str | None:
    """Why none can be built here; None if they can."""
    missing = [tool for tool in ("buildah", "apt-get", "objdump") if not shutil.which(tool)]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if os.geteuid() != 0:
        return "not root"
    if len(list(DIST.glob("*.tar.gz"))) != 1:
        return "out/dist has no tarball; run make dist"
    return None


@dataclass(frozen=True)
class Image:
    name: str  # localhost/pactrain-agent:0.1.0
    bytes: int
    user: str
    root: Path  # Its files.
    container: str


class Store:
    """A store of images in a folder, and containers made of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._flags = [f"--root={folder}/root", f"--runroot={folder}/run", "--storage-driver=vfs"]

    def _said(self, *words: str) -> str:
        command = ["buildah", *self._flags, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def build(self, *more: str) -> list[Image]:
        """By deploy/images/build of the tarball in out/dist."""
        (tarball,) = DIST.glob("*.tar.gz")
        done = subprocess.run(
            [ROOT / "deploy/images/build", tarball, *more],
            env={**os.environ, "BUILDAH": " ".join(self._flags)},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, done.stderr
        return [self._image(name) for name in done.stdout.split()]

    def _image(self, name: str) -> Image:
        container = self._said("from", name)
        root = Path(self._said("mount", container))
        files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
        config = json.loads(self._said("inspect", "--type=image", name))["OCIv1"]["config"]
        size = sum(file.stat().st_size for file in files)
        return Image(name, size, config["User"], root, container)

    def start(self, image: Image, folder: Path, words: Sequence[str]) -> str:
        """What its daemon says first, with these arguments; it is stopped again.

        It sees `folder`, which becomes its user's, as /run/pactrain.
        """
        user, group = map(int, image.user.split(":"))
        os.chown(folder, user, group)
        command = ["buildah", *self._flags, "run", "--isolation=chroot"]
        command += [f"--volume={folder}:/run/pactrain", image.container]
        process = subprocess.Popen(
            [*command, "--", "/usr/bin/daemon", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            lines = []
            for line in process.stdout:
                lines.append(line)
                if line.startswith("listening"):
                    return line
            raise AssertionError(f"{image.name} ended: {lines}")
        finally:
            os.killpg(process.pid, 15)
            process.wait(SECONDS)

    def close(self) -> None:
        self._said("rm", "--all")
        self._said("rmi", "--all", "--force")


def problems(image: Image) -> list[str]:
    found = []
    if image.bytes > MOST_BYTES:
        found.append(f"{image.name} has {image.bytes / 1e6:.0f} MB of at most 60")
    if image.user.split(":")[0] in ("", "0", "root"):
        found.append(f"{image.name} runs as user '{image.user}'")
    for folder in ("bin", "usr/bin", "sbin", "usr/sbin"):
        found += [
            f"{image.name} has {folder}/{name}"
            for name in SHELLS
            if (image.root / folder / name).exists()
        ]
    return found
