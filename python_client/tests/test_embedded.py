"""Embedded daemons, with shell scripts in the place of the daemons."""

from __future__ import annotations

import logging
import os
import select
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch.distributed as dist

import pactrain
from pactrain import _library, embedded, places, warden, warden_process
from pactrain.board import Board
from pactrain.host_address import LOOPBACK
from pactrain.job_key import JobKey
from pactrain.warden_process import WardenProcess

LISTENS = """
echo $$ > {pids}/$(basename $0)
echo "$@" > {pids}/flags-$(basename $0)
case "$*" in *--coordinator=-*) read -r told; echo $told > {pids}/told ;; esac
echo "listening grpc=127.0.0.1:1 socket=s metrics=127.0.0.1:2"
exec sleep 1000
"""
FAILS = "echo no such luck >&2; exit 3"
KEY = JobKey("5e" * 32)


@pytest.fixture
def world(tmp_path):
    """The environment of a job whose daemons are scripts."""
    environment = {**os.environ, "GROUP_RANK": "0"}
    for name, variable in (("bin", "PACTRAIN_DAEMON_DIR"), ("tmp", "TMPDIR")):
        (tmp_path / name).mkdir()
        environment[variable] = str(tmp_path / name)
    (tmp_path / "pids").mkdir()
    for name in ("coordinator", "agent"):
        write(tmp_path, name, LISTENS.format(pids=tmp_path / "pids"))
    return environment


def write(tmp_path, name, text):
    path = tmp_path / "bin" / f"pactrain-{name}"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def here(environment):
    return places.place_of_this_process(environment)


def left(environment):
    return os.listdir(environment["TMPDIR"])


def ended(pid):
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    return bool(select.select([fd], [], [], 10)[0])


def run_ranks(environments, timeout=60.0):
    """start_daemons() in a thread per rank; what each returned or raised."""
    store = dist.HashStore()

    def run(rank):
        board = Board(store, "test", timeout)
        try:
            return embedded.start_daemons(
                board, rank, len(environments), environments[rank]
            )
        except pactrain.PacTrainError as error:
            return error

    with ThreadPoolExecutor(len(environments)) as pool:
        return list(pool.map(run, range(len(environments))))


def test_daemons_start_in_a_private_folder_and_stop_leaves_nothing(world, tmp_path):
    process = WardenProcess([here(world)], world, "node-0", LOOPBACK, KEY)
    (folder,) = Path(world["TMPDIR"]).iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert process.key_file == folder / "job.key"
    assert process.key_file.stat().st_mode & 0o777 == 0o600
    process.start_agent(places.Node("node-0", (0,)))
    coordinator = process.start_coordinator()
    assert coordinator["grpc"] == "127.0.0.1:1"
    assert process.connect_agent(coordinator["grpc"])["metrics"] == "127.0.0.1:2"
    pids = tmp_path / "pids"
    flags = (pids / "flags-pactrain-agent").read_text().split()
    assert (pids / "told").read_text() == "127.0.0.1:1\n"
    assert "--site=node-0" in flags
    assert "--log-level=warn" in flags
    process.stop()
    assert all(ended(int(p.read_text())) for p in pids.glob("pactrain-*"))
    assert left(world) == []


def test_the_site_is_the_one_that_is_set(world, tmp_path):
    world["PACTRAIN_SITE"] = "paris"
    process = WardenProcess([here(world)], world, "node-0", LOOPBACK, KEY)
    process.start_agent(places.Node("node-0", (0,)))
    process.connect_agent("127.0.0.1:1")
    process.stop()
    assert (
        "--site=paris"
        in (tmp_path / "pids" / "flags-pactrain-agent").read_text().split()
    )


def test_settings_of_the_job_are_flags_of_the_daemon_that_has_them(world, tmp_path):
    world |= {"PACTRAIN_RISK": "exact", "PACTRAIN_MIN_EXCHANGE_SHARE": "0.5"}
    world |= {"PACTRAIN_STEP_DEADLINE": "5s", "PACTRAIN_CODEC": ""}
    world |= {"PACTRAIN_RENICE": "0"}
    process = WardenProcess([here(world)], world, "node-0", LOOPBACK, KEY)
    process.start_coordinator()
    flags = tmp_path / "pids" / "flags-pactrain-coordinator"
    assert flags.read_text().split()[-2:] == [
        "--risk=exact",
        "--min-exchange-share=0.5",
    ]
    process.start_agent(places.Node("node-0", (0,)))
    process.connect_agent("127.0.0.1:1")
    flags = tmp_path / "pids" / "flags-pactrain-agent"
    assert flags.read_text().split()[-3:] == [
        "--log-level=warn",
        "--step-deadline=5s",
        "--renice=0",
    ]
    process.stop()


def test_a_daemon_that_fails_is_an_error_that_quotes_its_log(world, tmp_path):
    agent = tmp_path / "pids" / "pactrain-agent"
    # Not before the agent is there, which would be killed before it has said who it is.
    write(
        tmp_path, "coordinator", f"until [ -s {agent} ]; do sleep 0.02; done; {FAILS}"
    )
    (error,) = run_ranks([world])
    assert isinstance(error, pactrain.AgentUnresponsiveError)
    assert "pactrain-coordinator ended with status 3\n  no such luck\n" in str(error)
    assert "attach() started it; mend what it says" in str(error)
    assert ended(int(agent.read_text()))
    assert left(world) == []


def test_a_setting_that_a_daemon_refuses_is_an_invalid_argument(world, tmp_path):
    write(tmp_path, "coordinator", "echo --codec: 'fp64' is not a codec >&2; exit 2")
    errors = run_ranks([{**world, "PACTRAIN_CODEC": "fp64"}] * 2)
    for error in errors:
        assert isinstance(error, pactrain.InvalidArgument)
        assert "--codec: fp64 is not a codec" in str(error)
        assert "(--codec=fp64 is PACTRAIN_CODEC)" in str(error)
    (error,) = run_ranks([world])  # The job has set nothing.
    assert not isinstance(error, pactrain.InvalidArgument)


def test_a_failure_on_one_node_fails_all_ranks(world, tmp_path):
    listens = LISTENS.format(pids=tmp_path / "pids")
    write(tmp_path, "agent", f'case "$@" in *node-1*) {FAILS};; esac\n{listens}')
    errors = run_ranks([{**world, "GROUP_RANK": str(node)} for node in (0, 0, 1)])
    for error in errors:
        assert isinstance(error, pactrain.AgentUnresponsiveError)
        assert "no such luck" in str(error)
    assert left(world) == []


def test_a_missing_daemon_names_the_place_and_ways_out(world):
    world["PACTRAIN_DAEMON_DIR"] = "/nowhere"
    (error,) = run_ranks([world])
    assert "/nowhere/pactrain-agent" in str(error)
    assert "make build" in str(error)
    assert left(world) == []


def test_a_program_that_cannot_run_is_an_error(world, tmp_path):
    (tmp_path / "bin" / "pactrain-coordinator").write_bytes(b"\x7fELF no program")
    (error,) = run_ranks([world])
    assert "cannot be started" in str(error)


@pytest.mark.parametrize("python", ["/bin/true", "/nowhere/python"])
def test_a_warden_that_does_not_run_is_an_error(world, monkeypatch, python):
    monkeypatch.setattr(warden_process.sys, "executable", python)
    (error,) = run_ranks([world])
    assert isinstance(error, pactrain.AgentUnresponsiveError)
    assert "does not start" in str(error) or "did not answer" in str(error)
    assert left(world) == []


@pytest.mark.parametrize("parent", ["/proc", "/nowhere"])
def test_a_folder_that_cannot_be_written_is_an_error(world, parent):
    world["TMPDIR"] = parent
    (error,) = run_ranks([world])
    assert "Set TMPDIR" in str(error)


def test_a_folder_with_too_long_a_path_is_an_error(world, tmp_path):
    world["TMPDIR"] = str(tmp_path / ("x" * 100))
    os.mkdir(world["TMPDIR"])
    (error,) = run_ranks([world])
    assert "shorter path" in str(error)
    assert left(world) == []


def test_logs_are_kept_where_that_is_wanted(world, tmp_path):
    write(tmp_path, "coordinator", FAILS)
    world["PACTRAIN_LOG_DIR"] = str(tmp_path / "logs" / "deep")
    run_ranks([world])
    (log,) = (tmp_path / "logs" / "deep").glob("*-node-0-coordinator.log")
    assert log.read_text() == "no such luck\n"


def test_a_log_folder_that_cannot_be_made_is_an_error(world):
    world["PACTRAIN_LOG_DIR"] = "/proc/logs"
    (error,) = run_ranks([world])
    assert "PACTRAIN_LOG_DIR is '/proc/logs'" in str(error)
    assert left(world) == []


def test_a_rank_that_does_not_come_is_named(world):
    board = Board(dist.HashStore(), "test", 0.05)
    with pytest.raises(pactrain.CoordinatorUnavailableError, match=r"rank 1 for 0\.05"):
        embedded.start_daemons(board, 0, 2, world)
    assert left(world) == []


@pytest.mark.parametrize("there", [True, False])
def test_an_agent_of_the_machine_that_is_not_used_is_named(
    tmp_path, monkeypatch, caplog, there
):
    socket = tmp_path / "agent.sock"
    if there:
        socket.touch()
    monkeypatch.setattr(embedded, "DEFAULT_AGENT_SOCKET", str(socket))
    caplog.set_level("INFO", logger="pactrain")
    nodes = [places.Node("node-0", (0,))]
    coordinator = {"metrics": "h:1", "grpc": "h:3"}
    key = Path("/a b/job.key")
    embedded._log_started(nodes, coordinator, [{"metrics": "h:2"}], key)
    assert "--coordinator h:3 --job-key-file '/a b/job.key'" in caplog.text
    assert "metrics at http://h:1/metrics, http://h:2/metrics" in caplog.text
    assert (f"set PACTRAIN_AGENT=unix:{socket}" in caplog.text) == there


@pytest.mark.parametrize("installed", [True, False])
def test_the_command_that_is_printed_runs_and_is_heard_without_logging(
    tmp_path, monkeypatch, capsys, installed
):
    if installed:
        (tmp_path / "pactrain").symlink_to(embedded.ADMIN)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(logging.getLogger("pactrain"), "level", logging.WARNING)
    coordinator = {"metrics": "h:1", "grpc": "127.0.0.1:1"}
    nodes = [places.Node("node-0", (0,))]
    key = tmp_path / "job.key"
    key.touch(mode=0o600)
    embedded._log_started(nodes, coordinator, [{"metrics": "h:2"}], key)
    heard = capsys.readouterr().err
    command = heard.partition("ask it by: ")[2].strip()
    assert command.startswith("pactrain jobs ") == installed
    done = subprocess.run(
        ["sh", "-c", command], check=False, capture_output=True, text=True
    )
    assert done.returncode == 2, done  # It ran: the key is none.
    assert f"{key} is no job key" in done.stderr, done


DIED = b"the agent at unix:/a closed the connection.\nLook at the agent's log."


@pytest.mark.parametrize(
    ("environment", "todo"),
    [
        ({}, r"log goes with the job: set PACTRAIN_LOG_DIR to a folder"),
        (
            {"PACTRAIN_LOG_DIR": "/logs"},
            r"look at its log in PACTRAIN_LOG_DIR \(/logs\)",
        ),
    ],
)
def test_who_loses_an_embedded_agent_is_told_where_logs_are(
    monkeypatch, environment, todo
):
    class Library:
        def pt_error_text(self, handle):
            return DIED

        def pt_next_step(self, handle):
            return 0

        def pt_wait(self, handle, out):
            return self.code

    library = Library()
    advice = embedded.advice_on_a_dead_agent(environment)
    monkeypatch.setattr(_library, "_attach", lambda *_: object())
    monkeypatch.setattr(_library._abi, "load_library", lambda: library)
    native = _library.NativeSession(None, print, advice)
    library.code = 4
    with pytest.raises(pactrain.AgentUnresponsiveError, match=todo) as raised:
        native.wait()
    (what, _) = str(raised.value).splitlines()
    assert what == "the agent at unix:/a closed the connection."
    library.code = 2  # Other errors keep their own advice.
    with pytest.raises(pactrain.StepNotAppliedError, match="Look at the agent's log"):
        native.wait()


def test_proxies_and_settings_are_kept_from_the_daemons(world):
    kept = {"HOME": "/", "PACTRAIN_AGENT": "unix:/a", "PACTRAIN_SITE": "eu"}
    environment = {
        "http_proxy": "x",
        "GRPC_PROXY": "x",
        "PACTRAIN_AGENT_CONFIG": "x",
        "PACTRAIN_COORDINATOR_LINKS": "x",
        "PACTRAIN_JOB_KEY": "x",
        **kept,
    }
    assert warden_process.daemon_environment(environment) == kept


def test_the_warden_waits_for_every_trainer(world):
    children = [subprocess.Popen(["sleep", "1000"]) for _ in range(2)]
    trainers = [(c.pid, warden.start_ticks(c.pid)) for c in children]
    pidfds = warden.open_trainers(trainers)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(warden.wait_for_all, pidfds)
        children[0].kill()
        children[0].wait()
        assert not waiting.done()
        children[1].kill()
        children[1].wait()
        waiting.result(timeout=10)


def test_a_later_process_of_the_same_number_is_no_trainer():
    pid = os.getpid()
    assert warden.open_trainers([(pid, warden.start_ticks(pid) + 1)]) == []
    assert warden.open_trainers([(2**22 + 1, 0)]) == []
