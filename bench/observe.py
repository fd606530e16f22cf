"""make observe-check: a job on three sites under a real Prometheus and Alertmanager.

Uses what deploy/ ships: rules, alerts, routes and dashboards. Only all windows are SPEED
times as short. For each alert its fault is staged, one after the other: it has to reach
whom Alertmanager tells, and no other may. Then every panel's expressions are run over the
whole time, and drawn (one picture per dashboard, --pictures FOLDER). The last line is JSON.
Exit status 1: an alert did not fire in 60 s, one fired that is of no fault, a panel is
empty, or a check of the coordinator's page failed (bench/page.py).
"""

from __future__ import annotations

import argparse
import json
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.cluster import certificates, start_cluster
from bench.observe_faults import FAULTS, JOB, Fault, Stage
from bench.observe_job import Relays, give, start_job, three_sites
from bench.observe_servers import (
    DEPLOY,
    SHORTEST_RANGE,
    Alertmanager,
    Notices,
    Prometheus,
    wait_until,
)
from bench.page import PageOutcome, Place, check_page, wait_for_job
from bench.processes import Children, ProcessError, interrupt_on_signals

CALM_SECONDS = 25
ALERT_SECONDS = 60.0
UNITS = {"Bps": ", bytes/s", "bytes": ", bytes", "s": ", s"}  # Of pictures, by Grafana's names.


@dataclass
class Outcome:
    alerts: int
    took: dict[str, float] = field(default_factory=dict)  # Seconds to fire, by alert.
    staged: list[str] = field(default_factory=list)
    false_alarms: set[str] = field(default_factory=set)
    panels: int = 0
    empty: list[str] = field(default_factory=list)
    page: PageOutcome = field(default_factory=PageOutcome)

    @property
    def not_fired(self) -> list[str]:
        return [alert for alert in self.staged if alert not in self.took]

    def wrong(self) -> list[str]:
        """In words, what is not as it should be."""
        return [
            *(f"{alert}: staged, did not fire" for alert in self.not_fired),
            *(f"{alert}: fired without its fault" for alert in sorted(self.false_alarms)),
            *(f"panel {panel}: empty" for panel in self.empty),
            *(f"page: {line}" for line in self.page.failed + self.page.axe),
        ]

    def line(self) -> str:
        return json.dumps({
            "alerts": self.alerts,
            "fired": len(self.took),
            "false_alarms": len(self.false_alarms),
            "slowest_alert_s": round(max(self.took.values(), default=0), 1),
            "panels": self.panels,
            "empty_panels": len(self.empty),
            "page_checks": self.page.checks,
            "axe_violations": len(self.page.axe),
            "wrong": self.wrong(),
        })  # fmt: skip


def expect(fault: Fault, stage: Stage, notices: Notices, outcome: Outcome) -> None:
    """Stages it and waits until somebody is told."""
    outcome.staged.append(fault.alert)
    try:  # An earlier fault's alert may be on for a while.
        wait_until(lambda: fault.alert not in notices.active(), "its end", ALERT_SECONDS)
    except ProcessError:
        print(f"  {fault.alert}: is on before its fault", flush=True)
        outcome.false_alarms.add(fault.alert)
    with fault.begin(stage):
        try:
            took = wait_until(lambda: fault.alert in notices.active(), fault.alert, ALERT_SECONDS)
        except ProcessError:
            print(f"  {fault.alert}: did not fire in {ALERT_SECONDS:.0f} s", flush=True)
            return
    outcome.took[fault.alert] = took
    print(f"  {fault.alert}: fired after {took:.0f} s", flush=True)


def go_through(
    faults: Sequence[Fault], stage: Stage, notices: Notices, trainers: Children, outcome: Outcome
) -> None:
    time.sleep(CALM_SECONDS)
    outcome.false_alarms |= set(notices.take_begun())
    print(f"  calm for {CALM_SECONDS} s: {sorted(outcome.false_alarms) or 'nothing fires'}")
    allowed: set[str] = set()
    for fault in faults:
        before, allowed = allowed, {fault.alert, *fault.also}
        expect(fault, stage, notices, outcome)
        trainers.check()
        # What follows from the fault before may come as late as now.
        stray = set(notices.take_begun()) - allowed - before
        if stray:
            print(f"  {sorted(stray)}: fired too", flush=True)
        outcome.false_alarms |= stray


def look_at_panels(prometheus: Prometheus, outcome: Outcome, pictures: Path | None) -> None:
    until = time.time()
    for path in sorted((DEPLOY / "grafana" / "dashboards").glob("*.json")):
        board = json.loads(path.read_text())
        drawn = []
        for panel in board["panels"]:
            lines = []
            for target in panel["targets"]:
                expr = target["expr"].replace("$training_job", JOB)
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


@contextmanager
def observed(folder: Path, notices: Notices) -> Iterator[tuple[Stage, Children]]:
    """The job under a Prometheus and an Alertmanager that tells `notices`; and its trainers."""
    token, pki = folder / "token", folder / "pki"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    with (
        three_sites() as bed,
        Relays() as relays,
        Children(folder) as daemons,
        Children(folder) as trainers,
        Children(folder) as extras,
    ):
        certificates(bed, pki)
        # A bound that a coarse codec is above.
        cluster = start_cluster(bed, daemons, folder, bed.hosts[0], risk="0.01", pki=pki,
                                metrics_token=token, relayed=relays.before, page=True)  # fmt: skip
        alertmanager = Alertmanager(daemons, folder, notices)
        prometheus = Prometheus(daemons, folder, cluster.metrics, alertmanager, token,
                                pki / "ca.pem", f"https://{cluster.page}/#/warnings/")  # fmt: skip
        stage = Stage(bed, cluster, daemons, extras, folder, pki, token, relays, prometheus)
        start_job(bed, trainers, JOB, stage.orders, cluster).wait_for("start", 120)
        yield stage, trainers
        give(stage.orders, "end")
        trainers.wait(60)


def check(pictures: Path | None, faults: Sequence[Fault]) -> Outcome:
    names = re.findall(r"alert: (\w+)", (DEPLOY / "prometheus" / "alerts.yml").read_text())
    outcome = Outcome(len(names))
    with (
        tempfile.TemporaryDirectory(prefix="pactrain-observe-") as name,
        Notices() as notices,
        observed(Path(name), notices) as (stage, trainers),
    ):
        go_through(faults, stage, notices, trainers, outcome)
        wait_until(lambda: stage.prometheus.holds("min(up) == 1"), "all daemons to be scraped")
        look_at_panels(stage.prometheus, outcome, pictures)
        assert stage.cluster.page is not None
        place = Place(stage.cluster.page, stage.token.read_text())
        wait_for_job(place, JOB)
        outcome.page = check_page(place, JOB, pictures, notices.runbooks())
    return outcome


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.observe")
    parser.add_argument("--pictures", type=Path)
    alerts = [fault.alert for fault in FAULTS]
    parser.add_argument("--only", nargs="+", choices=alerts, default=alerts, metavar="ALERT")
    options = parser.parse_args(argv)
    interrupt_on_signals()
    for program in ("prometheus", "prometheus-alertmanager"):
        subprocess.run([program, "--version"], capture_output=True, check=True)
    outcome = check(options.pictures, [f for f in FAULTS if f.alert in options.only])
    print(outcome.line())
    return 1 if outcome.wrong() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
