"""Whether Kubernetes manifests name what the programs, and each other, have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import programs
import yaml

FOLDER = programs.ROOT / "deploy/kubernetes"
# What has to be in each cluster beforehand.
OVERLAYS = (
    *("overlays/one-cluster", "overlays/gpu-nodes", "overlays/prometheus"),
    *(f"overlays/three-clusters/{site}" for site in "abc"),
    "jobs",
)
YOURS = "registry.example.org/your-training:1"  # The trainers' image, which is not ours.
Resource = dict[str, Any]


def resources(text: str) -> list[Resource]:
    return [document for document in yaml.safe_load_all(text) if document]


def of_kind(everything: list[Resource], *kinds: str) -> list[Resource]:
    return [resource for resource in everything if resource["kind"] in kinds]


def pods(value: Any) -> Iterator[tuple[Resource, Any]]:
    """Each Pod template at any depth, of custom resources too: its labels and its spec."""
    if isinstance(value, list):
        for item in value:
            yield from pods(item)
    elif isinstance(value, dict):
        template = value.get("template")
        if isinstance(template, dict) and "containers" in template.get("spec", {}):
            yield template.get("metadata", {}).get("labels", {}), template["spec"]
        for item in value.values():
            yield from pods(item)


def variables_of(container: Resource, everything: list[Resource]) -> dict[str, str]:
    """Of a container, from ConfigMaps as well; what a Pod's fields give stands as an example."""
    found: dict[str, str] = {}
    for source in container.get("envFrom", []):
        name = source["configMapRef"]["name"]
        (config,) = (r for r in of_kind(everything, "ConfigMap") if r["metadata"]["name"] == name)
        found |= config["data"]
    examples = {"metadata.name": "node-1", "status.podIP": "10.1.2.3", "status.hostIP": "192.0.2.7"}
    for variable in container.get("env", []):
        field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        found[variable["name"]] = examples[field] if field else variable["value"]
    return found


def _ports(container: Resource) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container.get("ports", [])}


def _daemon(
    container: Resource, everything: list[Resource], files: programs.Files
) -> Iterator[str]:
    """What is wrong with a container of a daemon."""
    daemon = f"pactrain-{container['name']}"
    image = f"localhost/{daemon}:{programs.VERSION}"
    if container["image"] != image:
        yield f"image {container['image']}, deploy/images makes {image}"
    words = container["args"]
    environment = variables_of(container, everything)
    for flag in programs.unknown(words, daemon):
        yield f"{daemon} has no {flag}"
    for name in environment.keys() - programs.variables(daemon):
        yield f"{daemon} reads no {name}"
    done = programs.settings(daemon, words, environment, files)
    if done.returncode != 0:
        yield f"{daemon} refuses its settings: {done.stderr.strip()}"
    listened = dict(re.findall(r"^(listen[a-z-]*): 0\.0\.0\.0:(\d+)", done.stdout, re.M))
    ports = _ports(container)
    if sorted(map(int, listened.values())) != sorted(ports.values()):
        yield f"{daemon} listens at {listened}, its container says {ports}"
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container.get(probe, {}).get("httpGet")
        if asked and (asked["path"], asked["port"], asked["scheme"]) != (
            *("/healthz", "metrics", "HTTPS"),
        ):
            yield f"{probe} asks {asked}"
    mounted = [mount["mountPath"] for mount in container["volumeMounts"]]
    for path in re.findall(r"(?:=|unix:)(/[^ ]+)", " ".join(words)):
        if not any(path.startswith(f"{folder}/") for folder in mounted):
            yield f"{path} lies in no volume: {mounted}"
    rights = container["securityContext"]
    if rights != {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }:
        yield f"{daemon} has rights: {rights}"


def _trainer(container: Resource, everything: list[Resource]) -> Iterator[str]:
    if container["image"] != YOURS:
        yield f"image {container['image']}, not {YOURS}"
    environment = variables_of(container, everything)
    ours = {name for name in environment if name.startswith("PACTRAIN_")}
    for name in ours - programs.trainers_variables():
        yield f"no trainer reads {name}"
    socket = environment["PACTRAIN_AGENT"].removeprefix("unix:")
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    if str(Path(socket).parent) not in mounts:
        yield f"the socket {socket} lies in no volume"


def _selectors(everything: list[Resource]) -> Iterator[str]:
    """Selectors of Pods that select none, and ports that those do not have."""
    templates = [pair for resource in everything for pair in pods(resource)]

    def selected(labels: dict[str, str]) -> list[Any]:
        return [spec for has, spec in templates if labels.items() <= has.items()]

    for resource in of_kind(everything, "Service", "PodDisruptionBudget", "NetworkPolicy"):
        spec, name = resource["spec"], f"{resource['kind']} {resource['metadata']['name']}"
        selector = spec.get("podSelector", spec.get("selector", {}))
        found = selected(selector.get("matchLabels", selector))
        if not found:
            yield f"{name} selects no Pod"
        have = {port for pod in found for c in pod["containers"] for port in _ports(c)}
        wanted = [port["targetPort"] for port in spec.get("ports", [])]
        wanted += [p["port"] for rule in spec.get("ingress", []) for p in rule["ports"]]
        yield from (f"{name}: no port {port}" for port in wanted if port not in have)


def problems(everything: list[Resource], files: programs.Files) -> list[str]:
    """Of one cluster's resources, as Kustomize makes them; none: an empty list."""
    found = list(_selectors(everything))
    for resource in everything:
        for _, spec in pods(resource):
            for container in spec["containers"]:
                if container["name"] in ("coordinator", "agent"):
                    found += _daemon(container, everything, files)
                else:
                    found += _trainer(container, everything)
    return found


def unrendered() -> list[Resource]:
    """The base and the jobs as overlays/one-cluster has them, without Kustomize."""
    images = yaml.safe_load((FOLDER / "overlays/one-cluster/kustomization.yaml").read_text())
    names = {i["name"]: f"{i['newName']}:{i['newTag']}" for i in images["images"]}
    found: list[Resource] = []
    for file in sorted([*FOLDER.glob("base/**/*.yaml"), *FOLDER.glob("jobs/*.yaml")]):
        for resource in resources(file.read_text()):
            if resource["kind"] != "Kustomization":
                found.append(resource)
            for config in resource.get("configMapGenerator", []):
                data = dict(line.split("=", 1) for line in config["literals"])
                name = {"name": config["name"]}
                found.append({"kind": "ConfigMap", "metadata": name, "data": data})
    for resource in found:
        for _, spec in pods(resource):
            for container in spec["containers"]:
                container["image"] = names.get(container["image"], container["image"])
    return found
