"""A real Prometheus and Alertmanager with what deploy/ ships, SPEED times as fast."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from bench.closing import Closing
from bench.cluster import ROOT, free_port
from bench.processes import Child, Children, ProcessError

DEPLOY = ROOT / "deploy"
SHIPPED = DEPLOY / "prometheus"
SPEED = 120
SHORTEST_RANGE = 8  # Seconds: a rate needs some scrapes.
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
WINDOW = re.compile(
    r"(\[|offset |for: |group_wait: |group_interval: |repeat_interval: )(\d+)([smhd])"
)


def faster(text: str) -> str:
    """Rules, alerts or routes with all windows divided by SPEED."""

    def shorter(match: re.Match[str]) -> str:
        seconds = round(int(match[2]) * SECONDS[match[3]] / SPEED)
        least = {"[": SHORTEST_RANGE, "for: ": 0}.get(match[1], 1)
        return f"{match[1]}{max(least, seconds)}s"

    return WINDOW.sub(shorter, text)


def wait_until(true: Callable[[], bool], what: str, seconds: float = 60.0) -> float:
    """How long it took; ProcessError: it did not come about."""
    begin = time.monotonic()
    while not true():
        if time.monotonic() - begin > seconds:
            raise ProcessError(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(0.25)
    return time.monotonic() - begin


class Notices(Closing):
    """Who Alertmanager tells: which alerts began, and which are on. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Fingerprints by name. Guarded by _lock, as is:
        self._active: dict[str, set[str]] = {}
        self._begun: list[str] = []
        self._runbooks: dict[str, str] = {}  # Addresses by name.
        notices = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers["Content-Length"])
                notices._take(json.loads(self.rfile.read(size))["alerts"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/alerts"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _take(self, alerts: list[dict[str, Any]]) -> None:
        with self._lock:
            for alert in alerts:
                name = alert["labels"]["alertname"]
                active = self._active.setdefault(name, set())
                self._runbooks[name] = alert["annotations"]["runbook_url"]
                if alert["status"] != "firing":
                    active.discard(alert["fingerprint"])
                    continue
                if not active:
                    self._begun.append(name)
                active.add(alert["fingerprint"])

    def active(self) -> set[str]:
        with self._lock:
            return {name for name, active in self._active.items() if active}

    def take_begun(self) -> list[str]:
        """Those that began since the last call."""
        with self._lock:
            begun, self._begun = self._begun, []
            return begun

    def runbooks(self) -> dict[str, str]:
        """Of all alerts so far, where their runbooks are."""
        with self._lock:
            return dict(self._runbooks)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Alertmanager:
    def __init__(self, children: Children, folder: Path, notices: Notices) -> None:
        text = faster((SHIPPED / "alertmanager.yml").read_text())
        settings = yaml.safe_load(text)
        settings["receivers"][0]["webhook_configs"] = [{"url": notices.url}]
        path = folder / "alertmanager.yml"
        path.write_text(yaml.safe_dump(settings))
        self.address = f"127.0.0.1:{free_port('127.0.0.1')}"
        argv = ["prometheus-alertmanager", f"--config.file={path}",
                f"--storage.path={folder / 'alertmanager'}", "--cluster.listen-address=",
                f"--web.listen-address={self.address}", "--log.level=warn"]  # fmt: skip
        child = children.start("alertmanager", argv, {})
        wait_until(lambda: is_ready(child, self.address), "Alertmanager to be ready")


def is_ready(child: Child, address: str) -> bool:
    if child.process.poll() is not None:
        raise child.error("ended")
    try:
        urllib.request.urlopen(f"http://{address}/-/ready", timeout=2)
    except OSError:
        return False
    return True


class Prometheus:
    """With the shipped files; asks and answers over HTTP.

    `token`, `ca`: of daemons that show /metrics by TLS to who has a token. `runbooks`: what
    alerts' runbook_url begins with.
    """

    def __init__(
        self,
        children: Children,
        folder: Path,
        coordinator: str,
        alertmanager: Alertmanager,
        token: Path,
        ca: Path,
        runbooks: str,
    ) -> None:
        for name in ("rules.yml", "alerts.yml"):
            (folder / name).write_text(faster((SHIPPED / name).read_text()))
        config = (SHIPPED / "prometheus.yml").read_text()
        config = config.replace("127.0.0.1:7071", coordinator)
        config = config.replace("127.0.0.1:9093", alertmanager.address)
        config = re.sub(r"_interval: \d+s", "_interval: 1s", config)
        settings = yaml.safe_load(config.replace(f"http://{coordinator}", f"https://{coordinator}"))
        settings["global"]["external_labels"] = {"pactrain_runbooks": runbooks}
        by_tls = {
            "authorization": {
                "type": "Bearer",
                "credentials_file": str(token),
            },  # http_sd has no default.
            "tls_config": {"ca_file": str(ca), "server_name": "daemon.pactrain"},
        }
        for scrape in settings["scrape_configs"]:
            scrape.update({"scheme": "https", **by_tls})
            for found in scrape.get("http_sd_configs", []):
                found.update(by_tls)
        (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
        self.address = f"127.0.0.1:{free_port('127.0.0.1')}"
        argv = ["prometheus", f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'tsdb'}", "--log.level=warn",
                f"--web.listen-address={self.address}"]  # fmt: skip
        child = children.start("prometheus", argv, {})
        self.started = time.time()
        wait_until(lambda: is_ready(child, self.address), "Prometheus to be ready")

    def ask(self, what: str, **parameters: str) -> Any:
        url = f"http://{self.address}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]

    def holds(self, expr: str) -> bool:
        """Whether the expression has a value now."""
        return bool(self.ask("query", query=expr)["result"])

    def series(self, expr: str, until: float) -> list[dict[str, Any]]:
        """All that the expression had since the start, one value a second."""
        since, until_text = f"{self.started:.0f}", f"{until:.0f}"
        found = self.ask("query_range", query=expr, start=since, end=until_text, step="1")
        result: list[dict[str, Any]] = found["result"]
        return result
