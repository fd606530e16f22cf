"""A Slurm of one site: munged, slurmctld, and one slurmd per node, all on this machine.

    with Slurm(folder, "b", ["n1", "n2"]) as slurm:
        job = slurm.submit([SCRIPT, "--epochs=1"], variables)
        print(job.finish())

Sockets, key, state and configuration lie in `folder`, and ports are free ones on loopback:
a Slurm that this machine has is neither used nor disturbed. No root is needed. Processes
are followed by their parents, not by cgroups.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from daemons import ROOT
from patience import PATIENCE_SECONDS
from test_sites import clean

from bench.closing import Closing
from bench.processes import Child

ADDRESS = "127.0.0.1"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "sinfo")
PATH = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/usr/local/sbin"])
# A job that is requeued starts again after cred_expire: 120 s by default, 5 s at least.
CONFIGURATION = """
ClusterName={name}
SlurmctldHost={host}({address})
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
PlugStackConfig={folder}/plugstack.conf
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait=5
PartitionName=all Nodes=ALL Default=YES State=UP
"""
NODE = "NodeName={node} NodeHostname={host} NodeAddr={address} Port={port} CPUs=8\n"
# Jobs outlive the daemons that started them, so something has to outlive us. Slurm names its
# configuration to every process of a job.
REAPER = """
import contextlib, os, pathlib, signal, sys, time
def of_this_slurm(entry):
    with contextlib.suppress(OSError):  # It has just ended, or is another user's.
        return sys.argv[1].encode() in (entry / "environ").read_bytes().split(bytes(1))
sys.stdin.read()  # Until the test closes it, or is killed.
for _ in range(100):
    pids = [int(e.name) for e in pathlib.Path("/proc").iterdir()
            if e.name.isdigit() and of_this_slurm(e)]
    if not pids:
        break
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    time.sleep(0.05)
"""


def why_no_slurm() -> str | None:
    """Why there can be none on this machine; None if there can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    return f"Slurm is not installed: no {', '.join(missing)}" if missing else None


def quiet_port() -> int:
    """One that is free, and that the system gives to no connection before a daemon has it."""
    for port in random.sample(range(16384, 32768), 100):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind((ADDRESS, port))
            return port
    raise OSError(f"no free port from 16384 to 32767 at {ADDRESS}")


def wait_until(happened: Callable[[], bool], what: Callable[[], str]) -> None:
    """AssertionError with what() if it does not in PATIENCE_SECONDS."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        assert time.monotonic() < end, what()
        time.sleep(0.05)


class Job:
    """A batch job of `slurm`, whose output is in `log`."""

    def __init__(self, slurm: Slurm, number: str, log: Path) -> None:
        self.slurm = slurm
        self.number = number
        self.log = log

    def shown(self, field: str) -> str:
        """A field of scontrol's, like JobState."""
        text = self.slurm.command("scontrol", "--oneliner", "show", "job", self.number)
        found = re.search(rf"\b{field}=(\S+)", text)
        assert found is not None, text
        return found[1]

    def text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def wait_for(self, words: str) -> None:
        """Until it has printed them."""
        wait_until(lambda: words in self.text(), self._what)

    def wait_for_state(self, *states: str) -> None:
        wait_until(lambda: self.shown("JobState") in states, self._what)

    def finish(self, state: str = "COMPLETED") -> str:
        """What it printed, once it has ended in this state."""
        wait_until(
            lambda: (
                self.shown("JobState") not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
            ),
            self._what,
        )
        assert self.shown("JobState") == state, self._what()
        return self.text()

    def _what(self) -> str:
        shown = self.slurm.command("scontrol", "show", "job", self.number)
        return f"{shown}\nIt printed:\n{self.text()[-3000:]}"


class Slurm(Closing):
    """`nodes` are names that no other Slurm of this machine has."""

    def __init__(self, folder: Path, name: str, nodes: Sequence[str]) -> None:
        self.folder = folder
        self.nodes = tuple(nodes)
        self._configuration = folder / "slurm.conf"
        self._environment = {"SLURM_CONF": str(self._configuration)}
        self._children: list[Child] = []
        self._reaper = subprocess.Popen(
            [sys.executable, "-c", REAPER, f"SLURM_CONF={self._configuration}"],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        for part in ("state", *nodes):
            (folder / part).mkdir(parents=True)
        self._configure(name)
        try:
            self._start_daemons()
        except BaseException:
            self.close()
            raise

    def _configure(self, name: str) -> None:
        (self.folder / "munge.key").write_bytes(os.urandom(128))
        (self.folder / "munge.key").chmod(0o600)
        for empty in ("munge.log", "plugstack.conf"):
            (self.folder / empty).touch(0o600)
        here = {"host": socket.gethostname().partition(".")[0], "address": ADDRESS}
        text = CONFIGURATION.format(
            name=name, folder=self.folder, user=getpass.getuser(), port=quiet_port(), **here
        )
        for node in self.nodes:
            text += NODE.format(node=node, port=quiet_port(), **here)
        self._configuration.write_text(text)

    def _start_daemons(self) -> None:
        munge = self.folder / "munge"
        # --force, since the folder of the socket is closed to other users.
        self._start("munged", "--force", "--foreground", f"--socket={munge}.sock",
                    f"--key-file={munge}.key", f"--pid-file={munge}.pid",
                    f"--seed-file={munge}.seed", f"--log-file={munge}.log")  # fmt: skip
        self._wait_until(Path(f"{munge}.sock").exists)
        self._start("slurmctld", "-D")
        for node in self.nodes:
            self._start("slurmd", "-D", "-N", node)
        self._wait_until(self._all_idle)

    def _start(self, program: str, *arguments: str) -> None:
        found = shutil.which(program, path=PATH)
        assert found is not None
        log = self.folder / f"{program}-{len(self._children)}.log"
        self._children.append(Child(program, [found, *arguments], self._environment, log))

    def _all_idle(self) -> bool:
        done = self._run({}, "sinfo", "--noheader", "--Node", "--format=%t")
        return done.stdout.split() == ["idle"] * len(self.nodes)

    def _wait_until(self, happened: Callable[[], bool]) -> None:
        def what() -> str:
            return "\n".join(str(child.error("is not ready")) for child in self._children)

        def happened_or_died() -> bool:
            assert all(child.process.poll() is None for child in self._children), what()
            return happened()

        wait_until(happened_or_died, what)

    def _run(self, variables: Mapping[str, str], *command: str) -> subprocess.CompletedProcess[str]:
        # Of a job that the tests run in, if they do.
        outside = ("SLURM_", "SBATCH_")
        own = {name: value for name, value in clean().items() if not name.startswith(outside)}
        return subprocess.run(
            command,
            cwd=ROOT,
            env={**own, **self._environment, **variables},
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )

    def command(self, *command: str, variables: Mapping[str, str] | None = None) -> str:
        """What a client of this Slurm prints that runs in the checkout, and ends well."""
        done = self._run(variables or {}, *command)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def submit(self, batch: Sequence[str | Path], variables: Mapping[str, str]) -> Job:
        """sbatch with these options, script and arguments, and with these variables."""
        words = ["sbatch", "--parsable", f"--output={self.folder}/%j.out", *map(str, batch)]
        number = self.command(*words, variables=variables).strip()
        return Job(self, number, self.folder / f"{number}.out")

    def close(self) -> None:
        """Kills daemons and jobs."""
        assert self._reaper.stdin is not None
        self._reaper.stdin.close()
        self._reaper.wait(PATIENCE_SECONDS)
        for child in self._children:
            child.process.wait(PATIENCE_SECONDS)
