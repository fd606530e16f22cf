"""make measure: runs what README's and the docs' figures come from, and keeps it in bench/results.

    ONLY=demo,exchange-1gbit   these; default: all
    ROUNDS=3                   of each row of the exchange; the command that is kept says so
    QUICK=1                    short runs, to try this; the files say so by their command
    PACTRAIN_DATA=folder       CIFAR-10; without it that demo is left out, unless ONLY names it

No other setting of a benchmark reaches it from here. The files must be those of a
commit, before and after each run. All of it takes about 35 minutes on two cores: five rounds
of each row at three rates are half of that. Needs root for network namespaces. Prints a
line of JSON at its end; exit status 1 if something failed. A missed goal is recorded: it is no
failure. `make figures` then writes the figures into the texts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.processes import interrupt_on_signals
from bench.results import (
    FOLDER,
    MEASUREMENTS,
    ROOT,
    TEXTS,
    GitError,
    Measurement,
    commit_of,
    git,
    record,
)

# Whatever else changes what a benchmark does or how fast: figures are of its recorded command.
SETTINGS = ("CHECK", "CONGESTION", "ELEMENTS", "KEEP", "LINKS", "LOSS", "MEMORY", "NODES", "RATE",
            "ROUNDS", "ROWS", "RTT", "SITES", "STEPS", "TOPOLOGY")  # fmt: skip
PREFIXES = ("PACTRAIN_", "OMP_", "MKL_", "TORCH_", "GLOO_")
NO_SETTINGS = ("PACTRAIN_DATA", "PACTRAIN_BUILD_CACHE")


def choose(only: str, has_data: bool = True) -> list[Measurement]:
    """ValueError: a name is unknown, or what it needs is missing; says what is allowed."""
    there = [m for m in MEASUREMENTS if has_data or not m.needs_data]
    if not only:
        return there
    kinds = {m.name.split("-")[0] for m in MEASUREMENTS}
    allowed = sorted(kinds | {m.name for m in MEASUREMENTS})
    words = only.split(",")
    for word in words:
        if word not in allowed:
            raise ValueError(f"ONLY has '{word}', allowed: {', '.join(allowed)}")
        if word in {m.name for m in MEASUREMENTS if m not in there}:
            raise ValueError(
                f"ONLY has '{word}', but PACTRAIN_DATA is not set, allowed: the folder of its data:"
                f" make measure ONLY={only} PACTRAIN_DATA=folder"
            )
    return [m for m in there if m.name in words or m.name.split("-")[0] in words]


def environment(measurement: Measurement, env: Mapping[str, str]) -> dict[str, str]:
    """The caller's, without what changes the figures and not their recorded command."""
    return {
        name: value
        for name, value in env.items()
        if name in (*NO_SETTINGS, *measurement.passed)
        or not (name in SETTINGS or name.startswith(PREFIXES))
    }


def run(root: Path, measurement: Measurement, short: bool) -> None:
    """GitError: the figures would be of no commit. RuntimeError: there are none."""
    commit = commit_of(root)
    out = root / "out" / measurement.out
    out.unlink(missing_ok=True)  # What is there after it is of this run.
    more = measurement.short if short else ()
    variables = dict(word.split("=") for word in more if not word.startswith("-"))
    options = [word for word in more if word.startswith("-")]
    env = {**environment(measurement, os.environ), **measurement.env, **variables}
    with subprocess.Popen(
        [sys.executable, "-m", measurement.module, *options],
        cwd=root,
        env=env,
        start_new_session=True,  # Ctrl-C reaches us only, and we stop it.
    ) as child:
        try:
            status = child.wait()
        except KeyboardInterrupt:
            child.terminate()
            child.wait()  # It cleans up.
            raise
    if not out.exists():
        raise RuntimeError(f"ended with status {status} and without {out}")
    if git(root, "diff", "--name-only", commit, commit_of(root), "--", ".", *TEXTS):
        raise GitError("another commit was checked out meanwhile: measure again")
    found = json.loads(out.read_text())
    if found.get("network", "namespaces") != "namespaces":
        raise RuntimeError(f"its network was {found['network']}, allowed: namespaces (needs root)")
    if measurement.plot:  # First: no figures are without their plot.
        keep_small(root / "out" / measurement.plot, root / FOLDER / f"{measurement.name}.png")
    record(root, measurement, measurement.command(short, os.environ), commit, found)


def keep_small(plot: Path, target: Path) -> None:
    """A third of the bytes: lines and words need few colours."""
    from PIL import Image

    target.parent.mkdir(parents=True, exist_ok=True)
    with Image.open(plot) as image:
        image.convert("RGB").quantize(64).save(target, optimize=True)


def measure(root: Path, wanted: Sequence[Measurement], short: bool) -> int:
    seconds: dict[str, int] = {}
    failed: list[str] = []
    for number, measurement in enumerate(wanted, 1):
        print(
            f"== measure {number} of {len(wanted)}: {measurement.command(short, os.environ)}",
            flush=True,
        )
        start = time.monotonic()
        try:
            run(root, measurement, short)
        except (GitError, RuntimeError, OSError) as error:
            failed.append(measurement.name)
            print(f"== measure: {measurement.name} failed: {error}", file=sys.stderr)
        seconds[measurement.name] = round(time.monotonic() - start)
        print(f"== measure: {measurement.name} took {seconds[measurement.name]} s", flush=True)
    print(json.dumps({"seconds": seconds, "total": sum(seconds.values()), "failed": failed}))
    return 1 if failed else 0


def main(argv: list[str], env: Mapping[str, str]) -> int:
    argparse.ArgumentParser(
        prog="bench.measure",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args(argv)
    interrupt_on_signals()
    has_data = bool(env.get("PACTRAIN_DATA"))
    try:
        wanted = choose(env.get("ONLY", ""), has_data)
        commit_of(ROOT)
    except (ValueError, GitError) as error:
        print(f"measure: {error}", file=sys.stderr)
        return 2
    for left_out in choose(env.get("ONLY", "")):
        if left_out not in wanted:
            print(f"measure: without {left_out.name}: PACTRAIN_DATA is not set", flush=True)
    try:
        return measure(ROOT, wanted, env.get("QUICK") == "1")
    except KeyboardInterrupt:
        print("measure: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
