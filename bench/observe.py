"""make observe-check: a job on three sites under a real Prometheus, with staged faults.

Uses what deploy/ ships: rules, alerts and dashboards. Only all windows are SPEED times as short.
Faults are staged one after the other; each alert that a fault is for has to fire, and no other.
Then every panel's expressions are run over the whole time, and drawn (one picture per dashboard,
--pictures FOLDER). The last line is JSON. Exit status 1: an alert did not fire in 60 s, one fired
that is of no fault, or a panel is empty.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.cluster import Cluster, free_port, start_cluster
from bench.launch import start_trainers
from bench.processes import Child, Children, ProcessError, interrupt_on_signals
from bench.testbed import Link, LoopbackTestbed

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
SPEED = 60
SHORTEST_RANGE = 8  # Seconds: a rate needs some scrapes.
SITES = {"a": 2, "b": 1, "c": 1}
LINKS = [Link("a", "b", 100), Link("b", "c", 100)]
CALM_SECONDS = 25
ALERT_SECONDS = 60.0
UNITS = {"Bps": ", bytes/s", "bytes": ", bytes", "s": ", s"}  # Of pictures, by Grafana's names.
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# What a fault may also set off: masks that move are refused and fall back, and nothing that is
# measured while a process stands still is to be relied on.
ALSO = frozenset({"PactrainFallbacks", "PactrainRiskAboveBound", "PactrainSlowerThanFull"})


def faster(text: str) -> str:
    """Rules or alerts with all windows divided by SPEED."""

    def shorter(match: re.Match[str]) -> str:
        seconds = int(match[2]) * SECONDS[match[3]] / SPEED
        least = SHORTEST_RANGE if match[1] == "[" else 0
        return f"{match[1]}{max(least, round(seconds))}s"

    return re.sub(r"(\[|for: )(\d+)([smhd])", shorter, text)


class Prometheus:
    """A real one, with the shipped files; asks and answers over HTTP."""

    def __init__(self, children: Children, folder: Path, coordinator: str) -> None:
        for name in ("rules.yml", "alerts.yml"):
            (folder / name).write_text(faster((DEPLOY / "prometheus" / name).read_text()))
        config = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
        config = config.replace("127.0.0.1:7071", coordinator)
        config = re.sub(r"_interval: \d+s", "_interval: 1s", config)
        (folder / "prometheus.yml").write_text(config)
        self.address = f"127.0.0.1:{free_port('127.0.0.1')}"
        argv = ["prometheus", f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'tsdb'}", "--log.level=warn",
                f"--web.listen-address={self.address}"]  # fmt: skip
        self.child = children.start("prometheus", argv, {})
        self.started = time.time()
        wait_until(self._ready, "Prometheus to be ready")

    def _ready(self) -> bool:
        if self.child.process.poll() is not None:
            raise self.child.error("ended")
        try:
            urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=2)
        except OSError:
            return False
        return True

    def ask(self, what: str, **parameters: str) -> Any:
        url = f"http://{self.address}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]

    def firing(self) -> set[str]:
        alerts = self.ask("alerts")["alerts"]
        return {a["labels"]["alertname"] for a in alerts if a["state"] == "firing"}

    def series(self, expr: str, until: float) -> list[dict[str, Any]]:
        """All that the expression had since the start, one value a second."""
        since, until_text = f"{self.started:.0f}", f"{until:.0f}"
        found = self.ask("query_range", query=expr, start=since, end=until_text, step="1")
        result: list[dict[str, Any]] = found["result"]
        return result


def wait_until(true: Any, what: str, seconds: float = 60.0) -> float:
    """How long it took; ProcessError: it did not come about."""
    begin = time.monotonic()
    while not true():
        if time.monotonic() - begin > seconds:
            raise ProcessError(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(0.5)
    return time.monotonic() - begin


@dataclass
class Outcome:
    alerts: int
    took: dict[str, float] = field(default_factory=dict)  # Seconds to fire, by alert.
    staged: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)  # Alerts that fired at some time.
    false_alarms: set[str] = field(default_factory=set)  # Before the first fault.
    panels: int = 0
    empty: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.not_fired and not self.all_false_alarms and not self.empty

    @property
    def not_fired(self) -> list[str]:
        return [alert for alert in self.staged if alert not in self.took]

    @property
    def all_false_alarms(self) -> set[str]:
        return self.false_alarms | (self.seen - set(self.staged) - ALSO)

    def line(self) -> str:
        return json.dumps({
            "alerts": self.alerts,
            "staged": len(self.staged),
            "fired": len(self.took),
            "not_fired": self.not_fired,
            "false_alarms": sorted(self.all_false_alarms),
            "slowest_alert_s": round(max(self.took.values(), default=0), 1),
            "panels": self.panels,
            "empty_panels": self.empty,
        })  # fmt: skip


def give(orders: Path, order: str) -> None:
    """At once: a trainer may be reading."""
    beside = orders.with_suffix(".new")
    beside.write_text(order)
    beside.replace(orders)


@contextmanager
def ordered(orders: Path, order: str) -> Iterator[None]:
    give(orders, order)
    yield
    give(orders, "train")


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def expect(prometheus: Prometheus, alert: str, outcome: Outcome, trainers: Children) -> None:
    def fires() -> bool:
        trainers.check()
        firing = prometheus.firing()
        outcome.seen |= firing
        return alert in firing

    outcome.staged.append(alert)
    try:
        outcome.took[alert] = wait_until(fires, alert, ALERT_SECONDS)
    except ProcessError:
        print(f"  {alert}: did not fire in {ALERT_SECONDS:.0f} s", flush=True)
        return
    print(f"  {alert}: fired after {outcome.took[alert]:.0f} s", flush=True)


def stage(
    prometheus: Prometheus,
    cluster: Cluster,
    orders: Path,
    outcome: Outcome,
    coordinator: Child,
    trainers: Children,
) -> None:
    time.sleep(CALM_SECONDS)
    outcome.false_alarms = prometheus.firing()
    print(f"  calm for {CALM_SECONDS} s: {sorted(outcome.false_alarms) or 'nothing fires'}")
    with ordered(orders, "norm"):
        expect(prometheus, "PactrainNormAlarm", outcome, trainers)
    with ordered(orders, "straggle"):
        expect(prometheus, "PactrainStraggler", outcome, trainers)
    with ordered(orders, "masks"):
        expect(prometheus, "PactrainMaskChurn", outcome, trainers)
    with stopped(cluster.agents[-1].pid):
        expect(prometheus, "PactrainAgentLost", outcome, trainers)
    with stopped(coordinator.process.pid):
        expect(prometheus, "PactrainCoordinatorLost", outcome, trainers)
    time.sleep(5)


def look_at_panels(prometheus: Prometheus, outcome: Outcome, pictures: Path | None) -> None:
    until = time.time()
    for path in sorted((DEPLOY / "grafana" / "dashboards").glob("*.json")):
        board = json.loads(path.read_text())
        drawn = []
        for panel in board["panels"]:
            lines = []
            for target in panel["targets"]:
                expr = target["expr"].replace("$training_job", ".*")
                expr = expr.replace("$__rate_interval", f"{SHORTEST_RANGE}s")
                for series in prometheus.series(expr, until):
                    lines.append(
                        (legend(target["legendFormat"], series["metric"]), series["values"])
                    )
            outcome.panels += 1
            if not lines:
                outcome.empty.append(f"{path.stem}: {panel['title']}")
            drawn.append((panel, lines))
        if pictures is not None:
            draw(board["title"], drawn, prometheus.started, pictures / f"dashboard-{path.stem}.png")


def legend(template: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), template)


def draw(
    title: str, panels: list[tuple[dict[str, Any], list[Any]]], begin: float, path: Path
) -> None:
    """What Grafana would show, near enough to look at: one small plot for each panel."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    rows = (len(panels) + 2) // 3
    figure, places = pyplot.subplots(rows, 3, figsize=(15, 2.7 * rows), squeeze=False)
    figure.suptitle(title)
    for place in places.flat[len(panels) :]:
        place.set_axis_off()
    for place, (panel, lines) in zip(places.flat, panels, strict=False):
        unit = panel["fieldConfig"]["defaults"]["unit"]
        place.set_title(panel["title"] + UNITS.get(unit, ""), fontsize=9)
        place.tick_params(labelsize=7)
        place.grid(alpha=0.3)
        if unit == "percentunit":
            place.yaxis.set_major_formatter(ticker.PercentFormatter(1))
        elif unit != "short":
            place.yaxis.set_major_formatter(ticker.EngFormatter())
        for name, values in lines[:12]:
            place.plot([t - begin for t, _ in values], [float(v) for _, v in values], label=name)
        if lines:
            place.legend(fontsize=6, loc="best")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=65)
    pyplot.close(figure)


def check(pictures: Path | None) -> Outcome:
    names = re.findall(r"alert: (\w+)", (DEPLOY / "prometheus" / "alerts.yml").read_text())
    outcome = Outcome(len(names))
    with (
        tempfile.TemporaryDirectory(prefix="pactrain-observe-") as name,
        LoopbackTestbed(SITES, LINKS) as bed,
        Children(Path(name)) as daemons,
        Children(Path(name)) as trainers,
    ):
        folder = Path(name)
        cluster = start_cluster(bed, daemons, folder, bed.hosts[0])
        prometheus = Prometheus(daemons, folder, cluster.metrics)
        orders = folder / "orders"
        give(orders, "train")
        argv = ["-m", "bench.observe_train", "--orders", str(orders)]
        first = start_trainers(bed, trainers, "observed", argv, [1] * 4, cluster)
        first.wait_for("start", 120)
        stage(prometheus, cluster, orders, outcome, daemons.named("coordinator"), trainers)
        look_at_panels(prometheus, outcome, pictures)
        give(orders, "end")
        trainers.wait(60)
    return outcome


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.observe")
    parser.add_argument("--pictures", type=Path)
    options = parser.parse_args(argv)
    interrupt_on_signals()
    subprocess.run(["prometheus", "--version"], capture_output=True, check=True)
    outcome = check(options.pictures)
    print(outcome.line())
    return 0 if outcome.good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
