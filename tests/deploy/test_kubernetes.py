"""Manifests name what the programs have; and what they do not have is found."""

from __future__ import annotations

import http.client
import re
import runpy
import socket
import ssl
import subprocess

import kubernetes
import programs
import pytest
import yaml


def replaced(path: str, old: str, new: str) -> list[kubernetes.Resource]:
    """The manifests, with one word changed in those of one kind and name."""
    kind, name = path.split("/")
    found = []
    for resource in kubernetes.unrendered():
        if (resource["kind"], resource["metadata"]["name"]) == (kind, name):
            text = yaml.safe_dump(resource)
            assert old in text
            resource = yaml.safe_load(text.replace(old, new))
        found.append(resource)
    return found


def test_manifests_name_what_the_programs_have(files: programs.Files) -> None:
    everything = kubernetes.unrendered()
    containers = [
        c for r in everything for _, spec in kubernetes.pods(r) for c in spec["containers"]
    ]
    assert sorted(c["name"] for c in containers) == [
        *("agent", "coordinator", "node", "trainer", "trainer")
    ]
    assert kubernetes.problems(everything, files) == []


@pytest.mark.parametrize(
    ("path", "old", "new", "said"),
    [
        ("DaemonSet/pactrain-agent", "--socket-group", "--group", "has no --group"),
        ("DaemonSet/pactrain-agent", "AGENT_NAME", "AGENT_NAMED", "reads no PACTRAIN_AGENT_NAMED"),
        ("DaemonSet/pactrain-agent", "containerPort: 7073", "containerPort: 7", "listens at"),
        ("DaemonSet/pactrain-agent", "/healthz", "/health", "livenessProbe asks"),
        ("DaemonSet/pactrain-agent", "agent:0", "agent:1", "deploy/images makes"),
        ("DaemonSet/pactrain-agent", "name: data", "name: date", "no port data"),
        ("DaemonSet/pactrain-agent", "/etc/pactrain/tls\n", "/etc/tls\n", "lies in no volume"),
        ("DaemonSet/pactrain-agent", "- ALL", "- NET_RAW", "has rights"),
        ("StatefulSet/pactrain-coordinator", "tls.key", "key.pem", "refuses its settings"),
        ("ConfigMap/pactrain-agent", "inf", "long", "'long' is not a duration"),
        ("ConfigMap/pactrain-coordinator", "CLUSTER", "NAME", "reads no PACTRAIN_COORDINATOR_NAME"),
        ("Service/pactrain-coordinator", "-coordinator", "-c", "selects no Pod"),
        ("Service/pactrain-coordinator", "targetPort: grpc", "targetPort: rpc", "no port rpc"),
        ("Job/digits", "PACTRAIN_JOB_ID", "PACTRAIN_JOB", "no trainer reads PACTRAIN_JOB"),
        ("Job/digits", "agent.sock", "x/agent.sock", "lies in no volume"),
        ("TrainingRuntime/pactrain", "PACTRAIN_SITES", "PACTRAIN_SITS", "no trainer reads"),
    ],
)
def test_what_they_do_not_have_is_found(
    files: programs.Files, path: str, old: str, new: str, said: str
) -> None:
    found = kubernetes.problems(replaced(path, old, new), files)
    assert any(said in problem for problem in found), found


def test_rules_are_those_of_prometheus() -> None:
    made = runpy.run_path(str(programs.ROOT / "tools/prometheus_rule.py"))
    assert made["TARGET"].read_text() == made["text"](), "run tools/prometheus_rule.py"


def test_all_dashboards_are_in_the_config_map() -> None:
    folder = programs.ROOT / "deploy/grafana"
    (config,) = yaml.safe_load((folder / "kustomization.yaml").read_text())["configMapGenerator"]
    dashboards = [str(p.relative_to(folder)) for p in sorted(folder.glob("dashboards/*.json"))]
    assert config["files"] == dashboards


def test_scraping_asks_what_the_coordinator_serves(files: programs.Files) -> None:
    """The scheme, the paths, the token, and the name in the certificate."""
    scraping = kubernetes.resources(
        (kubernetes.FOLDER / "components/prometheus/scraping.yaml").read_text()
    )
    text = yaml.safe_dump_all(scraping)
    (name,) = set(re.findall(r"serverName: (\S+)", text))
    (path,) = re.findall(r"url: https://[^/]+(/\S+)", text)
    coordinator = next(
        spec["containers"][0]
        for resource in kubernetes.unrendered()
        for labels, spec in kubernetes.pods(resource)
        if labels.get("app.kubernetes.io/name") == "pactrain-coordinator"
    )
    daemon = "pactrain-coordinator"
    words = [
        files.here(daemon, re.sub(r"0\.0\.0\.0:\d+", "127.0.0.1:0", w)) for w in coordinator["args"]
    ]
    process = subprocess.Popen(
        [programs.BIN / daemon, *words],
        stdout=subprocess.PIPE,
        text=True,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        port = re.search(r"metrics=\S+:(\d+)", process.stdout.readline())
        assert port is not None
        context = ssl.create_default_context(cafile=str(files.folder / "pki/ca.pem"))
        token = (files.folder / daemon / "metrics/token").read_text().strip()
        # As a client does that has looked `name` up.
        for page, shown, status in (
            *(("/metrics", True, 200), (path, True, 200), ("/healthz", False, 200)),
            *(("/metrics", False, 401), (path, False, 401)),
        ):
            raw = socket.create_connection(("127.0.0.1", int(port[1])), timeout=300)
            with context.wrap_socket(raw, server_hostname=name) as link:
                connection = http.client.HTTPSConnection(name)
                connection.sock = link
                connection.request(
                    "GET", page, headers={"Authorization": f"Bearer {token}"} if shown else {}
                )
                assert connection.getresponse().status == status, page
    finally:
        process.terminate()
        process.wait(60)


def test_one_policy_lets_all_do_all_wherever_one_is_shipped(files: programs.Files) -> None:
    """The coordinator prints it where it has none."""
    tls = [f"--tls-{name}={programs.ETC}/tls/{file}" for name, file in (
        ("cert", "tls.crt"), ("key", "tls.key"), ("ca", "ca.crt"))]  # fmt: skip
    said = programs.settings("pactrain-coordinator", tls, {}, files).stderr
    printed = yaml.safe_load(said[said.index("run: [") :].split("\n\n")[0])
    (config,) = (r for r in kubernetes.unrendered() if r["metadata"]["name"] == "pactrain-policy")
    assert yaml.safe_load(config["data"]["policy.yaml"]) == printed
    assert yaml.safe_load((files.folder / "pki/policy.yaml").read_text()) == printed
