"""make measure: runs what README's and the docs' figures come from, and keeps it in bench/results.

    ONLY=demo,exchange-1gbit   these; default: all
    QUICK=1                    short runs, to try this; the files say so by their command

CIFAR-10 is left out where PACTRAIN_DATA does not name its folder. The files must be those of a
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


def choose(only: str) -> list[Measurement]:
    """ValueError: a name is unknown; says which there are."""
    if not only:
        return list(MEASUREMENTS)
    kinds = {m.name.split("-")[0] for m in MEASUREMENTS}
    allowed = sorted(kinds | {m.name for m in MEASUREMENTS})
    words = only.split(",")
    for word in words:
        if word not in allowed:
            raise ValueError(f"ONLY has '{word}', allowed: {', '.join(allowed)}")
    return [m for m in MEASUREMENTS if m.name in words or m.name.split("-")[0] in words]


def run(root: Path, measurement: Measurement, short: bool) -> None:
    """GitError: the figures would be of no commit. RuntimeError: there are none."""
    commit = commit_of(root)
    out = root / "out" / measurement.out
    out.unlink(missing_ok=True)  # What is there after it is of this run.
    more = measurement.short if short else ()
    variables = dict(word.split("=") for word in more if not word.startswith("-"))
    options = [word for word in more if word.startswith("-")]
    env = {**os.environ, **measurement.env, **variables}
    with subprocess.Popen(
        [sys.executable, "-m", measurement.module, *options], cwd=root, env=env
    ) as child:
        try:
            status = child.wait()
        except KeyboardInterrupt:
            child.wait()  # It stops by the same signal, and cleans up.
            raise
    if not out.exists():
        raise RuntimeError(f"ended with status {status} and without {out}")
    if git(root, "diff", "--name-only", commit, commit_of(root), "--", ".", *TEXTS):
        raise GitError("another commit was checked out meanwhile: measure again")
    record(root, measurement, short, commit, json.loads(out.read_text()))
    if measurement.plot:
        keep_small(root / "out" / measurement.plot, root / FOLDER / f"{measurement.name}.png")


def keep_small(plot: Path, target: Path) -> None:
    """A third of the bytes: lines and words need few colours."""
    from PIL import Image

    with Image.open(plot) as image:
        image.convert("RGB").quantize(64).save(target, optimize=True)


def measure(root: Path, wanted: Sequence[Measurement], short: bool) -> int:
    seconds: dict[str, int] = {}
    failed: list[str] = []
    for number, measurement in enumerate(wanted, 1):
        print(f"== measure {number} of {len(wanted)}: {measurement.command(short)}", flush=True)
        start = time.monotonic()
        try:
            run(root, measurement, short)
        except (GitError, RuntimeError) as error:
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
    try:
        wanted = choose(env.get("ONLY", ""))
        commit_of(ROOT)
    except (ValueError, GitError) as error:
        print(f"measure: {error}", file=sys.stderr)
        return 2
    if not env.get("PACTRAIN_DATA"):
        for left_out in [m for m in wanted if m.needs_data]:
            print(f"measure: without {left_out.name}: PACTRAIN_DATA is not set", flush=True)
            wanted.remove(left_out)
    try:
        return measure(ROOT, wanted, env.get("QUICK") == "1")
    except KeyboardInterrupt:
        print("measure: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
