"""Another user of this machine: what he runs, and what he can find without being told."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from daemons import BIN
from patience import PATIENCE_SECONDS

NAME = "nobody"


class OtherUser:
    """Runs programs as NAME, which has no group in common with us. Needs root."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder  # All may read it.
        self.uid = pwd.getpwnam(NAME).pw_uid
        self.home = folder / "home"
        self.home.mkdir(mode=0o700)
        os.chown(self.home, self.uid, -1)
        for program in ("pactrain-admin", "pactrain-agent"):
            shutil.copy(BIN / program, folder)

    def start(
        self, *argv: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """A command; standard error comes after standard output."""
        return subprocess.Popen(
            argv,
            cwd="/",
            env={"PATH": os.environ["PATH"], **(environment or {})},
            user=self.uid,
            group=pwd.getpwnam(NAME).pw_gid,
            extra_groups=[],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *argv: str) -> str:
        """What a command says that ends."""
        with self.start(*argv) as process:
            try:
                return process.communicate(timeout=PATIENCE_SECONDS)[0]
            except subprocess.TimeoutExpired:
                process.kill()
                raise

    @contextlib.contextmanager
    def running(
        self, *argv: str, says: str, environment: Mapping[str, str] | None = None
    ) -> Iterator[subprocess.Popen[str]]:
        """A command that has said so, until the end of the block."""
        with self.start(*argv, environment=environment) as process:
            assert process.stdout is not None
            try:
                said = []
                for line in process.stdout:
                    said.append(line)
                    if says in line:
                        break
                else:
                    raise AssertionError("".join(said))
                yield process
            finally:
                process.kill()

    def python_argv(self, script: str, *arguments: str) -> list[str]:
        """A script of the standard library."""
        # Not the clone's interpreter, into which he may not be able to look.
        python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
        return [python, "-I", "-c", script, *arguments]

    def python(self, script: str, *arguments: str) -> str:
        return self.run(*self.python_argv(script, *arguments))

    def admin(self, *words: str) -> str:
        return self.run(str(self.folder / "pactrain-admin"), *words)


@contextlib.contextmanager
def other_user() -> Iterator[OtherUser]:
    with tempfile.TemporaryDirectory(prefix="pactrain-other-") as folder:
        Path(folder).chmod(0o755)
        yield OtherUser(Path(folder))


def tcp_ports(pid: int) -> list[int]:
    """Where a process listens on loopback. /proc/net/tcp shows the ports to anybody."""
    inodes = set()
    for descriptor in (Path("/proc") / str(pid) / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            inodes.add(str(descriptor.readlink()))
    ports = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
            ports.append(int(words[1].rpartition(":")[2], 16))
    return ports
