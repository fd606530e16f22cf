"""The Debian package: installed, started, stopped and removed under a real systemd."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import systemd_root
from conftest import the_one

ROOT = Path(__file__).resolve().parent.parent.parent
UNITS = ("pactrain-coordinator", "pactrain-agent")
FILES = ("/usr/bin/pactrain-agent", "/usr/lib/systemd/system/pactrain-agent.service")
# Asks the agent's socket as its trainers do, and says who is refused.
ASK = """
import socket
link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
link.connect("/run/pactrain/agent.sock")
link.send(b"x" * 8)
print(link.recv(4096))
"""

pytestmark = pytest.mark.skipif(
    systemd_root.why_none() is not None, reason=str(systemd_root.why_none())
)


@pytest.fixture(scope="module")
def system() -> Iterator[systemd_root.SystemdRoot]:
    """With the package installed, and nothing of it started."""
    (ROOT / ".cache/dist").mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=ROOT / ".cache/dist") as folder,
        systemd_root.booted(Path(folder) / "root") as root,
    ):
        shutil.copy(the_one("*.deb"), root.folder / "opt/pactrain.deb")
        (root.folder / "opt/ask.py").write_text(ASK)
        root.run("dpkg --install /opt/pactrain.deb")
        yield root


def show(system: systemd_root.SystemdRoot, unit: str, what: str) -> str:
    return system.run(f"systemctl show --value --property {what} {unit}").strip()


def give_key(system: systemd_root.SystemdRoot) -> None:
    """As docs/deployment.md says."""
    system.run(
        "pactrain-admin new-key /etc/pactrain/job.key && "
        "chgrp pactrain-daemons /etc/pactrain/job.key && chmod 640 /etc/pactrain/job.key && "
        "sed -i 's/^#job-key-file/job-key-file/' /etc/pactrain/*.yaml"
    )


def wait_for_change(system: systemd_root.SystemdRoot, unit: str, what: str) -> None:
    ask = f"systemctl show --value --property {what} {unit}"
    system.run(f"was=$({ask}); until [ $({ask}) != $was ]; do :; done")


def test_installing_starts_nothing_and_makes_users_and_folders(system) -> None:
    for unit in UNITS:
        assert show(system, unit, "ActiveState") == "inactive"
        # But for the key that only an operator can give, all in the shipped settings is good.
        settings = f"/etc/pactrain/{unit.removeprefix('pactrain-')}.yaml"
        system.run(f"{unit} --config {settings} --insecure-local --print-config")
    assert system.run("stat -c '%a %U %G' /run/pactrain").split() == [
        *("750", "pactrain-agent", "pactrain")
    ]
    assert system.run("stat -c '%a %U' /var/lib/pactrain").split() == [
        *("700", "pactrain-coordinator")
    ]
    assert "pactrain" in system.run("id -nG pactrain-agent").split()
    pages = "man1/pactrain-admin.1 man8/pactrain-coordinator.8 man8/pactrain-agent.8"
    system.run(f"cd /usr/share/man && for page in {pages}; do zcat $page.gz | grep -q '^.TH'; done")
    system.run("/usr/share/doc/pactrain/tools/certs --help")
    completed = (
        ". /usr/share/bash-completion/completions/pactrain-admin; COMP_CWORD=1; "
        "COMP_WORDS=(pactrain-admin dra); _pactrain_admin; echo ${COMPREPLY[@]}"
    )
    assert system.run(f"bash -c '{completed}'").split() == ["drain"]


def test_without_a_key_they_say_once_what_to_give(system) -> None:
    for unit in UNITS:
        status, _ = system.try_to_run(f"systemctl start {unit}")
        assert status != 0
        assert show(system, unit, "NRestarts") == "0"
        assert "job-key-file" in system.run(f"journalctl --no-pager -u {unit}")


def test_systemd_starts_them_when_they_are_ready_and_watches_them(system) -> None:
    give_key(system)
    for unit in UNITS:
        system.run(f"systemctl start {unit}")
        assert show(system, unit, "ActiveState") == "active"
        assert show(system, unit, "Type") == "notify"
        assert show(system, unit, "User") == unit
        assert show(system, unit, "WatchdogUSec") == "2min"
        process = show(system, unit, "MainPID")
        assert "\nNoNewPrivs:\t1\n" in system.run(f"cat /proc/{process}/status")
        assert "\nCapBnd:\t0000000000000000\n" in system.run(f"cat /proc/{process}/status")
    listed = system.run("ls -l /run/pactrain /var/lib/pactrain")
    assert "agent.sock" in listed and "journal.db" in listed
    assert show(system, "pactrain-agent", "LimitNICE") == "30"  # 20 - (-10).
    # Ahead of busy trainers, where this machine lets systemd allow it (CAP_SYS_RESOURCE).
    agent = show(system, "pactrain-agent", "MainPID")
    allowed = system.run(f"sed -n 's/^Max nice priority *//p' /proc/{agent}/limits").split()[0]
    nice = system.run(f"cat /proc/{agent}/stat").rpartition(")")[2].split()[16]
    # Of what this test itself runs at: systemd and all below it have that from here.
    assert int(nice) == os.nice(0) - (10 if allowed == "30" else 0)
    assert "connected to the coordinator" in system.run("journalctl --no-pager -u pactrain-agent")
    assert "1 connected" in system.run(
        "PACTRAIN_ADMIN_JOB_KEY_FILE=/etc/pactrain/job.key pactrain-admin doctor || true"
    )


def test_a_backup_is_restored_by_what_the_page_says(system) -> None:
    page = (ROOT / "docs/upkeep.md").read_text().split("## Restore a backup")[1]
    commands = page.split("```sh\n")[1].split("```")[0]
    admin = "PACTRAIN_ADMIN_JOB_KEY_FILE=/etc/pactrain/job.key pactrain-admin"
    system.run(
        f"{admin} backup first; systemctl stop pactrain-coordinator; "
        "mv /var/lib/pactrain/backups/first /root/2026-01-31"
    )
    system.run(f"cd /root; {commands}")
    system.run(f"until {admin} agents | grep -q connected; do :; done")
    assert "state restored" in system.run(f"{admin} audit")


def test_the_trainers_group_may_use_the_socket_and_nobody_else(system) -> None:
    system.run("useradd --no-create-home --groups pactrain ana; useradd --no-create-home bob")
    asked = system.run("setpriv --reuid ana --regid ana --init-groups python3 /opt/ask.py")
    assert "did not understand its trainer" in asked
    status, asked = system.try_to_run(
        "setpriv --reuid bob --regid bob --init-groups python3 /opt/ask.py"
    )
    assert status != 0 and "PermissionError" in asked


def test_one_that_hangs_is_started_again(system) -> None:
    """With a shorter watchdog than ours; a process that is stopped tells nothing.

    Not too short: on a busy machine one that lives is late by seconds, too.
    """
    unit = "pactrain-agent"
    system.run(
        f"mkdir -p /run/systemd/system/{unit}.service.d; "
        f"printf '[Service]\\nWatchdogSec=10s\\nTimeoutAbortSec=1s\\nRestartSec=0\\n' "
        f">/run/systemd/system/{unit}.service.d/short.conf; "
        f"systemctl daemon-reload; systemctl restart {unit}"
    )
    process = show(system, unit, "MainPID")
    # It says that it lives, and so goes on.
    for _ in range(3):
        wait_for_change(system, unit, "WatchdogTimestampMonotonic")
    assert show(system, unit, "MainPID") == process
    system.run(f"kill -STOP {process}")
    wait_for_change(system, unit, "MainPID")
    assert "watchdog" in system.run(f"journalctl --no-pager -u {unit}").lower()


@pytest.mark.parametrize("unit", UNITS)
def test_settings_are_read_again_while_it_runs(system, unit) -> None:
    file = f"/etc/pactrain/{unit.removeprefix('pactrain-')}.yaml"
    process = show(system, unit, "MainPID")
    system.run(f"cp {file} /tmp/kept; echo 'log-level: debug' >>{file}; systemctl reload {unit}")
    end = "until journalctl --no-pager -u {} | grep -q 'settings were read again'; do :; done"
    system.run(end.format(unit))
    system.run(f"echo 'lisen: x' >>{file}")
    status, _ = system.try_to_run(f"systemctl reload {unit}")
    assert status != 0
    assert "unknown key 'lisen'" in system.run(f"journalctl --no-pager -u {unit}")
    system.run(f"cp /tmp/kept {file}; systemctl reload {unit}")
    assert show(system, unit, "MainPID") == process
    assert show(system, unit, "ActiveState") == "active"


def test_a_mistake_in_the_settings_is_said_once(system) -> None:
    file = "/etc/pactrain/coordinator.yaml"
    system.run(f"cp {file} /tmp/kept; echo 'lisen: x' >>{file}")
    status, _ = system.try_to_run("systemctl restart pactrain-coordinator")
    assert status != 0
    assert show(system, "pactrain-coordinator", "NRestarts") == "0"
    said = system.run("journalctl --no-pager -u pactrain-coordinator")
    assert "unknown key 'lisen'; did you mean listen?" in said
    system.run(f"cp /tmp/kept {file}; systemctl start pactrain-coordinator")


def test_removing_it_stops_it_and_leaves_what_is_the_operators(system) -> None:
    system.run("dpkg --remove pactrain")
    for unit in UNITS:
        assert show(system, unit, "LoadState") == "not-found"
    assert "pactrain" not in system.run("cat /proc/[0-9]*/comm")
    for file in FILES:
        assert not (system.folder / file[1:]).exists()
    kept = system.run("ls /etc/pactrain /var/lib/pactrain").split()
    assert {"agent.yaml", "coordinator.yaml", "journal.db"} <= set(kept)
    system.run("dpkg --purge pactrain")
    assert "agent.yaml" not in system.run("ls /etc/pactrain || true")
