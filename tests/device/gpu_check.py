"""Whether PacTrain works on this machine's GPU, and how fast: alone, without a network.

    python3 gpu_check.py pactrain-VERSION.whl

It needs the Python that has torch, numpy and CUDA, and nothing installed. Each part has a
process and a bound of its own, and all have 9 minutes. gpu-check.json is written anew after
each of them. Exit status 1: bits are wrong; what could not be tried is listed as skipped,
with why; figures that miss their goals are listed beside them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from gpu_figures import beside, figures, link
from gpu_frameworks import frameworks
from gpu_job import cluster, job, start
from gpu_kernels import kernels, sanitized
from gpu_place import PATIENCE, WIDTH, Answer, Skipped, bound, devices

ALL_SECONDS = 530  # What is left when they are over is skipped.
LEAST_SECONDS = 10  # Less is no time for a part.


def facts(place: str, package: Path) -> Answer:
    import torch

    import pactrain

    answer: Answer = {
        "pactrain": pactrain.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "place": place,
    }
    if place.startswith("cuda"):
        properties = torch.cuda.get_device_properties(place)
        answer |= {
            "gpu": properties.name,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "memory": properties.total_memory,
            "cuda": torch.version.cuda,
        }
    doctor = [package / "pactrain/_native/pactrain-admin", "doctor", "--json"]
    done = subprocess.run(doctor, capture_output=True, text=True, timeout=30, check=False)
    answer["doctor"] = json.loads(done.stdout)["checks"] if done.stdout else done.stderr
    return answer


def exchange(place: str, package: Path) -> Answer:
    """Two ranks and two agents. Gradients are whole numbers, so the CPU computes the same:
    what differs came about on the way."""
    answer: Answer = {"wrong": [], "paths": {}}
    expected = job(package, "cpu", "auto", "exact")
    for path in ("torch", "device"):
        compare(answer, expected, package, place, path, "exact")
    if place.startswith("cuda"):
        compare(answer, expected, package, place, "torch", "delayed")
        compare(answer, expected, package, place, "device", "delayed")
    return answer


def nccl(place: str, package: Path) -> Answer:
    """A rank that is alone on its node goes by the host; two GPUs of a node have the bits of
    the CPU's sum."""
    answer: Answer = {"wrong": [], "paths": {}}
    expected = job(package, "cpu", "auto", "exact")
    compare(answer, expected, package, place, "nccl", "exact")
    if "skipped" in answer:
        return answer
    if (found := devices(place)) < 2:
        return answer | {"skipped": [f"a sum of two GPUs: there are {found}"]}
    compare(answer, expected, package, place, "nccl", "node")
    path = answer["paths"]["node by nccl"]
    return answer if path == "nccl" else answer | {"failed": [f"two GPUs went by {path}"]}


def training(place: str, package: Path) -> Answer:
    """Autocast, GradScaler, accumulation, clipping, a checkpoint: each path as the other."""
    answer: Answer = {"wrong": [], "paths": {}}
    expected = job(package, place, "torch", "mixed")
    compare(answer, expected, package, place, "torch", "resumed")
    compare(answer, expected, package, place, "device", "mixed")
    return answer


def compare(
    answer: Answer, expected: Answer, package: Path, place: str, path: str, kind: str
) -> None:
    name = f"{kind} by {path}"
    found = job(package, place, path, kind)
    answer["paths"][name] = found.get("path", found.get("error"))
    if found.get("refused"):
        answer.setdefault("skipped", []).append(f"{name}: {found['error']}")
    elif "digest" not in found or "digest" not in expected:
        answer.setdefault("failed", []).append(f"{name}: {found} beside {expected}")
    elif found["digest"] != expected["digest"]:
        answer["wrong"].append(f"{name}: {found} beside {expected}")


def lost_rank(place: str, package: Path) -> Answer:
    """A rank that is killed in a step: the other gets a typed error, and soon."""
    with cluster(package) as agents:
        ranks = [start(agents, rank, place, "torch", "endless") for rank in range(2)]
        for rank in ranks:
            assert rank.stdout is not None
            rank.stdout.readline()  # It trains.
        ranks[1].send_signal(signal.SIGKILL)
        begun = time.monotonic()
        said, _ = ranks[0].communicate(timeout=bound(40))
        ranks[1].communicate(timeout=10)
    found = json.loads(said.splitlines()[-1])
    right = found.get("error", "").startswith("StepNotAppliedError")
    answer: Answer = {"seconds": time.monotonic() - begun, "error": found.get("error")}
    return answer if right else answer | {"failed": [f"rank 0 said {found}"]}


PARTS: dict[str, tuple[Callable[[str, Path], Answer], float]] = {  # Seconds that it may take.
    "facts": (facts, 35),
    "kernels": (kernels, 90),
    "exchange": (exchange, 120),
    "nccl": (nccl, 50),
    "training": (training, 120),
    "lost_rank": (lost_rank, 60),
    "frameworks": (frameworks, 150),
    "figures": (figures, 60),
    "beside": (beside, 75),
    "link": (link, 90),
    "sanitizer": (sanitized, 100),
}


def run_part(name: str, arguments: argparse.Namespace, package: Path, seconds: float) -> Answer:
    argv = [sys.executable, __file__, "--part", name, "--place", arguments.place]
    environment = os.environ | {"PYTHONPATH": f"{package}:{os.environ.get('PYTHONPATH', '')}"}
    begun = time.monotonic()
    process = subprocess.Popen(
        [*argv, "--package", str(package)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, errors = process.communicate(timeout=seconds)
        answer: Answer = json.loads(said.splitlines()[-1])
        if answer.get("failed"):
            answer["stderr"] = errors[-2000:]
    except subprocess.TimeoutExpired as late:
        heard = late.stderr.decode(errors="replace") if late.stderr else ""
        answer = {"failed": [f"not done after {seconds:.0f} s"], "stderr": heard[-2000:]}
    except (ValueError, IndexError):
        answer = {"failed": [f"ended with {process.returncode}: {errors[-2000:]}"]}
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return answer | {"took_seconds": round(time.monotonic() - begun, 1)}


def one_part(name: str, place: str, package: Path) -> Answer:
    try:
        return PARTS[name][0](place, package)
    except Skipped as skipped:
        return {"skipped": [str(skipped)]}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheel", nargs="?", type=Path, help="pactrain-VERSION.whl")
    parser.add_argument("--place", default="cuda:0", help="the device; cpu: try the script")
    parser.add_argument("--results", type=Path, default=Path("gpu-check.json"))
    parser.add_argument("--patience", type=float, default=1, help="times the parts' bounds")
    parser.add_argument("--package", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--part", choices=PARTS, help="only this one")
    arguments = parser.parse_args()
    os.environ.setdefault(PATIENCE, str(arguments.patience))
    os.environ.setdefault(WIDTH, "256" if arguments.place.startswith("cuda") else "24")
    if arguments.package and arguments.part:
        print(json.dumps(one_part(arguments.part, arguments.place, arguments.package)))
        return 0
    if arguments.wheel is None:
        parser.error("give the wheel that lies beside this script")
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(arguments.wheel) as wheel:
            wheel.extractall(folder)
        for program in Path(folder, "pactrain/_native").iterdir():
            program.chmod(0o755)
        answers = {}
        end = time.monotonic() + bound(ALL_SECONDS)
        for name in [arguments.part] if arguments.part else PARTS:
            seconds = min(bound(PARTS[name][1]), end - time.monotonic())
            if seconds > LEAST_SECONDS:
                answers[name] = run_part(name, arguments, Path(folder), seconds)
            else:
                answers[name] = {"skipped": [f"{bound(ALL_SECONDS):g} s are over"]}
            arguments.results.write_text(json.dumps(answers, indent=1) + "\n")
            print(f"{name}: {verdict(answers[name])}", flush=True)
    print(f"{arguments.results} has all of it")
    return int(any(answer.get("wrong") for answer in answers.values()))


def verdict(answer: Answer) -> str:
    for word in ("wrong", "failed", "missed", "skipped"):
        if answer.get(word):
            return f"{word}: {'; '.join(answer[word])}"
    return f"right, {answer['took_seconds']} s"


if __name__ == "__main__":
    sys.exit(main())
