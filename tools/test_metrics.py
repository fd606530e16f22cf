"""Programs, docs, rules, alerts, runbooks and dashboards name the same things."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent))

import dashboards
import metrics
from pactrain.config import attach_timeout_from

DEPLOY = metrics.ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
RUNBOOKS = metrics.ROOT / "docs" / "runbooks.md"
PANELS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))


def rules_of(path: Path) -> list[dict[str, str]]:
    groups = yaml.safe_load(path.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> list[str]:
    rules = [rule["expr"] for path in (RULES, ALERTS) for rule in rules_of(path)]
    boards = [json.loads(path.read_text()) for path in PANELS]
    return rules + [t["expr"] for b in boards for p in b["panels"] for t in p["targets"]]


def test_the_docs_are_what_the_programs_list() -> None:
    assert metrics.DOCS.read_text() == metrics.page(), "run make build, then tools/metrics.py"


def test_rules_alerts_and_dashboards_name_metrics_that_exist() -> None:
    known = metrics.series_names(metrics.DOCS.read_text())
    recorded = {rule["record"] for rule in rules_of(RULES)}
    used: set[str] = set()
    for expr in expressions():
        for found in re.findall(r'\{__name__=~"([^"]+)"\}', expr):
            assert any(re.fullmatch(found, name) for name in known), found
        text = re.sub(r'"[^"]*"', '""', expr)
        used |= set(re.findall(r"\b(?:(?:\w+:)?pactrain|grpc_server)_\w+(?::\w+)?", text))
    assert used - known - recorded == set()
    assert len(used) > 30


def test_every_page_names_metrics_that_exist() -> None:
    known = metrics.series_names(metrics.DOCS.read_text())
    for path in [*(metrics.ROOT / "docs").glob("*.md"), metrics.ROOT / "README.md"]:
        named = set(re.findall(r"\bpactrain_(?:agent|coordinator)_\w+", path.read_text()))
        histograms = {name.removesuffix("_count") for name in known if name.endswith("_count")}
        assert named - known - histograms == set(), path


def test_every_alert_has_its_runbook_and_nothing_else_has() -> None:
    alerts = rules_of(ALERTS)
    for alert in alerts:
        name = alert["alert"]
        assert alert["annotations"]["runbook_url"].endswith(f"}}}}{name.lower()}"), name  # type: ignore[index]
        assert alert["labels"]["severity"] in ("critical", "warning", "info")  # type: ignore[index]
    text = RUNBOOKS.read_text()
    assert re.findall(r"^## (\w+)", text, re.MULTILINE) == [alert["alert"] for alert in alerts]
    for entry in text.split("\n## ")[1:]:
        for part in ("Symptom", "Causes", "Command", "Do", "It does not mean"):
            assert f"- **{part}**" in entry, entry.splitlines()[0]


@pytest.mark.parametrize(
    ("labels", "base"),
    [
        ({}, "http://127.0.0.1:7072/#/warnings/"),
        ({"pactrain_runbooks": "https://docs.example/r.html#"}, "https://docs.example/r.html#"),
    ],
)
def test_runbooks_have_an_address_that_can_be_opened(
    labels: dict[str, str], base: str, tmp_path: Path
) -> None:
    alert = next(rule for rule in rules_of(ALERTS) if rule["alert"] == "PactrainCoordinatorLost")
    alert["annotations"] = {"runbook_url": alert["annotations"]["runbook_url"]}  # type: ignore[assignment,index]
    (tmp_path / "rules.yml").write_text(
        yaml.safe_dump({"groups": [{"name": "g", "rules": [alert]}]})
    )
    fires = {
        "exp_labels": {"severity": "critical", "job": "pactrain-coordinator"},
        "exp_annotations": {"runbook_url": f"{base}pactraincoordinatorlost"},
    }
    case = {
        "external_labels": labels,
        "input_series": [{"series": 'up{job="pactrain-coordinator"}', "values": "0x9"}],
        "alert_rule_test": [
            {"eval_time": "5m", "alertname": alert["alert"], "exp_alerts": [fires]}
        ],
    }
    (tmp_path / "test.yml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yml"], "tests": [case]})
    )
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_job_that_waits_is_told_of_before_its_trainers_give_up() -> None:
    """Afterwards nobody waits, and there is nothing to tell of."""
    waits = next(rule for rule in rules_of(ALERTS) if rule["alert"] == "PactrainJobWaits")
    minutes = re.fullmatch(r"(\d+)m", waits["for"])
    assert minutes is not None
    assert int(minutes[1]) * 60 <= attach_timeout_from({}) / 2


def test_every_alert_is_tested_firing_and_not_firing() -> None:
    cases = yaml.safe_load((ALERTS.with_name("alerts_test.yml")).read_text())["tests"]
    assert [case["name"] for case in cases] == [rule["alert"] for rule in rules_of(ALERTS)]
    for case in cases:
        fires = [bool(check["exp_samples"]) for check in case["promql_expr_test"]]
        assert True in fires and False in fires, case["name"]


@pytest.mark.parametrize(
    "argv",
    [
        ("check", "config", "prometheus.yml"),
        ("test", "rules", "alerts_test.yml"),
    ],
)
def test_promtool_agrees(argv: tuple[str, ...]) -> None:
    done = subprocess.run(
        ["promtool", *argv], cwd=ALERTS.parent, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboards_are_what_the_generator_makes() -> None:
    assert dashboards.stale() == {}
    assert {path.name for path in PANELS} == {
        f"{board.uid.split('-')[1]}.json" for board in dashboards.DASHBOARDS
    }
