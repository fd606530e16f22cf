"""What `make observe-check` makes of the shipped files; the check itself runs at night."""

from __future__ import annotations

import subprocess
from pathlib import Path

from bench.observe import DEPLOY, Outcome, draw, faster, legend


def test_windows_are_divided_by_one_factor() -> None:
    assert faster("increase(a[1h]) > 6\n  for: 15m") == "increase(a[60s]) > 6\n  for: 15s"


def test_a_rate_keeps_enough_scrapes() -> None:
    assert faster("rate(a[5m]) # for: 0m") == "rate(a[8s]) # for: 0s"


def test_what_comes_out_is_still_good(tmp_path: Path) -> None:
    for name in ("rules.yml", "alerts.yml"):
        (tmp_path / name).write_text(faster((DEPLOY / "prometheus" / name).read_text()))
        subprocess.run(["promtool", "check", "rules", str(tmp_path / name)], check=True)


def test_the_last_line_says_what_fired_and_what_is_empty() -> None:
    outcome = Outcome(
        4, {"A": 1.26, "B": 2.0}, ["A", "B", "C"], {"A", "E"}, {"D"}, 9, ["job: Mode"]
    )
    assert outcome.line() == (
        '{"alerts": 4, "staged": 3, "fired": 2, "not_fired": ["C"], "false_alarms": ["D", "E"], '
        '"slowest_alert_s": 2.0, "panels": 9, "empty_panels": ["job: Mode"]}'
    )
    assert not outcome.good


def test_a_fault_may_set_off_what_follows_from_it() -> None:
    assert Outcome(1, {"A": 1}, ["A"], {"A", "PactrainFallbacks"}).good


def test_a_legend_names_the_labels() -> None:
    assert legend("{{site}} to {{peer_site}}", {"site": "a", "peer_site": "b"}) == "a to b"


def test_a_picture_is_drawn_of_an_empty_panel_too(tmp_path: Path) -> None:
    panel = {"title": "t", "fieldConfig": {"defaults": {"unit": "s"}}}
    draw("board", [(panel, [("a", [[1, "2"], [2, "3"]])]), (panel, [])], 0, tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 1000
