"""Rules and alerts of deploy/prometheus as the Prometheus operator takes them.

tools/prometheus_rule.py   writes deploy/kubernetes/components/prometheus/rules.yaml
"""

from __future__ import annotations

from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "deploy/kubernetes/components/prometheus/rules.yaml"
SOURCES = ("rules.yml", "alerts.yml")


def text() -> str:
    groups = []
    for source in SOURCES:
        groups += yaml.safe_load((ROOT / "deploy/prometheus" / source).read_text())["groups"]
    resource = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "pactrain"},
        "spec": {"groups": groups},
    }
    head = "# Made by tools/prometheus_rule.py of deploy/prometheus: change it there.\n"
    return head + yaml.safe_dump(resource, sort_keys=False, width=100)


if __name__ == "__main__":
    TARGET.write_text(text())
