"""What another user of the same machine can do to a job: nothing (a real one, by setuid)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import scenarios
from daemons import BIN, MEMORY_FILE
from launcher import Launch
from other_user import other_user, tcp_ports
from patience import PATIENCE_SECONDS

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="being another user takes root")


@pytest.fixture
def stranger():
    with other_user() as user:
        yield user


@pytest.fixture
def trained(jobs, tmp_path):
    """A job of two ranks on one host, with daemons of its own, in the midst of training."""
    jobs.folder.chmod(0o755)  # As /tmp is: nothing but the job's own folder protects it.
    environments = [jobs.environment()] * 2
    with Launch(scenarios.interrupted, environments, tmp_path / "store", {}) as launch:
        launch.wait_said("training")
        yield launch


def admin(*words: str) -> str:
    argv = [str(BIN / "pactrain-admin"), *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    return done.stdout + done.stderr


TRY_FILES = """
import pathlib, socket, sys
for name in sys.argv[1:]:
    try:
        if name.endswith(".sock"):
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(name)
        else:
            open(name).read()
        print("got", name)
    except OSError as error:
        print(type(error).__name__)
"""


def mapped(process: int) -> list[str]:
    """The names by which root could open the memory files that it shares with trainers."""
    folder = Path(f"/proc/{process}/map_files")
    return [str(file) for file in folder.iterdir() if str(file.readlink()).startswith(MEMORY_FILE)]


def test_sec_attack_3_another_user_neither_sees_nor_changes_an_embedded_job(
    jobs, trained, stranger
):
    (folder,) = jobs.folder.glob("pactrain-*")
    key = f"--job-key-file={folder / 'job.key'}"
    coordinators = jobs.processes("/pactrain-coordinator ")
    daemons = [*coordinators, *jobs.processes("/pactrain-agent ")]
    # Of its ports one answers the owner, who has the key.
    ports = tcp_ports(coordinators[0])
    answers = {port: admin("jobs", f"--coordinator=127.0.0.1:{port}", key) for port in ports}
    (port,) = [port for port, text in answers.items() if "2 ranks" in text]
    job = answers[port].splitlines()[1].split()[0]
    where = f"--coordinator=127.0.0.1:{port}"
    assert "running" in admin("job", job, where, key)

    # Without it nobody gets in: not in plain text, not with another key, not as an agent.
    own = str(stranger.home / "own.key")
    stranger.admin("new-key", own)
    for words in (["jobs"], ["pin", job, "FULL"], ["forget", job]):
        assert "speaks TLS" in stranger.admin(*words, where)
        assert "cannot be reached" in stranger.admin(*words, where, f"--job-key-file={own}")
    agent = [str(stranger.folder / "pactrain-agent"), "--name=node-0", "--connect-timeout=1s"]
    agent += [where, f"--socket=unix:{stranger.home}/a.sock", f"--job-key-file={own}"]
    assert "the job keys (or CAs) differ" in stranger.run(*agent)

    # Nor is the key to be had: in files, environment, command line, memory.
    secret = (folder / "job.key").read_text().strip()
    names = [str(folder / name) for name in ("job.key", "agent.sock", "state/journal.db")]
    names += [f"/proc/{pid}/{what}" for pid in daemons for what in ("environ", "mem", "fd/3")]
    assert "got" not in stranger.python(TRY_FILES, *names)
    # Nor are gradients: the trainers' slots, as the agent maps them.
    slots = [name for pid in jobs.processes("/pactrain-agent ") for name in mapped(pid)]
    assert len(slots) >= 2
    assert set(stranger.python(TRY_FILES, *slots).split()) == {"PermissionError"}
    commands = [f"/proc/{pid}/cmdline" for pid in daemons]
    assert stranger.python(TRY_FILES, *commands).count("got") == len(daemons)
    assert not jobs.processes(secret)

    trained.tell(15)
    assert [rank.value["steps"] for rank in trained.finish()] == [20, 20]
    jobs.must_leave_nothing()


def hidden_from_dumps(process: int) -> list[str]:
    """The process's own memory that no dump holds (MADV_DONTDUMP), locked or not."""
    hidden, mapping = [], ""
    for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
        if not line.split()[0].endswith(":"):
            mapping = line
        elif line.startswith("VmFlags:") and "dd" in line.split() and " rw-p " in mapping:
            hidden.append(mapping)
    return hidden


def test_sec_attack_7_who_is_of_a_daemons_user_does_not_get_its_key(stranger):
    """A trainer under the agent's user: here both are the other user's."""
    key = "5e" * 32
    for setting in ("agent", "coordinator"):
        shutil.copy(BIN / f"pactrain-{setting}", stranger.folder)
    flags = {
        "agent": ["--name=a", "--coordinator=127.0.0.1:9", f"--socket={stranger.home}/a.sock"],
        "coordinator": [f"--state-dir={stranger.home}/state", "--listen=127.0.0.1:0"],
    }
    for daemon, own in flags.items():
        argv = [str(stranger.folder / f"pactrain-{daemon}"), *own, "--listen-metrics=127.0.0.1:0"]
        given = {"PACTRAIN_JOB_KEY": key}
        with stranger.running(*argv, says="listening", environment=given) as process:
            environment = Path(f"/proc/{process.pid}/environ").read_text()  # As root.
            assert "PACTRAIN_JOB_KEY=" in environment
            assert key not in environment
            assert hidden_from_dumps(process.pid)  # Where OpenSSL keeps private keys.
            names = [f"/proc/{process.pid}/{what}" for what in ("environ", "mem", "maps", "fd/0")]
            assert stranger.python(TRY_FILES, *names).split() == ["PermissionError"] * len(names)


SERVE = """
import socket, sys, time
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.bind(sys.argv[1])
server.listen(8)
print("serving", flush=True)
time.sleep(1000)
"""


def test_sec_attack_14_a_socket_that_another_user_serves_gets_no_gradients(stranger, tmp_path):
    shared = stranger.folder / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    path = shared / "agent.sock"
    argv = stranger.python_argv(SERVE, str(path))
    environment = {"PACTRAIN_AGENT": f"unix:{path}", "PACTRAIN_JOB_ID": "job"}
    with (
        stranger.running(*argv, says="serving"),
        Launch(scenarios.attach_only, [environment], tmp_path / "store", {}) as launch,
    ):
        (rank,) = launch.finish()
    assert rank.error == "RefusedError"
    assert f"user {stranger.uid} serves it, who is neither root nor this user" in rank.text
