"""Writes deploy/grafana/dashboards/*.json, Grafana's Classic JSON, from the panels below.

tools/dashboards.py            writes them
tools/dashboards.py --check    says which are stale; exit status 1 if any is
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "deploy" / "grafana" / "dashboards"
WIDTH, PER_ROW, HEIGHT = 24, 3, 8
JOB = '{training_job=~"$training_job"}'


@dataclass(frozen=True)
class Panel:
    title: str
    unit: str  # As Grafana names it: Bps, s, percentunit, short.
    says: str  # What it shows, and what to do about it.
    queries: tuple[tuple[str, str], ...]  # PromQL and legend.
    kind: str = "timeseries"


@dataclass(frozen=True)
class Dashboard:
    uid: str
    title: str
    panels: tuple[Panel, ...]
    by_job: bool = False


def of_job(metric: str, more: str = "") -> str:
    return f'pactrain_coordinator_{metric}{{training_job=~"$training_job"{more}}}'


def rate(metric: str, more: str = "") -> str:
    return f"rate({of_job(metric, more)}[$__rate_interval])"


FLEET = Dashboard(
    "pactrain-fleet",
    "PacTrain: fleet",
    (
        Panel("Between sites against within sites", "Bps",
              "What all agents send. Only what goes between sites is compressed.",
              (("fleet:pactrain_inter_site_bytes:rate5m", "between sites"),
               ("fleet:pactrain_intra_site_bytes:rate5m", "within sites"))),
        Panel("Time in use between sites against within sites", "short",
              "Busy seconds in a second, of all connections together.",
              (("sum by (scope) (rate(pactrain_agent_peer_busy_seconds_total[$__rate_interval]))",
                "{{scope}}"),)),
        Panel("Between sites, by site", "Bps", "What the agents of each site send to others.",
              (("site:pactrain_inter_site_bytes:rate5m", "{{site}}"),)),
        Panel("Saved against FULL", "bytes",
              "What FULL would have sent between sites in fp32, less what was sent.",
              (("sum(pactrain_coordinator_saved_bytes)", "all jobs"),), "stat"),
        Panel("Jobs by state", "short", "A job that waits says for whom in pactrain-admin jobs.",
              (("pactrain_coordinator_jobs", "{{state}}"),)),
        Panel("Agents", "short", "By the state of their stream to the coordinator.",
              (("pactrain_coordinator_agents", "{{state}}"),)),
        Panel("Jobs by mode", "short", "COMPACTED: what masks keep; TERNARY: in few levels.",
              (("sum by (mode) (pactrain_coordinator_mode)", "{{mode}}"),)),
        Panel("Compression by job", "short", "Dense over wire, by job.",
              (("training_job:pactrain_compression:ratio5m", "{{training_job}}/{{model}}"),)),
        Panel("Steps per second", "short", "Committed steps, by job.",
              (("training_job:pactrain_steps:rate5m", "{{training_job}}/{{model}}"),)),
        Panel("Versions", "short", "Daemons by version; more than one is an upgrade under way.",
              (('count by (version) ({__name__=~"pactrain_(agent|coordinator)_build_info"})',
                "{{version}}"),), "stat"),
    ),
)  # fmt: skip

TRAINING = Dashboard(
    "pactrain-job",
    "PacTrain: job",
    (
        Panel("Mode", "short", "1 for the mode in force. The reason is in pactrain-admin job.",
              ((of_job("mode"), "{{mode}}"),)),
        Panel("Codec", "short", "1 for how an element is written between sites.",
              ((of_job("codec") + " > 0", "{{codec}}"),)),
        Panel("Share of time in each mode", "percentunit", "Of the time that a generation ran.",
              ((f"sum by (mode) ({rate('mode_seconds_total')})", "{{mode}}"),)),
        Panel("Bytes per second between sites", "Bps",
              "dense: as FULL; kept: under the masks; wire: as sent.",
              ((f"sum by (stage) ({rate('bytes_total')})", "{{stage}}"),)),
        Panel("Compression", "short", "Dense over wire.",
              ((f"training_job:pactrain_compression:ratio5m{JOB}", "{{model}}"),)),
        Panel("Kept by the masks", "percentunit", "Of all elements, by the newest equal votes.",
              ((of_job("masks_keep_ratio"), "{{model}}"),)),
        Panel("Saved bytes", "bytes", "Against FULL, since the coordinator's start.",
              ((of_job("saved_bytes"), "{{model}}"),), "stat"),
        Panel("Saved time", "s",
              "Against FULL (docs/monitoring.md); below 0: lost; 0: not known.",
              ((of_job("saved_seconds"), "{{model}}"),), "stat"),
        Panel("Votes for masks", "short", "Trainers; missing or against: the job stays in FULL.",
              ((of_job("mask_votes"), "{{vote}}"),)),
        Panel("Steps since the masks last changed", "short", "Of the agreed set.",
              ((of_job("mask_unchanged_steps"), "{{model}}"),)),
        Panel("Mask changes and fallbacks", "short", "Masks that move keep the job in FULL.",
              ((of_job("mask_changes_total"), "mask changes"),
               (of_job("fallbacks_total"), "{{from}} to {{to}}, {{cause}}"))),
        Panel("Step, by mode", "s", "From commit to commit, as last measured in each mode.",
              ((of_job("step_interval_seconds") + " > 0", "{{mode}}"),)),
        Panel("Step: predicted and measured", "s",
              "By bytes and link rates, and from commit to commit, in the mode in force.",
              ((f"{of_job('predicted_step_seconds')} > 0", "predicted {{mode}}"),
               (f"({of_job('step_interval_seconds')} and {of_job('mode')} == 1) > 0",
                "measured {{mode}}"))),
        Panel("Where a step's time goes", "s", "Mean of all agents.",
              (("sum by (phase) (rate(pactrain_agent_phase_seconds_sum"
                f"{JOB}[$__rate_interval])) / sum by (phase) (rate("
                f"pactrain_agent_phase_seconds_count{JOB}[$__rate_interval]))", "{{phase}}"),)),
        Panel("Computing, by agent", "s", "One that is far above the others is a straggler.",
              ((f"agent:pactrain_compute_seconds:mean10m{JOB}", "{{agent}}"),)),
        Panel("Risk r and its bound", "percentunit",
              "Share of the effective batch that quantising costs; drawn up to 100 %.",
              ((f"clamp_max({of_job('risk')}, 1)", "r"),
               ("pactrain_coordinator_risk_bound", "bound"))),
        Panel("Waiting for the exchange", "percentunit", "Share of a step.",
              ((of_job("exchange_share"), "{{model}}"),)),
        Panel("Failed attempts by cause", "short", "Of steps; most are made again.",
              ((f"sum by (cause) (increase({of_job('attempts_failed_total')}"
                "[$__rate_interval]))", "{{cause}}"),)),
    ),
    by_job=True,
)  # fmt: skip

LINKS = Dashboard(
    "pactrain-links",
    "PacTrain: links",
    (
        Panel("Rate while busy", "Bps", "Acknowledged bytes per busy second.",
              (("link:pactrain_goodput_bytes_per_second:max", "{{site}} to {{peer_site}}"),)),
        Panel("Share of the rate in use", "percentunit", "Of a day's best. 1: the bottleneck.",
              (("link:pactrain_use:ratio5m", "{{site}} to {{peer_site}}"),)),
        Panel("Round trip", "s", "The slowest of a pair of sites.",
              (("max by (site, peer_site) (pactrain_coordinator_link_rtt_seconds)",
                "{{site}} to {{peer_site}}"),)),
        Panel("Sent", "Bps", "Data plane, headers included.",
              (('sum by (site, peer_site) (rate(pactrain_agent_peer_bytes_total{scope="inter", '
                'direction="sent"}[$__rate_interval]))', "{{site}} to {{peer_site}}"),)),
        Panel("Time in use", "short",
              "Busy seconds in a second, of all connections of a pair of sites together.",
              (('sum by (site, peer_site) (rate(pactrain_agent_peer_busy_seconds_total'
                '{scope="inter"}[$__rate_interval]))', "{{site}} to {{peer_site}}"),)),
        Panel("Connections that lose packets", "short", "They use bbr.",
              (("sum by (site, peer_site) (pactrain_agent_peer_bbr_connections)",
                "{{site}} to {{peer_site}}"),)),
        Panel("Refused data connections", "short", "By reason; see docs/security.md.",
              (("sum by (reason) (increase("
                "pactrain_agent_connections_refused_total[$__rate_interval]))", "{{reason}}"),)),
    ),
)  # fmt: skip

COORDINATOR = Dashboard(
    "pactrain-coordinator",
    "PacTrain: coordinator",
    (
        Panel("Up", "short", "0: training goes on, and no new job starts.",
              (('up{job="pactrain-coordinator"}', "{{instance}}"),), "stat"),
        Panel("Term", "short", "Grows at each start.", (("pactrain_coordinator_term", "term"),)),
        Panel("Journal cannot be written", "short", "1: nothing new is decided.",
              (("pactrain_coordinator_read_only", "read-only"),), "stat"),
        Panel("Connections", "short", "Of agents and operators.",
              (("pactrain_coordinator_connections", "open"),)),
        Panel("Refused connections", "short", "By reason; see docs/security.md.",
              (("increase(pactrain_coordinator_connections_refused_total[$__rate_interval])",
                "{{reason}}"),)),
        Panel("Calls that began", "short", "Per second, by method.",
              (("sum by (grpc_method) (rate(grpc_server_started_total"
                '{grpc_service=~"pactrain.*"}[$__rate_interval]))', "{{grpc_method}}"),)),
        Panel("Calls that failed", "short", "By code; PermissionDenied: see the audit log.",
              (("sum by (grpc_code) (increase(grpc_server_handled_total"
                '{grpc_code!~"OK|Canceled"}[$__rate_interval]))', "{{grpc_code}}"),)),
        Panel("Slowest calls", "s", "99 of 100 calls of operators took less.",
              (("histogram_quantile(0.99, sum by (le, grpc_method) (rate("
                'grpc_server_handling_seconds_bucket{grpc_type="unary"}'
                "[$__rate_interval])))", "{{grpc_method}}"),)),
        Panel("Agents of jobs without a stream", "short", "Training goes on; see the runbook.",
              (("pactrain_coordinator_missing_agents", "{{training_job}}/{{model}}"),)),
        Panel("Plain text beyond this machine", "short", "1: --insecure-network is on.",
              (('{__name__=~"pactrain_(agent|coordinator)_insecure_network"}', "{{instance}}"),)),
        Panel("Gradient alarms", "short", "Norms far above their median.",
              (("pactrain_coordinator_norm_alarms_total", "{{training_job}}/{{model}}"),)),
        Panel("Time of a scrape", "s", "Of coordinator and agents.",
              (('scrape_duration_seconds{job=~"pactrain.*"}', "{{instance}}"),)),
    ),
)  # fmt: skip

DASHBOARDS = (FLEET, TRAINING, LINKS, COORDINATOR)


def panel_json(panel: Panel, number: int) -> dict[str, object]:
    width = WIDTH // PER_ROW
    source = {"type": "prometheus", "uid": "${datasource}"}
    targets = [
        {"refId": chr(ord("A") + i), "datasource": source, "expr": expr, "legendFormat": legend}
        for i, (expr, legend) in enumerate(panel.queries)
    ]
    x, y = number % PER_ROW * width, number // PER_ROW * HEIGHT
    return {
        "id": number + 1,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.says,
        "datasource": source,
        "gridPos": {"x": x, "y": y, "w": width, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": targets,
    }


def variables(dashboard: Dashboard) -> list[dict[str, object]]:
    source: dict[str, object] = {"name": "datasource", "type": "datasource", "query": "prometheus"}
    if not dashboard.by_job:
        return [source]
    values = "label_values(pactrain_coordinator_generation, training_job)"
    job = {
        "name": "training_job",
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": values, "refId": "training_job"},
        "definition": values,
        "refresh": 2,
        "includeAll": False,
    }
    return [source, job]


def dashboard_json(dashboard: Dashboard) -> str:
    content = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["pactrain"],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": variables(dashboard)},
        "panels": [panel_json(panel, i) for i, panel in enumerate(dashboard.panels)],
    }
    return json.dumps(content, indent=1) + "\n"


def stale() -> dict[Path, str]:
    """Files that are not as they are to be, and how they are to be."""
    wanted = {FOLDER / f"{d.uid.split('-')[1]}.json": dashboard_json(d) for d in DASHBOARDS}
    return {p: text for p, text in wanted.items() if not p.exists() or p.read_text() != text}


def main(arguments: Sequence[str]) -> int:
    files = stale()
    if list(arguments) == ["--check"]:
        for path in files:
            print(f"{path} is stale: run tools/dashboards.py")
        return 1 if files else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text)
    print(f"{len(files)} of {len(DASHBOARDS)} dashboards written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
