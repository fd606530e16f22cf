"""Runs all scripts of scripts/table.py by torch alone and with PacTrain, and compares.

  scripts_check.py           all of them
  scripts_check.py NAME ...  only these

A line for each, a table, and as the last line one JSON object, also in
out/scripts-check.json. Exit status 0 only if each came out as the table says.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE), str(ROOT)]

import torch  # noqa: E402
from daemons import Cluster  # noqa: E402
from launcher import Launch, Rank, Talk  # noqa: E402
from scripts.place import JUDGES, Place  # noqa: E402
from scripts.table import SCRIPTS, Script  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import pactrain  # noqa: E402

OUT = ROOT / "out" / "scripts-check.json"


@dataclass
class Ended:
    """How one rank came out of a script in one way."""

    values: dict[str, Any] = field(default_factory=dict)
    error: str = ""  # The name of its class.
    text: str = ""
    typed: bool = False  # The error is one of ours.
    told: str = ""  # What was logged as a warning.
    mode: str = ""


@dataclass(frozen=True)
class Verdict:
    """`kind` is "works", "refused_in_words", "silent_difference" or "failed"."""

    kind: str
    text: str = ""
    expected: bool = True  # As the table says.


# In each rank.


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def run_ways(talk: Talk, script: Script, folder: str) -> dict[str, Ended]:
    """One way after another, first torch alone."""
    log = logging.getLogger("pactrain")
    log.setLevel(logging.INFO)
    log.propagate = False
    heard = _Warnings()
    log.addHandler(heard)
    ended: dict[str, Ended] = {}
    for way in ways_of(script):
        heard.lines.clear()
        place = Place(talk.rank, talk.world, way, Path(folder) / way)
        place.folder.mkdir(parents=True, exist_ok=True)
        ended[way] = _run_way(script, place)
        ended[way].told = "\n".join(heard.lines)
    return ended


def _run_way(script: Script, place: Place) -> Ended:
    ended = Ended()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        try:
            ended.values = dict(flat(script.run(place)))
            ended.mode = place.mode
        except Exception as error:
            ended.error, ended.text = type(error).__name__, str(error)
            ended.typed = isinstance(error, pactrain.PacTrainError)
        place.close()
    del caught
    return ended


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Models, tensors, numbers and containers of them as named values, tensors as numpy's."""
    if isinstance(value, nn.Module):
        value = dict(value.named_parameters())
    if isinstance(value, Tensor):
        yield name, value.detach().double().numpy().copy()
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}")
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            yield from flat(inner, f"{name}[{number}]")
    else:
        yield name, value


# In the process that checks.


def ways_of(script: Script) -> list[str]:
    if script.refused:  # Torch alone would wait for ever.
        return list(script.ways)
    return [way for ours in script.ways for way in (JUDGES[ours], ours)]


def check(cluster: Cluster, script: Script, folder: Path) -> Verdict:
    """Runs the script in all its ways, and judges."""
    ranks: list[Rank] = []
    for number, world in enumerate(script.worlds):
        environments = cluster.environments(world, cluster.new_job())
        store = folder / f"store-{number}"
        arguments = {"script": script, "folder": str(folder)}
        with Launch(run_ways, environments, store, arguments) as launched:
            try:
                ranks = launched.finish()
            except AssertionError as error:
                return Verdict("failed", f"{_errors(launched.ranks)}{error}", expected=False)
        dead = [rank for rank in ranks if rank.error]
        if dead:
            return Verdict("failed", f"{dead[0].error}: {dead[0].text}", expected=False)
    return judge(script, [rank.value for rank in ranks])


def _errors(ranks: Sequence[Rank]) -> str:
    """Of those that ended, one each line: who waits for them in vain does not say them."""
    return "".join(
        f"rank {number}, {way}: {end.error}: {end.text}\n"
        for number, rank in enumerate(ranks)
        for way, end in (rank.value or {}).items()
        if end.error
    )


def judge(script: Script, ranks: Sequence[Mapping[str, Ended]]) -> Verdict:
    """`ranks` has what came of each way at each rank. The worst way counts."""
    verdicts = [_judge_way(script, way, ranks) for way in script.ways]
    order = ("failed", "silent_difference", "refused_in_words", "works")
    return min(verdicts, key=lambda v: (v.expected, order.index(v.kind)))


def _judge_way(script: Script, way: str, ranks: Sequence[Mapping[str, Ended]]) -> Verdict:
    ours = [rank[way] for rank in ranks]
    said = "\n".join(end.told for end in ours)
    errors = [end for end in ours if end.error]
    for end in errors:
        known = script.refuses(end.text)
        # What happened, and what to do.
        if not known and not (end.typed and "\n" in end.text):
            return Verdict("failed", f"{way}: {end.error}: {end.text}", expected=False)
    if errors:
        known = any(script.refuses(end.text) for end in errors)
        return Verdict("refused_in_words", f"{way}: {errors[0].text}", known)
    if script.refused:
        return Verdict("silent_difference", f"{way}: ended without an error", expected=False)
    theirs = [rank[JUDGES[way]] for rank in ranks]
    if any(end.error for end in theirs):
        text = f"torch alone: {next(end.text for end in theirs if end.error)}"
        return Verdict("failed", text, expected=False)
    for rank, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        different = difference(a.values, b.values, script.same)
        if different:
            return Verdict("silent_difference", f"{way}, rank {rank}: {different}", expected=False)
    if script.told not in said:
        return Verdict("silent_difference", f"{way}: said only {said!r}", expected=False)
    modes = {end.mode for end in ours}
    if way.endswith("pruned") and any(not mode.startswith("COMPACTED") for mode in modes):
        return Verdict("failed", f"{way}: ended in {modes}", expected=False)
    return Verdict("works", said)


def difference(ours: Mapping[str, Any], theirs: Mapping[str, Any], same: str) -> str:
    """The first value that is not the same; empty if there is none."""
    if ours.keys() != theirs.keys():
        return f"has {sorted(ours)}, torch alone {sorted(theirs)}"
    for name, mine in ours.items():
        a, b = torch.as_tensor(mine), torch.as_tensor(theirs[name])
        if same == "zeros":
            a, b = a != 0, b != 0
        close = same == "close" and a.shape == b.shape and torch.allclose(a, b, 1e-4, 1e-6)
        if not close and not torch.equal(a, b):
            return f"{name} differs from that of torch alone"
    return ""


def count(verdicts: Sequence[Verdict]) -> dict[str, int]:
    kinds = Counter(verdict.kind for verdict in verdicts)
    return {
        "scripts": len(verdicts),
        "works": kinds["works"],
        "refused_in_words": kinds["refused_in_words"],
        "silent_differences": kinds["silent_difference"],
        "failed": kinds["failed"],
    }


def main(names: Sequence[str]) -> int:
    unknown = set(names) - {script.name for script in SCRIPTS}
    if unknown:
        print(f"unknown scripts: {sorted(unknown)}", file=sys.stderr)
        return 2
    chosen = [script for script in SCRIPTS if not names or script.name in names]
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="pactrain-e2e-") as folder:
        cluster = Cluster(Path(folder), sites=2)
        try:
            for number, script in enumerate(chosen, 1):
                start = time.monotonic()
                own = Path(folder) / script.name
                own.mkdir()
                verdicts.append(check(cluster, script, own))
                seconds = time.monotonic() - start
                print(
                    f"{number}/{len(chosen)} {script.name}: {said(verdicts[-1])} ({seconds:.1f} s)"
                )
                sys.stdout.flush()
        finally:
            cluster.stop()
    print()
    for script, verdict in zip(chosen, verdicts, strict=True):
        print(f"{script.name:30} {verdict.kind:18} {script.what}")
    counted = json.dumps(count(verdicts))
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(counted + "\n")
    print(counted)
    return 0 if all(verdict.expected for verdict in verdicts) else 1


def said(verdict: Verdict) -> str:
    if verdict.kind == "works":
        return "works"
    words = " ".join(verdict.text.split())
    text = f"{verdict.kind}: {words}"
    return text if verdict.expected else f"{text} - NOT AS THE TABLE SAYS"


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    for variable in [name for name in os.environ if name.startswith("PACTRAIN_")]:
        if not variable.startswith("PACTRAIN_TEST_"):
            del os.environ[variable]
    paths = [str(HERE), str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    sys.exit(main(sys.argv[1:]))
