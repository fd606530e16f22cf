"""What `make observe-check` makes of the shipped files; the check itself runs at night."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import threading
import urllib.request
from pathlib import Path

import pytest
import yaml

from bench.observe import Outcome, draw, legend
from bench.observe_cost import Cost
from bench.observe_faults import FAULTS, issue_ending
from bench.observe_servers import DEPLOY, SHIPPED, Notices, faster
from bench.page_viewers import views
from bench.slow_relay import Rates, SlowRelay
from bench.testbed import run

TOOLS = Path(__file__).resolve().parent.parent / "tools"


def test_windows_are_divided_by_one_factor() -> None:
    assert faster("increase(a[1h]) > 6\n  for: 15m") == "increase(a[30s]) > 6\n  for: 8s"
    assert faster("group_wait: 30s, repeat_interval: 4h") == "group_wait: 1s, repeat_interval: 120s"


def test_a_rate_keeps_enough_scrapes() -> None:
    assert faster("rate(a[5m]) # for: 0m") == "rate(a[8s]) # for: 0s"


def test_what_comes_out_is_still_good(tmp_path: Path) -> None:
    for name in ("rules.yml", "alerts.yml"):
        (tmp_path / name).write_text(faster((DEPLOY / "prometheus" / name).read_text()))
        subprocess.run(["promtool", "check", "rules", str(tmp_path / name)], check=True)


def test_each_alert_has_its_fault() -> None:
    named = re.findall(r"alert: (\w+)", (SHIPPED / "alerts.yml").read_text())
    assert sorted(fault.alert for fault in FAULTS) == sorted(named)
    assert {name for fault in FAULTS for name in fault.also} <= set(named)


def test_the_shipped_routes_are_those_that_are_tried() -> None:
    settings = yaml.safe_load(faster((SHIPPED / "alertmanager.yml").read_text()))
    assert settings["route"]["group_wait"] == "1s"
    assert [receiver["name"] for receiver in settings["receivers"]] == ["operators"]


def test_the_last_line_says_what_fired_and_what_is_empty() -> None:
    outcome = Outcome(4, {"A": 1.26, "B": 2.0}, ["A", "B", "C"], {"D"}, 9, ["job: Mode"])
    assert outcome.line() == (
        '{"alerts": 4, "fired": 2, "false_alarms": 1, "slowest_alert_s": 2.0, "panels": 9, '
        '"empty_panels": 1, "page_checks": 0, "axe_violations": 0, "wrong": '
        '["C: staged, did not fire", "D: fired without its fault", "panel job: Mode: empty"]}'
    )


@pytest.mark.parametrize("bad", ["took", "false_alarms", "empty"])
def test_nothing_may_be_missing(bad: str) -> None:
    outcome = Outcome(1, {"A": 1}, ["A"])
    assert outcome.wrong() == []
    setattr(outcome, bad, {} if bad == "took" else ["B"])
    assert len(outcome.wrong()) == 1


@pytest.mark.parametrize("bad", ["failed", "axe"])
def test_nothing_may_be_missing_on_the_page(bad: str) -> None:
    outcome = Outcome(1, {"A": 1}, ["A"])
    setattr(outcome.page, bad, ["jobs: something"])
    assert outcome.wrong() == ["page: jobs: something"]


def post(url: str, *alerts: tuple[str, str]) -> None:
    """Each a name, maybe with the number of its series ("A/2"), and a status."""
    body = {
        "alerts": [
            {
                "status": status,
                "labels": {"alertname": name.split("/")[0]},
                "annotations": {"runbook_url": f"http://page/{name}"},
                "fingerprint": name,
            }
            for name, status in alerts
        ]
    }
    urllib.request.urlopen(url, data=json.dumps(body).encode(), timeout=10)


def test_an_alert_begins_once_until_it_is_over() -> None:
    with Notices() as notices:
        post(notices.url, ("A", "firing"), ("B", "firing"), ("A/2", "firing"))
        post(notices.url, ("A", "resolved"), ("A/2", "firing"), ("B", "resolved"))
        assert notices.active() == {"A"}
        assert notices.take_begun() == ["A", "B"]
        post(notices.url, ("B", "firing"), ("A", "firing"))
        assert notices.take_begun() == ["B"]
        assert notices.runbooks() == {"A": "http://page/A", "B": "http://page/B"}


def test_a_relay_is_slow_one_way() -> None:
    with socket.create_server(("127.0.0.1", 0)) as target:
        relay = SlowRelay(f"127.0.0.1:{target.getsockname()[1]}")
        relay.limit(Rates(to_target=1_000_000))
        assert relay.pause("to_target", 500_000, now=0) == 0.5
        assert relay.pause("to_target", 500_000, now=0.25) == 0.75
        assert relay.pause("from_target", 500_000, now=0) == 0
        host, port = relay.address.split(":")
        near = socket.create_connection((host, int(port)))
        far, _ = target.accept()
        with near, far:
            sent = bytes(200_000)
            threading.Thread(target=near.sendall, args=(sent,), daemon=True).start()
            assert read(far, len(sent)) == sent
            threading.Thread(target=far.sendall, args=(sent,), daemon=True).start()
            assert read(near, len(sent)) == sent
        relay.close()


def read(end: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (piece := end.recv(size - len(data))):
        data += piece
    return data


def test_a_certificate_of_the_ca_ends_tomorrow(tmp_path: Path) -> None:
    run(str(TOOLS / "certs"), str(tmp_path), "--agent", "c0")
    new = issue_ending(tmp_path, "agent-c0")
    run("openssl", "verify", "-CAfile", str(tmp_path / "ca.pem"), str(new))
    named = run("openssl", "x509", "-noout", "-ext", "subjectAltName", "-in", str(new))
    assert "URI:spiffe://pactrain/agent/c0" in named
    in_two_days = ["openssl", "x509", "-noout", "-checkend", "172800", "-in", str(new)]
    assert subprocess.run(in_two_days, capture_output=True).returncode == 1


def test_a_legend_names_the_labels() -> None:
    assert legend("{{site}} to {{peer_site}}", {"site": "a", "peer_site": "b"}) == "a to b"


def test_a_picture_is_drawn_of_an_empty_panel_too(tmp_path: Path) -> None:
    panel = {"title": "t", "fieldConfig": {"defaults": {"unit": "s"}}}
    draw("board", [(panel, [("a", [[1, "2"], [2, "3"]])]), (panel, [])], 0, tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("ratios", "mib", "good"),
    [([1.3, 1.0, 1.005], 64.0, True), ([1.02, 1.0, 1.011], 10.0, False), ([1.0], 64.1, False)],
)
def test_a_hundredth_of_a_step_and_64_mib_are_allowed(
    ratios: list[float], mib: float, good: bool
) -> None:
    cost = Cost(200, [0.05] * len(ratios), ratios, mib)
    assert cost.good == good
    assert json.loads(cost.line())["ratio"] == sorted(ratios)[len(ratios) // 2]


def test_who_watches_looks_at_all_there_is() -> None:
    assert views("a b") == ["view=overview", "view=job&job=a%20b", "view=links"]
