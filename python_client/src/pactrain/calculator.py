"""`pactrain bench`: what a step would take on given links, and what to use there.

Times the codec on this machine and predicts, by bytes on the busiest link, a step of
plain DDP and of what would take its place. A prediction of time alone: how many steps
each takes to the same accuracy is in docs/when-it-helps.md. What compressing costs is
counted of PacTrain alone.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ._abi import ADMIN
from ._library import code_levels
from .errors import PacTrainError

PAYLOAD_SHARE = 0.956  # Of a link's rate: the rest is headers.
FORWARD_SHARE = 1 / 3  # Of the compute: gradients come after that.
LEVELS7_BITS = 2.346  # Of an element in prefix codes.
PACKED_BITS = 32 / 11 + 16 / 256  # What agents send above PACKED_ABOVE_MBPS.
PACKED_ABOVE_MBPS = 400.0
LOCAL_STEPS = 30
LOCAL = f"local SGD, {LOCAL_STEPS} own steps, bf16"
BY_HAND = "by hand: sites first, bf16"
DGC_DENSITY = 0.001
DGC = f"DGC, density {DGC_DENSITY:g}, no warm-up"
# By rank, of DDP's bytes, at the shapes of ResNet18.
POWERSGD_SHARES = {1: 0.0041, 4: 0.0139}
MORE_LOCAL_STEPS = 3.0  # To the same accuracy: the most of two trainings that arrived.
KEEP_TRIED = 0.5  # What all trainings of docs/results.md bore.
LEAST_TRIED = 0.2  # Below that no network of images was trained.
MEASURED_MBPS = 1000.0  # Up to which steps were measured.
CLOSE_MBPS = 100.0  # Up to which they were near these predictions.
MOST_SLOWER = 7  # Times as long as these, measured above it.
WORTH = 1.05  # Plain DDP stays where nothing is faster by more.
FAR_FROM_COMPUTE = 3.0  # A step of so many times the compute still waits for links.
_ANSWER_SECONDS = 30
_BLOCK = 1 << 16
_BLOCKS = 32


@dataclass(frozen=True)
class Job:
    """`core`: each site has a link to a core without agents; else they are a chain."""

    elements: int
    sites: tuple[int, ...]
    rate_mbps: float  # Of the slowest link and direction.
    compute_seconds: float
    keep: float
    core: bool = False

    @property
    def crossings(self) -> float:
        """How often one sum crosses the busiest link. A core's root turns."""
        many = len(self.sites)
        return 1 + (many - 2) / many if self.core and many > 2 else 1.0

    @property
    def coded_sums(self) -> float:
        """Whole sums that the busiest site encodes or decodes in a step in levels."""
        many = len(self.sites)
        return 3 - 2 / many if self.core and many > 2 else 3.0


@dataclass(frozen=True)
class Candidate:
    name: str
    link_bytes: float
    step_seconds: float


def _powersgd(rank: int) -> str:
    return f"PowerSGD, rank {rank}, layers as ResNet18's"


def candidates(job: Job, encode_per_second: float) -> list[Candidate]:
    """Plain DDP first. `encode_per_second`: elements that one core encodes."""
    world = sum(job.sites)
    ring = 2 * (world - 1) / world * 4 * job.elements
    packed = job.rate_mbps > PACKED_ABOVE_MBPS
    bits = PACKED_BITS if packed else LEVELS7_BITS
    exact = job.crossings * 4 * job.elements

    def found(
        name: str, sent: float, coded: float = 0.0, beside: float = 1 - FORWARD_SHARE
    ) -> Candidate:
        """`beside`: the share of the compute with which the exchange overlaps."""
        on_link = sent * 8 / (PAYLOAD_SHARE * job.rate_mbps * 1e6)
        exchange = max(on_link, job.coded_sums * coded / encode_per_second)
        begun = (1 - beside) * job.compute_seconds
        return Candidate(name, sent, max(job.compute_seconds, begun + exchange))

    rows = [
        found("plain DDP", ring),
        found("DDP, fp16 hook", ring / 2),
        found(LOCAL, exact / 2 / LOCAL_STEPS, beside=0.0),  # Sites first, too.
        found(BY_HAND, exact / 2),
        found(DGC, 8 * DGC_DENSITY * (world - 1) * job.elements),
        *(
            found(_powersgd(rank), ring * share)
            for rank, share in POWERSGD_SHARES.items()
        ),
        found("PacTrain, FULL", exact),
        found("PacTrain, 7 levels, no mask", exact * bits / 32, job.elements),
    ]
    # Less than was tried is not advised: what was is shown beside it.
    for keep in sorted({job.keep, max(job.keep, KEEP_TRIED)} - {1.0}, reverse=True):
        rows += [
            found(f"PacTrain, exact, keep {keep:g}", exact * keep),
            found(
                f"PacTrain, 7 levels, keep {keep:g}",
                exact * keep * bits / 32,
                keep * job.elements,
            ),
        ]
    return rows


def advice(job: Job, rows: Sequence[Candidate]) -> str:
    """One line: what to use, and why."""
    ddp, fp16 = rows[:2]
    untried = f"keep {job.keep:g}" if job.keep < KEEP_TRIED else None
    ours = [row for row in rows if row.name.startswith("PacTrain")]
    tried = [row for row in ours if untried is None or not row.name.endswith(untried)]
    best = min(tried, key=lambda row: row.step_seconds)
    least = min(ours, key=lambda row: row.step_seconds)
    by_name = {row.name: row for row in rows}
    local, by_hand = by_name[LOCAL], by_name[BY_HAND]
    gain = ddp.step_seconds / best.step_seconds
    unmeasured = (
        f"; above {MEASURED_MBPS / 1e3:g} Gbps this is by formula, and in one cluster "
        "at 10 Gbps, on two processors, plain DDP was faster than 7 levels at keep "
        "0.5: time it first"
        if job.rate_mbps > MEASURED_MBPS
        else ""
    )
    slower = (
        f"; above {CLOSE_MBPS:g} Mbps steps in levels were measured up to "
        f"{MOST_SLOWER} times as long as this, on two processors: time it first"
        if CLOSE_MBPS < job.rate_mbps <= MEASURED_MBPS and "levels" in best.name
        else ""
    )
    if gain < WORTH:
        return (
            f"use plain DDP: the links carry its gradients in time; PacTrain would be "
            f"{gain:.2f} times as fast"
        )
    over_fp16 = fp16.step_seconds / best.step_seconds
    if over_fp16 < WORTH:
        return (
            "use DDP with torch's fp16 hook, which needs no agents: "
            f"{ddp.step_seconds / fp16.step_seconds:.1f} times as fast a step as plain "
            f"DDP; PacTrain would be {over_fp16:.2f} times as fast as the hook"
            f"{unmeasured}"
        )
    over_hand = by_hand.step_seconds / best.step_seconds
    if over_hand < WORTH:
        return (
            "use an all-reduce in bf16 that goes site by site, by hand with torch's "
            f"groups: {ddp.step_seconds / by_hand.step_seconds:.1f} times as fast a "
            f"step as plain DDP; PacTrain would be {over_hand:.2f} times as fast as "
            f"it{unmeasured}"
        )
    peers = {
        f"{name}{only}": best.step_seconds / by_name[name].step_seconds
        for name, only in (
            (DGC, " (SGD only)"),
            *((_powersgd(rank), "") for rank in POWERSGD_SHARES),
        )
    }
    faster = [name for name in peers if peers[name] >= 1 / WORTH]  # Or as fast.
    said = ", ".join(f"{name} {peers[name]:.1f} times as fast" for name in faster)
    first = (
        f"try first, if your training bears it, what needs no agents: {said} a step as "
        "PacTrain's; else "
        if faster and not unmeasured
        else ""
    )
    sooner = slower
    if faster and unmeasured:  # Where what compressing takes may outlast the links.
        sooner += f"; no longer steps either, if compressing took nothing: {said}"
    if untried and least is not best:
        sooner += (
            f"; masks that {untried} would make a step "
            f"{best.step_seconds / least.step_seconds:.1f} times as fast again, and "
            + (
                f"lose more: at {LEAST_TRIED:g} not all small trainings arrived, at "
                f"{KEEP_TRIED:g} all did"
                if job.keep >= LEAST_TRIED
                else f"below {LEAST_TRIED:g} no network of images was trained here"
            )
        )
    accuracy = (
        f"{unmeasured}; how many steps each takes to the same accuracy is in "
        "docs/when-it-helps.md"
    )
    late = best.step_seconds > FAR_FROM_COMPUTE * job.compute_seconds
    own_seconds = MORE_LOCAL_STEPS * local.step_seconds  # As far as one common step.
    if late and job.compute_seconds and own_seconds < best.step_seconds:
        return (
            f"{first}use local SGD if your training bears it: {LOCAL_STEPS} own steps "
            f"send less, even if they are {MORE_LOCAL_STEPS:g} times as many, the most "
            "of the two trainings of three here that arrived; else "
            f"{best.name}, whose step takes "
            f"{best.step_seconds / job.compute_seconds:.1f} times its compute{sooner}"
            f"{accuracy}"
        )
    unknown = (
        ""
        if job.compute_seconds
        else " (without --compute-ms, a step's compute; the longer that is, the less "
        "there is to gain)"
    )
    return (
        f"{first}use {best.name}: {gain:.1f} times as fast a step as plain DDP{unknown}"
        f"{sooner}{accuracy}"
    )


def encode_rate(now: Callable[[], float] = time.thread_time) -> float:
    """Elements per second that one core of this machine encodes in 7 levels.

    Raises:
      PacTrainError: the trainer library is missing.
    """
    values = np.random.default_rng(0).standard_normal(_BLOCK, np.float32)
    code_levels(7, 1, 0, values)  # The first call picks the kernels' variant.
    start = now()
    for key in range(_BLOCKS):
        code_levels(7, key, 0, values)
    return _BLOCK * _BLOCKS / (now() - start)


def slowest_mbps(answer: str) -> float:
    """Of `pactrain links --json`: the slowest direction's rate, headers included.

    Raises:
      ValueError: no direction was measured.
    """
    links = json.loads(answer)["links"]
    measured = [float(link["goodputBytesPerSecond"]) for link in links]
    rates = [rate * 8 / PAYLOAD_SHARE / 1e6 for rate in measured if rate > 0]
    if not rates:
        raise ValueError(
            "the coordinator knows no link's rate: no job runs over two sites, or it "
            "has just begun; give --rate-mbps"
        )
    return min(rates)


def ask_rate(coordinator: str) -> float:
    """Of the links that agents measured; empty: the coordinator of the variables.

    Raises:
      ValueError: it cannot be asked, or has none.
    """
    named = [f"--coordinator={coordinator}"] if coordinator else []
    try:
        done = subprocess.run(
            [ADMIN, "links", "--json", *named],
            check=False,
            capture_output=True,
            text=True,
            timeout=_ANSWER_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"{error}; give --rate-mbps") from error
    if done.returncode != 0:
        raise ValueError(f"{done.stderr.strip()}; or give --rate-mbps")
    return slowest_mbps(done.stdout)


def _sites(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[0-9]{1,4}(,[0-9]{1,4}){1,31}", text):
        raise argparse.ArgumentTypeError(
            f"'{text}', allowed: trainers of 2 to 32 sites, as 3,2,3; one cluster "
            "of four is 1,1,1,1 with --core"
        )
    counts = tuple(map(int, text.split(",")))
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"'{text}', allowed: at least 1 at each site")
    return counts


def _number(least: float, most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(
                f"'{text}', allowed: {least:g} to {most:g}"
            )
        return value

    return parse


def main(argv: Sequence[str]) -> int:
    """Prints a line per candidate and, last, what to use; the exit code."""
    parser = argparse.ArgumentParser(prog="pactrain bench", description=__doc__)
    parser.add_argument("--elements", type=_number(1, 2**31 - 1), required=True)
    parser.add_argument("--sites", type=_sites, required=True, help="as 3,2,3")
    parser.add_argument(
        "--rate-mbps",
        type=_number(0.1, 1e6),
        help="of the slowest link; default: what agents measured, by the coordinator",
    )
    parser.add_argument(
        "--coordinator",
        default="",
        metavar="HOST:PORT",
        help="that is asked; default, and keys, as for `pactrain links`",
    )
    parser.add_argument(
        "--compute-ms",
        type=_number(0, 1e7),
        default=0.0,
        help="that a step takes without an exchange; default: not known, as if none",
    )
    parser.add_argument(
        "--keep", type=_number(0.001, 1), default=0.5, help="share that masks keep"
    )
    parser.add_argument(
        "--core", action="store_true", help="sites meet in a core without agents"
    )
    options = parser.parse_args(argv)
    rate_mbps = options.rate_mbps
    if rate_mbps is None:
        try:
            rate_mbps = ask_rate(options.coordinator)
        except ValueError as error:
            parser.error(str(error))
        print(f"the slowest link that agents measured: {rate_mbps:.1f} Mbps")
    job = Job(
        int(options.elements),
        options.sites,
        rate_mbps,
        options.compute_ms / 1e3,
        options.keep,
        options.core,
    )
    try:
        rate = encode_rate()
    except PacTrainError as error:
        parser.error(str(error))
    print(f"one core here encodes {rate * 4e-9:.2f} GB/s of fp32 in 7 levels")
    rows = candidates(job, rate)
    print(f"{'':<40} {'MB on the link':>15} {'step, s':>10} {'of DDP':>9}")
    for row in rows:
        times = rows[0].step_seconds / row.step_seconds
        print(
            f"{row.name:<40} {row.link_bytes / 1e6:>15.3f} {row.step_seconds:>10.4f} "
            f"{times:>7.2f} x"
        )
    print(
        "Peers' compression is not counted: on few processors PowerSGD's steps were "
        "longer than those of 7 levels."
    )
    print(advice(job, rows))
    return 0
