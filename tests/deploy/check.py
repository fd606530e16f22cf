"""`make deploy-check`: all of deploy/ that can run here; the last line is JSON.

    units                 systemd units that systemd takes and that are hardened
    security_score        the most exposed one's, of 10
    package_installs      1: the Debian package was installed, started and removed under systemd
    images_built          images that were built, are small and whose daemons start
    manifests             Kubernetes resources that its own schemas take
    manifests_invalid     those that they do not take, that name what no program has, or that break
                          a rule of the policy checker without meaning to
    docs_warnings         of the documentation site, and links of it that lead nowhere
    guide_steps_failed    docs/three-machines.md, typed on three machines; null: not tried
    upgrade_steps_lost    1: a job lost a step when its nodes became newer one by one
    not_run_here          what was not tried, in words

Exit code 1: something is wrong; what could not run is none, and is named.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

import kubernetes
import policies
import programs
import render
import units
import upgrades

sys.path.insert(0, str(programs.ROOT / "tests/dist"))

import images


@dataclass
class Result:
    units: int = 0
    security_score: float = 0.0
    package_installs: int = 0
    images_built: int = 0
    manifests: int = 0
    manifests_invalid: int = 0
    guide_steps_failed: int | None = None
    upgrade_steps_lost: int | None = None
    docs_warnings: int | None = None
    not_run_here: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def skip(self, what: str) -> None:
        print(f"not run here: {what}", flush=True)
        self.not_run_here.append(what)

    def fail(self, what: str) -> None:
        print(f"WRONG: {what}", flush=True)
        self.wrong.append(what)


def check_units(result: Result) -> None:
    why = units.why_none()
    if why is not None:
        return result.skip(f"systemd units: {why}")
    for name in units.NAMES:
        unit = units.FOLDER / name
        said, score = units.complaints(unit), units.score(unit)
        print(f"{name}: exposed {score} of 10")
        result.security_score = max(result.security_score, score)
        unknown = programs.unknown(units.command_line(unit)[1:], unit.stem)
        if said or unknown or score > units.MOST_EXPOSED:
            result.fail(f"{name}: {said} {unknown} exposed {score}, at most {units.MOST_EXPOSED}")
        else:
            result.units += 1


def check_pytest(result: Result, path: str, what: str) -> int:
    """1: its tests pass; 0: they fail, or are skipped, and both are said."""
    with tempfile.NamedTemporaryFile(suffix=".txt") as log:
        command = [sys.executable, "-m", "pytest", "-q", "-rs", path]
        status = subprocess.run(command, cwd=programs.ROOT, stdout=log, stderr=log).returncode
        said = Path(log.name).read_text()
    last = said.strip().splitlines()[-1] if said.strip() else "nothing was said"
    print(f"{what}: {last}", flush=True)
    if status != 0:
        print(said)
        result.fail(f"{what}: {last}")
    elif "passed" not in last or "skipped" in last:
        why = [line for line in said.splitlines() if line.startswith("SKIPPED")]
        result.skip(f"{what}: {why[0] if why else last}")
    else:
        return 1
    return 0


def check_package(result: Result) -> None:
    if not list(images.DIST.glob("*.deb")):
        return result.fail("Debian package: out/dist has none; run make dist")
    result.package_installs = check_pytest(
        result, "tests/dist/test_package.py", "Debian package under systemd"
    )


def check_images(result: Result) -> None:
    why = images.why_none()
    if why is not None:
        return result.skip(f"images: {why}")
    result.images_built = 2 * check_pytest(
        result, "tests/dist/test_images.py", "images of coordinator and agent"
    )


def check_manifests(result: Result) -> None:
    why = render.install()
    if why is not None:
        return result.skip(f"Kubernetes manifests by Kustomize: {why}")
    with tempfile.TemporaryDirectory(prefix="pactrain-deploy-") as folder:
        check_rendered(result, Path(folder))


def check_rendered(result: Result, folder: Path) -> None:
    files = programs.Files(folder / "etc")
    unknown: set[str] = set()
    manifests = folder / "manifests"
    manifests.mkdir()
    for overlay in kubernetes.OVERLAYS:
        text = render.kustomize(kubernetes.FOLDER / overlay)
        everything = kubernetes.resources(text)
        file = manifests / f"{overlay.replace('/', '-')}.yaml"
        file.write_text(text)
        passed, wrong, custom = render.validate(file)
        wrong += kubernetes.problems(everything, files)
        for problem in wrong:
            result.fail(f"{overlay}: {problem}")
        others = sum(resource["kind"] in custom for resource in everything)
        if passed + others != len(everything) and not wrong:
            result.fail(f"{overlay}: {len(everything)} resources, {passed} passed, {others} custom")
        print(f"{overlay}: {passed} valid, {others} custom, {len(wrong)} wrong", flush=True)
        result.manifests += passed
        result.manifests_invalid += len(wrong)
        unknown |= custom
    result.skip(f"not validated here, custom resources: {', '.join(sorted(unknown))}")
    result.skip("manifests in a cluster: there is none")
    why = policies.install()
    if why is not None:
        return result.skip(f"policies of manifests: {why}")
    passed, wrong = policies.problems(manifests)
    print(f"policies: {passed} checks passed, {len(wrong)} problems", flush=True)
    for problem in wrong:
        result.fail(problem)
    result.manifests_invalid += len(wrong)


def check_guide(result: Result) -> None:
    if not list(images.DIST.glob("*.whl")):
        return result.fail("guide of three machines: out/dist has no wheel; run make dist")
    before = len(result.wrong)
    passed = check_pytest(
        result, "tests/dist/test_three_machines.py", "the guide of three machines, word by word"
    )
    if passed or len(result.wrong) > before:
        result.guide_steps_failed = 1 - passed


def check_upgrade(result: Result) -> None:
    why = upgrades.why_none()
    if why is not None:
        return result.skip(f"upgrade one by one under a job: {why}")
    folder, wrong = upgrades.previous()
    if wrong:
        return result.fail(wrong)
    before = len(result.wrong)
    os.environ["PACTRAIN_TEST_PREVIOUS"] = folder
    passed = check_pytest(
        result, "tests/e2e/python/upgrade_check.py", "upgrade one by one under a job"
    )
    if passed or len(result.wrong) > before:
        result.upgrade_steps_lost = 1 - passed


def check_ray(result: Result) -> None:
    """Two workers of Ray Train on this machine, which start daemons of their own."""
    packages = programs.ROOT / ".cache/ray"
    if not (packages / "ray").is_dir():
        return result.skip("Ray Train: Ray is not in .cache/ray (tools/setup ray)")
    folders = [packages, programs.ROOT / "python_client/src"]
    done = subprocess.run(
        [sys.executable, str(programs.ROOT / "examples/ray_train.py"), "--epochs=2"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1800,
    )
    last = [line for line in done.stdout.splitlines() if "epoch 2: test accuracy" in line]
    print(f"Ray Train, two workers: {last[-1] if last else 'no second epoch'}", flush=True)
    if done.returncode != 0 or not last or "COMPACTED" not in last[-1]:
        print(done.stdout[-4000:])
        result.fail(f"examples/ray_train.py: exit code {done.returncode}, {last}")


def check_docs(result: Result) -> None:
    if not (programs.ROOT / ".cache/docs/sphinx").is_dir():
        return result.skip("documentation site: Sphinx is not in .cache/docs (tools/setup docs)")
    command = [sys.executable, str(programs.ROOT / "tools/docs.py")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="", flush=True)
    result.docs_warnings = json.loads(done.stdout.splitlines()[-1])["docs_warnings"]
    if done.returncode != 0:
        result.fail("documentation site: see above")


def main() -> int:
    result = Result()
    for part in (
        *(check_units, check_manifests, check_package, check_images, check_guide),
        *(check_upgrade, check_ray, check_docs),
    ):
        try:
            part(result)
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            result.fail(f"{part.__name__}: {error}")  # And the others are tried.
    result.skip("images on a named base: there is no registry")
    result.skip("Slurm with GPU nodes: no GPU; requeue is in tests/e2e/python/test_slurm.py")
    print(json.dumps(asdict(result)))
    return 1 if result.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
