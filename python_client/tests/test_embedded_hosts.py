"""Embedded daemons of a job on several hosts, with shell scripts in their place."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

import pactrain
from pactrain import embedded, host_address, job_key, places, warden
from pactrain.board import Board

# Says what it was given, as a daemon would not.
SCRIPT = """#!/bin/sh
cat /proc/$$/cmdline | tr '\\0' ' ' > {folder}/$$.command
cat /proc/$$/environ | tr '\\0' '\\n' > {folder}/$$.environment
for word in "$@"; do
  case $word in --job-key-file=*) cat "${{word#*=}}" > {folder}/$$.key ;; esac
done
case "$*" in *--coordinator=-*) read -r told; echo $told > {folder}/$$.told ;; esac
echo "listening grpc=127.0.0.2:1 socket=s metrics=127.0.0.1:2"
exec sleep 1000
"""


class Hosts:
    """Runs the ranks of a job on pretended hosts, a list of (host, its address)."""

    def __init__(self, tmp_path, monkeypatch):
        self.folder = tmp_path
        self.store = dist.HashStore()
        self.wardens = []
        self.pretended = ""  # One host for all.
        self.base = {**os.environ, "PACTRAIN_DAEMON_DIR": str(tmp_path / "bin")}
        self.base |= {"TMPDIR": str(tmp_path / "tmp"), "MASTER_ADDR": "localhost"}
        for name in ("bin", "tmp", "said"):
            (tmp_path / name).mkdir()
        for daemon in ("coordinator", "agent"):
            path = tmp_path / "bin" / f"pactrain-{daemon}"
            path.write_text(SCRIPT.format(folder=tmp_path / "said"))
            path.chmod(0o755)
        real = places.place_of_this_process

        def pretend(environment):
            name = self.pretended or environment["TEST_HOST"]
            return dataclasses.replace(real(environment), host=name, host_name=name)

        monkeypatch.setattr(embedded, "place_of_this_process", pretend)

    def run(self, hosts, keys=()):
        def rank(number):
            host, address = hosts[number]
            environment = {**self.base, "TEST_HOST": host}
            environment["GROUP_RANK"] = host
            if number < len(keys):
                environment["PACTRAIN_JOB_KEY"] = keys[number]
            environment["PACTRAIN_HOST_ADDRESS"] = address
            board = Board(self.store, "test", 60)
            try:
                return embedded.start_daemons(board, number, len(hosts), environment)
            except pactrain.PacTrainError as error:
                return error

        with ThreadPoolExecutor(len(hosts)) as pool:
            return list(pool.map(rank, range(len(hosts))))

    def warden_settings(self):
        return [json.loads(w._process.args[-1]) for w in self.wardens]

    def said(self, kind):
        return [path.read_text() for path in (self.folder / "said").glob(f"*.{kind}")]

    def board_text(self):
        """All that is left in the store."""
        return json.dumps(
            [bytes(self.store.get(key)).decode() for key in self.store.list_keys()]
        )


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    started = Hosts(tmp_path, monkeypatch)
    real = embedded.WardenProcess

    def remember(*arguments):
        started.wardens.append(real(*arguments))
        return started.wardens[-1]

    monkeypatch.setattr(embedded, "WardenProcess", remember)
    yield started
    for process in started.wardens:
        process.stop()


@pytest.fixture
def stored(monkeypatch):
    """All that ever was written on a board."""
    texts = []
    plain = Board.write

    def write(board, name, note):
        texts.append(json.dumps(note))
        plain(board, name, note)

    monkeypatch.setattr(Board, "write", write)
    return texts


TWO = [("here", "127.0.0.2"), ("here", "127.0.0.2"), ("there", "127.0.0.3")]


def test_all_daemons_of_several_hosts_get_one_key_and_their_hosts_address(hosts):
    assert all(isinstance(result, str) for result in hosts.run(TWO))
    keys = hosts.said("key")
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert len(keys[0].strip()) == 64
    commands = hosts.said("command")
    listening = [c for c in commands if "--listen=127.0.0.2:0" in c]
    assert len(listening) == 2  # The coordinator and an agent.
    assert sum("--listen=127.0.0.3:0" in c for c in commands) == 1
    assert hosts.said("told") == ["127.0.0.2:1\n"] * 2


def test_sec_the_key_is_on_no_command_line_and_leaves_the_store(hosts, caplog):
    caplog.set_level("DEBUG")
    hosts.run(TWO)
    key = hosts.said("key")[0].strip()
    assert key not in "".join(hosts.said("command") + hosts.said("environment"))
    assert key not in caplog.text
    assert "http://127.0.0.1:2/metrics on there" in caplog.text
    assert key not in hosts.board_text()
    assert key not in repr(job_key.JobKey(key))
    assert (
        "is not set: the key of this job's daemons goes to its other hosts"
        in caplog.text
    )


def test_a_warden_waits_for_its_own_hosts_trainers_and_then_lingers(hosts):
    hosts.run(TWO)
    settings = sorted(hosts.warden_settings(), key=lambda s: len(s["trainers"]))
    assert [len(s["trainers"]) for s in settings] == [1, 2]
    assert {s["linger_seconds"] for s in settings} == {10.0}


def test_a_lingering_warden_keeps_its_daemons(tmp_path):
    settings = {
        "folder": str(tmp_path / "none"),
        "trainers": [],
        "linger_seconds": 1000,
    }
    argv = [sys.executable, "-I", "-S", warden.__file__, json.dumps(settings)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(argv, **pipes) as process:
        script = tmp_path / "daemon"
        script.write_text("#!/bin/sh\necho listening pid=$$; exec sleep 1000\n")
        script.chmod(0o755)
        daemon = [str(script)]
        key = job_key.JobKey("1" * 64).write(tmp_path)
        request = {"argv": daemon, "key_file": str(key), "log": str(tmp_path / "log")}
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.close()
        pid = int(json.loads(process.stdout.readline())["listening"]["pid"])
        with pytest.raises(subprocess.TimeoutExpired):  # It does not end by itself.
            process.wait(2)
        os.kill(pid, 0)
        process.terminate()


def test_two_jobs_have_two_keys(hosts):
    hosts.run(TWO)
    hosts.store = dist.HashStore()
    hosts.run(TWO)
    assert len(set(hosts.said("key"))) == 2


def test_sec_a_key_that_is_given_never_is_in_the_store(hosts, caplog, stored):
    key = bytes(range(32))
    shown = [key.hex(), base64.b64encode(key).decode(), f" {key.hex().upper()}\n"]
    assert all(isinstance(result, str) for result in hosts.run(TWO, shown))
    assert {text.strip() for text in hosts.said("key")} == {key.hex()}
    assert all(text not in "".join(stored) for text in shown)
    assert "goes to its other hosts" not in caplog.text


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        (["1" * 64, "", "2" * 64], "and another one here ("),
        (["1" * 64, "", ""], "at rank 0 and not set here"),
        (["", "", "1" * 64], "is not set at rank 0 and another one here"),
        (["1" * 63, "", ""], "is no job key; allowed are 64 hex digits"),
    ],
)
def test_keys_that_differ_or_are_none_are_the_same_error_everywhere(hosts, keys, what):
    for error in hosts.run(TWO, keys):
        assert isinstance(error, pactrain.InvalidArgument)
        assert what in str(error)
        assert all(key not in str(error) for key in keys if key)
    assert os.listdir(hosts.base["TMPDIR"]) == []


def test_sec_one_host_stays_on_loopback_with_a_key_that_never_is_in_the_store(
    hosts, stored
):
    hosts.pretended = "here"  # Two nodes of one host.
    assert all(isinstance(r, str) for r in hosts.run([("a", ""), ("b", "")]))
    (key,) = {key.strip() for key in hosts.said("key")}
    assert len(key) == 64
    assert len(hosts.said("key")) == 3
    assert key not in "".join(stored)
    assert any("--listen=127.0.0.1:0" in command for command in hosts.said("command"))
    assert [s["linger_seconds"] for s in hosts.warden_settings()] == [0, 0]


def test_sec_a_key_file_of_another_owner_or_kind_is_not_taken(tmp_path):
    link, pipe, other = tmp_path / "link", tmp_path / "pipe", tmp_path / "other"
    link.symlink_to(job_key.JobKey("1" * 64).write(tmp_path))
    os.mkfifo(pipe)
    other.write_text("2" * 64)
    for path in (link, pipe, other):
        note = job_key.JobKey("1" * 64).note(path, "here", through_store=False)
        with pytest.raises(pactrain.PacTrainError):
            job_key.told_key(note, "here", {})


def test_a_host_without_an_address_is_the_same_error_everywhere(hosts):
    errors = hosts.run([("here", ""), ("there", "")])
    for error in errors:
        assert isinstance(error, pactrain.AgentUnresponsiveError)
        assert "The ranks are on 2 hosts" in str(error)
        assert "Set PACTRAIN_HOST_ADDRESS" in str(error)
    assert os.listdir(hosts.base["TMPDIR"]) == []


def test_rank_0_takes_the_interface_towards_another_host(hosts, monkeypatch):
    towards = {"localhost": "", "127.0.0.3": "127.0.0.9"}
    monkeypatch.setattr(host_address, "address_towards", towards.get)
    monkeypatch.setattr(embedded, "address_towards", towards.get)
    hosts.run([("here", ""), ("there", "127.0.0.3")])
    assert any("--listen=127.0.0.9:0" in command for command in hosts.said("command"))


def test_a_wrong_address_of_one_host_is_said_on_all(hosts):
    for error in hosts.run([("here", "127.0.0.2"), ("there", "eth0")]):
        assert isinstance(error, pactrain.InvalidArgument)
        assert "PACTRAIN_HOST_ADDRESS is 'eth0'; allowed is the IP address" in str(
            error
        )


def test_loopback_is_no_address_for_other_hosts():
    assert host_address.address_towards("localhost") == ""
    assert host_address.address_towards("no such host") == ""
    assert host_address.own_address({}) == ""


def test_ipv6_addresses_are_in_brackets():
    assert host_address.any_port("fd00::1") == "[fd00::1]:0"
    assert host_address.own_address({"PACTRAIN_HOST_ADDRESS": "FD00::1"}) == "fd00::1"
