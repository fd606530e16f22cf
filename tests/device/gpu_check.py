"""Whether PacTrain works on this machine's GPU, and how fast: alone, without a network.

    python3 gpu_check.py pactrain-VERSION.whl

It needs the Python that has torch, numpy and CUDA, and nothing installed. Each part has a
process and a bound of its own. gpu-check.json is written anew after each of them. Exit
status 1: bits are wrong; what could not be tried is listed as skipped, with why.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PARTS = {  # Seconds that each may take.
    "facts": 35,
    "kernels": 90,
    "exchange": 120,
    "nccl": 50,
    "training": 120,
    "lost_rank": 60,
    "figures": 60,
}
STEPS = 8
JOB_SECONDS = 55
PATIENCE = "GPU_CHECK_PATIENCE"  # Times all bounds.
WIDTH = "GPU_CHECK_WIDTH"  # Of layers; less where a CPU stands in.
ELEMENTS = 1 << 24  # In a bucket of "kernels".


class Skipped(Exception):
    """Why a part cannot be tried here."""


# What a part finds: {"wrong": [...]} are bits, the rest is for people.
Answer = dict[str, Any]


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


def kernels(place: str, package: Path) -> Answer:
    """Against torch's operators on the same device, over random bits."""
    import torch

    from pactrain.errors import RefusedError

    device = on(place)
    try:
        own = kernels_on(device)
    except RefusedError as error:
        raise Skipped(str(error)) from error
    wrong: list[str] = []
    checked = 0
    elements = ELEMENTS if place.startswith("cuda") else 3000
    end = time.monotonic() + PARTS["kernels"] / 2
    rounds = 64 if place.startswith("cuda") else 2
    for number in range(rounds):
        dtype = (torch.float32, torch.bfloat16)[number % 2]
        count = elements - number  # Also what is no whole tile.
        wrong += check_kernels(own, device, dtype, count, number)
        checked += count
        if time.monotonic() > end:
            break
    return {"wrong": wrong, "elements": checked}


def check_kernels(own: Any, device: Any, dtype: Any, count: int, seed: int) -> list[str]:
    import torch

    generator = torch.Generator().manual_seed(seed)
    width = torch.int32 if dtype == torch.float32 else torch.int16
    limits = torch.iinfo(width)
    bits = torch.randint(limits.min, limits.max + 1, (count,), generator=generator, dtype=width)
    bits[:6] = 0  # Zeros, and values that are not random.
    keep = torch.rand(count, generator=generator) < (0, 0.1, 0.5, 1.1)[seed % 4]
    image = image_of(keep).to(device)
    bits, keep = bits.to(device), keep.to(device)
    values = bits.view(dtype)
    packed = torch.empty(int(keep.sum()), device=device)
    totals = torch.empty(own.totals_of(count), dtype=torch.int64, device=device)
    out = torch.empty(count, dtype=dtype, device=device)
    stream = torch.accelerator.current_stream()
    own.pack(image, values, packed, totals, count_outside=True, stream=stream)
    own.unpack(image, packed, 3, out, stream=stream)
    wide = widened(bits)
    magnitude = limits.max
    outside = int((((bits & magnitude) != 0) & ~keep).sum())
    kept = wide[keep]
    mean = torch.zeros(count, dtype=torch.int32, device=device)
    mean[keep] = divided(kept, 3)
    name = f"{dtype}, {count} elements, seed {seed}"
    pairs = (
        ("compact", torch.equal(packed.view(torch.int32), kept)),
        ("outside", int(totals[1::2].sum()) == outside),
        ("expand + divide", torch.equal(out.view(width), narrowed(mean, width))),
    )
    return [f"{what}: {name}" for what, right in pairs if not right]


def widened(bits: Any) -> Any:
    import torch

    return bits if bits.dtype == torch.int32 else bits.to(torch.int32) << 16


def divided(bits: Any, by: int) -> Any:
    """Bits of fp32, as the CPU divides them: a NaN stays the one that it is, quiet."""
    import torch

    values = bits.view(torch.float32)
    quotient = (values / torch.tensor(float(by), device=bits.device)).view(torch.int32)
    return torch.where(values.isnan(), bits | 0x00400000, quotient)


def narrowed(bits: Any, width: Any) -> Any:
    import torch

    if width == torch.int32:
        return bits
    is_nan = bits.view(torch.float32).isnan()
    rounded = bits + 0x7FFF + (bits >> 16 & 1)
    return (torch.where(is_nan, bits | 0x00400000, rounded) >> 16).to(torch.int16)


def image_of(keep: Any) -> Any:
    """A mask as kernels read it (kernels/cuda/shapes.h), as bytes."""
    import numpy as np
    import torch

    tiles = -(-keep.numel() // 1024)
    padded = np.zeros(tiles * 1024, dtype=bool)
    padded[: keep.numel()] = keep.numpy()
    words = np.packbits(padded, bitorder="little").view(np.uint32)
    kept = padded.reshape(tiles, 1024).sum(axis=1)
    offsets = (np.cumsum(kept) - kept).astype(np.uint32)
    return torch.from_numpy(np.concatenate([words, offsets]).view(np.uint8))


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


def figures(place: str, package: Path) -> Answer:
    """As shares of what this card's own copies reach in the same run."""
    import torch

    if not place.startswith("cuda"):
        raise Skipped("there is no GPU")
    device = on(place)
    elements = 1 << 26
    values = torch.randn(elements, device=device)
    other = torch.empty_like(values)
    host = torch.empty(elements, pin_memory=True)
    answer: Answer = {
        "device_copy": 8 * elements / timed(lambda: other.copy_(values)),
        "to_host": 4 * elements / timed(lambda: host.copy_(values, non_blocking=True)),
        "to_device": 4 * elements / timed(lambda: other.copy_(host, non_blocking=True)),
    }
    try:
        own = kernels_on(device)
    except RuntimeError as error:
        return answer | {"skipped": [f"kernels: {error}"]}
    keep = torch.rand(elements) < 0.5
    image, kept = image_of(keep).to(device), int(keep.sum())
    packed = torch.empty(kept, device=device)
    totals = torch.empty(own.totals_of(elements), dtype=torch.int64, device=device)
    stream = torch.cuda.current_stream()
    moved = 4 * (elements + kept)
    packs = timed(
        lambda: own.pack(image, values, packed, totals, count_outside=True, stream=stream)
    )
    unpacks = timed(lambda: own.unpack(image, packed, 2, other, stream=stream))
    shares = {
        "compact": moved / packs / answer["device_copy"],
        "expand_divide": moved / unpacks / answer["device_copy"],
    }
    missed = [f"{name}: {share:.2f}" for name, share in shares.items() if share < 0.75]
    return answer | {"shares": shares, "goal": 0.75, "missed": missed}


def timed(work: Callable[[], object]) -> float:
    """Seconds of one, on the device: the median of nine."""
    import torch

    seconds = []
    for _ in range(9):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1000)
    return sorted(seconds)[4]


def on(place: str) -> Any:
    """The torch.device, usable."""
    import torch

    if place.startswith("queued"):
        stand_in()
    elif place.startswith("cuda") and not torch.cuda.is_available():
        raise Skipped("torch sees no GPU")
    return torch.device(place)


def devices(place: str) -> int:
    import torch

    on(place)
    return torch.accelerator.device_count()


def stand_in() -> Any:
    """Of a checkout: a device, a driver and an NCCL without a GPU."""
    import queued

    from pactrain import device_path

    queued.use_nccl()
    device_path.WITH_KERNELS.add(queued.NAME)
    return queued


def kernels_on(device: Any) -> Any:
    from pactrain.device_kernels import kernels_of
    from pactrain.errors import RefusedError

    if device.type == "cpu":
        raise RefusedError("there is no GPU")
    return kernels_of(device)


# ---- Jobs of two ranks ----


@contextlib.contextmanager
def cluster(package: Path) -> Iterator[list[str]]:
    """A coordinator and two agents on loopback; their sockets."""
    native = package / "pactrain/_native"
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:

        def daemon(name: str, *flags: str) -> dict[str, str]:
            argv = [str(native / name), "--insecure-local", "--listen-metrics=127.0.0.1:0"]
            log = stack.enter_context(open(f"{folder}/{name}.log", "ab"))
            process = subprocess.Popen(
                [*argv, *flags], stdout=subprocess.PIPE, stderr=log, text=True
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            assert process.stdout is not None
            for line in process.stdout:
                if "listening" in line:
                    return dict(part.split("=", 1) for part in line.split()[1:])
            raise RuntimeError(f"{name} did not start: {Path(log.name).read_text()}")

        address = daemon(
            "pactrain-coordinator",
            "--listen=127.0.0.1:0",
            f"--state-dir={folder}/state",
            "--cluster=gpu",
            "--risk=exact",
        )["grpc"]
        sockets = [f"unix:{folder}/{site}.sock" for site in ("a", "b")]
        for site, socket in zip("ab", sockets, strict=True):
            daemon(
                "pactrain-agent",
                f"--name={site}",
                f"--site={site}",
                f"--coordinator={address}",
                f"--socket={socket}",
                "--listen=127.0.0.1:0",
            )
        yield sockets


def job(package: Path, place: str, path: str, kind: str) -> Answer:
    """What both ranks say at the end."""
    with cluster(package) as agents, contextlib.ExitStack() as stack:
        ranks = [start(agents, rank, place, path, kind) for rank in range(2)]
        for rank in ranks:
            stack.callback(rank.kill)
        try:
            said = [json.loads(last_line(rank)) for rank in ranks]
        except subprocess.TimeoutExpired:
            return {"error": f"not done after {bound(JOB_SECONDS):g} s"}
    return said[0] if said[0] == said[1] else {"error": f"ranks differ: {said}"}


def bound(seconds: float) -> float:
    return seconds * float(os.environ[PATIENCE])


def last_line(rank: subprocess.Popen[str]) -> str:
    said, _ = rank.communicate(timeout=bound(JOB_SECONDS))
    return said.splitlines()[-1] if said else '{"error": "said nothing"}'


def start(agents: list[str], rank: int, place: str, path: str, kind: str) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PACTRAIN_")}
    agent = agents[rank]
    if kind == "node":  # Of two GPUs.
        agent, place = agents[0], f"{place.partition(':')[0]}:{rank}"
    environment |= {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "PACTRAIN_AGENT": agent,
        "PACTRAIN_JOB_ID": "gpu-check",
        "PACTRAIN_DEVICE_PATH": path,
        "PACTRAIN_ON_SHRINK": "abort",
        "PACTRAIN_ATTACH_TIMEOUT": f"{bound(40):g}",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    argv = [sys.executable, __file__, "--rank", kind, "--place", place]
    return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True)


def rank_main(kind: str, place: str) -> Answer:
    from pactrain.errors import PacTrainError, RefusedError

    device = on(place)
    try:
        return train(kind, device)
    except PacTrainError as error:
        first = str(error).splitlines()[0]
        refused = isinstance(error, RefusedError)
        return {"error": f"{type(error).__name__}: {first}", "refused": refused}


def train(kind: str, device: Any) -> Answer:
    import torch
    from torch import nn

    import pactrain

    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    exact = kind not in ("mixed", "resumed")
    width = int(os.environ[WIDTH])
    sizes = (width,) * 4 if exact else (64, 2 * width, 2 * width, 16)
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    model: nn.Module = nn.ModuleList(layers) if exact else nn.Sequential(*layers)
    net = Parallel(model, kind == "delayed") if exact else model
    pactrain.prune(net, 0.5, exempt=())
    if exact:  # Whole numbers; what is kept stays above zero.
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.mul_(64).round_()
    options: dict[str, Any] = {"pin": "COMPACTED", "settle": 1, "bucket_cap_mb": 0.2}
    ddp = pactrain.DistributedDataParallel(net.to(device), **options)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.5, momentum=0 if exact else 0.5)
    scaler = torch.amp.GradScaler(device.type, init_scale=64.0)
    endless = kind == "endless"
    step = 0
    while step < STEPS or endless:
        if kind == "node":
            time.sleep(1)  # NCCL opens beside the steps.
        optimizer.zero_grad()
        run_step(ddp, device, step, exact, scaler)
        if exact:
            optimizer.step()
        else:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        step += 1
        if step == STEPS // 2 and kind == "resumed":
            reload(ddp, optimizer)
        if endless and step == 3:
            print("trains", flush=True)
    stats = ddp.session.stats()
    packed = stats["pactrain/active_keep"] < 1
    path = ddp.session.device_path
    digest = hashlib.sha256()
    for value in net.state_dict().values():
        digest.update(value.cpu().numpy().tobytes())
    ddp.session.close()
    if stats["pactrain/device_fallbacks"] if device.type != "cpu" else 0:
        return {"error": f"fell back: {path}"}
    return {"digest": digest.hexdigest(), "masks": packed, "path": path.name}


def run_step(ddp: Any, device: Any, step: int, exact: bool, scaler: Any) -> None:
    import torch

    seed = 2 * step + int(os.environ["RANK"])
    generator = torch.Generator().manual_seed(seed)
    if exact:
        shape = (16, int(os.environ[WIDTH]))
        inputs = torch.randint(-4, 5, shape, generator=generator).float()
        ddp(inputs.to(device)).sum().backward()
        return
    inputs = torch.randn(16, 64, generator=generator).to(device)
    for part, last in zip(inputs.chunk(2), (False, True), strict=True):
        with contextlib.nullcontext() if last else ddp.no_sync():
            with torch.autocast(device.type, torch.bfloat16):
                loss = ddp(part).float().square().mean()
            scaler.scale(loss).backward()


def reload(ddp: Any, optimizer: Any) -> None:
    """What a checkpoint holds, through a file and back."""
    import torch

    with tempfile.NamedTemporaryFile() as file:
        torch.save({"model": ddp.state_dict(), "optimizer": optimizer.state_dict()}, file.name)
        for parameter in ddp.parameters():
            parameter.data.zero_()
        saved = torch.load(file.name, map_location="cpu", weights_only=True)
    ddp.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])


def Parallel(layers: Any, delayed: bool) -> Any:
    """The sum of all layers: gradients are sums of inputs, whole numbers.

    `delayed`: what computes them begins 20 ms after it was enqueued.
    """
    import torch
    from torch import nn

    class Delay(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, values: Any) -> Any:
            return values.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            torch.cuda._sleep(30_000_000)
            return gradient.clone()

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, inputs: Any) -> Any:
            outputs = [layer(inputs).sum(1) for layer in self.layers]
            return sum(Delay.apply(o) if delayed else o for o in outputs)

    return Sum()


# ---- The parts, one after the other ----


def run_part(name: str, arguments: argparse.Namespace, package: Path) -> Answer:
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
        said, errors = process.communicate(timeout=bound(PARTS[name]))
        answer: Answer = json.loads(said.splitlines()[-1])
    except subprocess.TimeoutExpired:
        answer = {"failed": [f"not done after {bound(PARTS[name]):g} s"]}
    except (ValueError, IndexError):
        answer = {"failed": [f"ended with {process.returncode}: {errors[-2000:]}"]}
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return answer | {"took_seconds": round(time.monotonic() - begun, 1)}


def one_part(name: str, place: str, package: Path) -> Answer:
    try:
        return globals()[name](place, package)
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
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.setdefault(PATIENCE, str(arguments.patience))
    os.environ.setdefault(WIDTH, "256" if arguments.place.startswith("cuda") else "24")
    if arguments.rank:
        print(json.dumps(rank_main(arguments.rank, arguments.place)), flush=True)
        return 0
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
        for name in [arguments.part] if arguments.part else PARTS:
            answers[name] = run_part(name, arguments, Path(folder))
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
