"""The faults of bench/observe.py: one for each alert, on a job that runs.

A fault is a context: it lasts as long as it is entered, and all is well again after it.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.cluster import BIN, READY_SECONDS, ROOT, Cluster, pin
from bench.observe_job import Relays, give, start_pair, start_waiting
from bench.observe_servers import Prometheus, wait_until
from bench.other_release import of_release
from bench.processes import Child, Children
from bench.slow_relay import Rates
from bench.testbed import LoopbackTestbed, TestbedError, run

JOB = "observed"
USUAL_STEP = 0.2  # Seconds: less than of steps that are made to be slow.
SLOW = 500_000  # Bytes per second: a fraction of what relays pass on by themselves.


@dataclass(frozen=True)
class Stage:
    """What faults are made of."""

    bed: LoopbackTestbed
    cluster: Cluster
    daemons: Children
    extras: Children  # Processes that a fault starts.
    folder: Path
    pki: Path
    token: Path
    relays: Relays
    prometheus: Prometheus

    @property
    def orders(self) -> Path:
        return self.folder / "orders"

    @property
    def coordinator(self) -> Child:
        return self.daemons.named("coordinator")

    def pin(self, *what: str) -> None:
        pin(self.bed, self.bed.hosts[0], self.cluster, self.pki, JOB, *what)

    def unpin(self) -> None:
        pin(self.bed, self.bed.hosts[0], self.cluster, self.pki, JOB, verb="unpin")


@dataclass(frozen=True)
class Fault:
    alert: str
    begin: Callable[[Stage], AbstractContextManager[None]]
    also: tuple[str, ...] = ()  # What else it may set off.


def ordered(order: str) -> Callable[[Stage], AbstractContextManager[None]]:
    @contextmanager
    def begin(stage: Stage) -> Iterator[None]:
        give(stage.orders, order)
        yield
        give(stage.orders, "train")

    return begin


@contextmanager
def slower_than_full(stage: Stage) -> Iterator[None]:
    """Ranks wait for each other longer than when the job was in FULL; not for links."""
    compacted = 'pactrain_coordinator_mode{mode!="FULL"} == 1'
    # And not while a fault before this one held it up.
    measured = f"0 < pactrain_coordinator_full_step_at_least_seconds < {USUAL_STEP}"
    if not stage.prometheus.holds(measured):
        stage.pin("FULL")
        wait_until(lambda: stage.prometheus.holds(measured), "FULL to be measured")
        stage.unpin()
    wait_until(lambda: stage.prometheus.holds(compacted), "masks to be in force")
    with ordered("slow")(stage):
        yield


@contextmanager
def coarse(stage: Stage) -> Iterator[None]:
    stage.pin("TERNARY", "--levels", "3")
    yield
    stage.unpin()


def slowed(host: str, rates: Rates) -> Callable[[Stage], AbstractContextManager[None]]:
    @contextmanager
    def begin(stage: Stage) -> Iterator[None]:
        stage.relays[host].limit(rates)
        yield
        stage.relays[host].limit(Rates())

    return begin


@contextmanager
def full_disk(stage: Stage) -> Iterator[None]:
    """No file of the coordinator's may grow."""
    pid = stage.coordinator.process.pid
    free = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, free[1]))
    try:
        stage.pin("FULL")  # What an operator decides is written down.
    except TestbedError as error:
        if "journal cannot be written" not in str(error):
            raise
    else:
        raise AssertionError("a pin was accepted that cannot have been written")
    yield
    resource.prlimit(pid, resource.RLIMIT_FSIZE, free)
    writable = "pactrain_coordinator_read_only == 0"
    wait_until(lambda: stage.prometheus.holds(writable), "the journal to be written again")


@contextmanager
def another_agent(stage: Stage, program: Path, *flags: str) -> Iterator[None]:
    """One more, in no job."""
    name = "d0"
    run(str(ROOT / "tools" / "certs"), str(stage.pki), "--agent", name)
    path = stage.folder / f"{name}.sock"
    argv = [str(program), f"--name={name}", f"--coordinator={stage.cluster.coordinator}",
            f"--socket=unix:{path}", f"--metrics-token-file={stage.token}", "--site=c",
            f"--tls-cert={stage.pki / f'agent-{name}.pem'}", f"--tls-ca={stage.pki / 'ca.pem'}",
            f"--tls-key={stage.pki / f'agent-{name}.key'}", *flags]  # fmt: skip
    child = stage.extras.start(f"agent-{name}", argv, {})
    child.wait_for("listening", 30)
    yield
    child.process.terminate()
    child.process.wait(10)


@contextmanager
def other_version(stage: Stage) -> Iterator[None]:
    program = of_release(BIN / "pactrain-agent", stage.folder, minors_later=1)
    with another_agent(stage, program):
        yield


@contextmanager
def plain_text(stage: Stage) -> Iterator[None]:
    with another_agent(stage, BIN / "pactrain-agent", "--insecure-network"):
        yield


@contextmanager
def old_certificate(stage: Stage) -> Iterator[None]:
    """The last host's agent finds a certificate that ends tomorrow."""
    name = f"agent-{stage.bed.hosts[-1].name}"
    last, kept = stage.pki / f"{name}.pem", stage.pki / f"{name}.kept"
    shutil.copy(last, kept)
    new = issue_ending(stage.pki, name)
    new.replace(last)
    yield
    kept.replace(last)


CA = """
[ca]
default_ca = own
[own]
database = {folder}/index
new_certs_dir = {folder}
rand_serial = yes
default_md = sha256
policy = any
[any]
commonName = supplied
"""


def issue_ending(pki: Path, name: str) -> Path:
    """A certificate for the key of `name` of which 20 days are over and one is left."""
    folder = pki / "ending"
    folder.mkdir()
    (folder / "index").touch()
    (folder / "ca.cnf").write_text(CA.format(folder=folder))
    uri = f"URI:spiffe://pactrain/{name.replace('-', '/', 1)}"
    (folder / "leaf.cnf").write_text(
        f"subjectAltName={uri},DNS:daemon.pactrain\nextendedKeyUsage=serverAuth,clientAuth\n"
    )
    run("openssl", "req", "-new", "-key", str(pki / f"{name}.key"), "-subj", f"/CN={name}",
        "-out", str(folder / "leaf.csr"))  # fmt: skip
    begin, end = (
        run("date", "-u", "-d", f"{days} days", "+%Y%m%d%H%M%SZ").strip() for days in (-20, 1)
    )
    run("openssl", "ca", "-batch", "-notext", "-config", str(folder / "ca.cnf"),
        "-cert", str(pki / "ca.pem"), "-keyfile", str(pki / "ca.key"),
        "-in", str(folder / "leaf.csr"), "-out", str(folder / "leaf.pem"),
        "-extfile", str(folder / "leaf.cnf"), "-startdate", begin, "-enddate", end)  # fmt: skip
    return folder / "leaf.pem"


@contextmanager
def alone(stage: Stage) -> Iterator[None]:
    """A trainer of a job whose other site does not come."""
    child = start_waiting(stage.extras, "alone", stage.cluster.agents[0])
    yield
    child.process.kill()
    child.process.wait()


@contextmanager
def trainer_killed(stage: Stage) -> Iterator[None]:
    """One of two trainers of another job, which ends by it."""
    agents = stage.cluster.agents
    first, second = start_pair(stage.extras, "broken", (agents[0], agents[-1]))
    job = 'pactrain_coordinator_job_state{training_job="broken", state="%s"} == 1'
    wait_until(lambda: stage.prometheus.holds(job % "running"), "the other job to run")
    second.process.kill()
    second.process.wait()
    yield
    first.process.kill()
    first.process.wait()


@contextmanager
def agent_stopped(stage: Stage) -> Iterator[None]:
    """The last agent's process stands still; killed, it would end this job."""
    pid = stage.cluster.agents[-1].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def coordinator_killed(stage: Stage) -> Iterator[None]:
    """And started again, with what it had written down."""
    killed = stage.coordinator
    killed.process.kill()
    killed.process.wait()
    yield
    stage.daemons.start(killed.name, killed.argv, {}).wait_for("listening", READY_SECONDS)


# What is measured while steps take another time than usual is not to be relied on.
PACE = ("PactrainSlowerThanFull", "PactrainStraggler")
LINKS = ("PactrainLinkSlow", "PactrainLinkAsymmetric")

# Those that stop a process come last.
FAULTS = (
    Fault("PactrainNormAlarm", ordered("norm"), ("PactrainRiskAboveBound", "PactrainFallbacks")),
    Fault("PactrainStraggler", ordered("straggle"), PACE),
    Fault("PactrainMaskChurn", ordered("masks"), ("PactrainFallbacks", *PACE)),
    Fault("PactrainSlowerThanFull", slower_than_full),
    Fault("PactrainRiskAboveBound", coarse, PACE),
    Fault("PactrainFallbacks", ordered("masks"), ("PactrainMaskChurn", *PACE)),
    Fault("PactrainLinkSlow", slowed("b0", Rates(SLOW, SLOW)), (*LINKS, *PACE)),
    Fault("PactrainLinkAsymmetric", slowed("c0", Rates(to_target=SLOW)), (*LINKS, *PACE)),
    Fault("PactrainJournalReadOnly", full_disk, PACE),
    Fault("PactrainJobWaits", alone),
    Fault("PactrainStepStalls", ordered("hang"), PACE),
    Fault("PactrainJobFailed", trainer_killed),
    Fault("PactrainInsecureNetwork", plain_text),
    Fault("PactrainVersionSkew", other_version),
    Fault("PactrainCertificateEnds", old_certificate),
    Fault("PactrainAgentLost", agent_stopped, (*LINKS, *PACE)),
    Fault("PactrainCoordinatorLost", coordinator_killed, (*LINKS, *PACE)),
)
