"""What a policy checker (Checkov) has against the manifests, but for what is meant so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import render

CHECKER = "checkov==3.3.30"
FOLDER = render.TOOLS / "checkov"
# Rules that resources of these kinds break on purpose, and why.
ON_PURPOSE = {
    "CKV2_K8S_6": ({"Pod"}, "who may dial the ranks of your job is yours to say"),
    "CKV_K8S_9": ({"DaemonSet"}, "no Service leads to agents"),
    "CKV_K8S_10": ({"Job"}, "what your training needs is yours to say"),
    "CKV_K8S_11": (
        {"StatefulSet", "DaemonSet", "Job"},
        "whoever is held up holds up all ranks of the job",
    ),
    "CKV_K8S_12": ({"Job"}, "what your training needs is yours to say"),
    "CKV_K8S_13": ({"DaemonSet", "Job"}, "models say how much (docs/agent-memory.md)"),
    "CKV_K8S_15": ({"StatefulSet", "DaemonSet", "Job"}, "images are named by version"),
    "CKV_K8S_22": ({"Job"}, "scripts write checkpoints"),
    "CKV_K8S_23": ({"DaemonSet"}, "the folder of sockets is root's; it has no capability"),
    "CKV_K8S_26": ({"DaemonSet"}, "agents of other clusters dial a port of the node"),
    "CKV_K8S_40": ({"DaemonSet", "Job"}, "root, as above; and the user of a job is yours"),
    "CKV_K8S_43": ({"StatefulSet", "DaemonSet", "Job"}, "the digest is your registry's"),
}


def install() -> str | None:
    """Into .cache/deploy; why not, or None."""
    if not (FOLDER / "bin/checkov").exists():
        subprocess.run([sys.executable, "-m", "venv", FOLDER], check=True)
        pip: list[str | Path] = [FOLDER / "bin/python", "-m", "pip", "install", "-q", CHECKER]
        done = subprocess.run(pip, capture_output=True, text=True)
        if done.returncode != 0:
            return f"pip has no {CHECKER}: {done.stderr.strip()[-200:]}"
    return None


def problems(folder: Path) -> tuple[int, list[str]]:
    """Of all manifests there: how many checks passed, and what is wrong."""
    words = "--framework kubernetes --output json --compact --quiet --soft-fail --skip-download"
    command: list[str | Path] = [FOLDER / "bin/checkov", "--directory", folder, *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=render.SECONDS)
    said = json.loads(done.stdout)
    found = {
        (check["check_id"], check["resource"].split(".")[0], check["check_name"])
        for check in said["results"]["failed_checks"]
    }
    wrong = [
        f"{rule} ({name}): {kind}"
        for rule, kind, name in sorted(found)
        if rule not in ON_PURPOSE or kind not in ON_PURPOSE[rule][0]
    ]
    broken = {(rule, kind) for rule, kind, _ in found}
    for rule, (kinds, _) in ON_PURPOSE.items():
        wrong += [f"{rule}: no {k} breaks it any more" for k in kinds if (rule, k) not in broken]
    return int(said["summary"]["passed"]), wrong
