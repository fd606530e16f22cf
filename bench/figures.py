"""make figures: writes what bench/results has into README.md and docs/*.md.

A text has its figures between markers, as lines or within one:

    <!-- figures: kernels -->
    ...
    <!-- end -->

bench/figure_blocks.py makes what stands between them, so a figure is written down once. Also
writes docs/results.md and docs/when-it-helps.md (bench/evidence) and copies the demo's plot to
docs/images. Lists all figures with their commits, and ends with a line of JSON: `figures` (how
many files there are), `stale` (those whose sources have changed since), `unknown` (this clone
lacks their commit), `short` (of no full command, so no figures to publish) and `readme_words`.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from bench.evidence import losing, report
from bench.evidence.steps import refuse_own_results
from bench.figure_blocks import BLOCKS as MEASURED
from bench.figure_blocks import PLOTS, Results
from bench.results import FOLDER, ROOT, is_short, is_stale, load

MOST_README_WORDS = 700
OPEN = re.compile(r"<!-- figures: (\S+) -->")
BLOCK = re.compile(r"(<!-- figures: (\S+) -->)(\n?).*?(<!-- end -->)", re.DOTALL)
PLOT = Path("docs/images/demo.png")
BLOCKS = MEASURED | {"evidence": lambda _: losing.readme_words(report.read_evidence())}


class MarkerError(ValueError):
    """A marker of a text is wrong; says which, and what is allowed."""


def fill(text: str, results: Results) -> str:
    """The text with its figures. MarkerError: a block is unknown or has no end."""

    def block(found: re.Match[str]) -> str:
        opened, name, line, closed = found.groups()
        if name not in BLOCKS:
            raise MarkerError(f"marker 'figures: {name}', allowed: {', '.join(BLOCKS)}")
        return f"{opened}{line}{BLOCKS[name](results)}{line}{closed}"

    filled, count = BLOCK.subn(block, text)
    if count != len(OPEN.findall(text)):
        raise MarkerError("a marker 'figures: ...' has no '<!-- end -->' before the next one")
    return filled


def texts(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def words(root: Path) -> int:
    return len((root / "README.md").read_text().split())


def plot_source(root: Path, results: Results) -> Path | None:
    """Of the demo whose figures the texts name beside it."""
    name = next((name for name in PLOTS if name in results), None)
    return root / FOLDER / f"{name}.png" if name else None


def write(root: Path, results: Results) -> None:
    for path in texts(root):
        text = path.read_text()
        try:
            filled = fill(text, results)
        except MarkerError as error:
            raise MarkerError(f"{path.relative_to(root)}: {error}") from None
        if filled != text:
            path.write_text(filled)
            print(f"written: {path.relative_to(root)}")
    if root == ROOT:
        report.write_pages(report.read_all())
    if (source := plot_source(root, results)) is not None:
        (root / PLOT).parent.mkdir(exist_ok=True)
        shutil.copy(source, root / PLOT)


def summary(root: Path, results: Results) -> dict[str, object]:
    """What the last line says; prints the list."""
    stale = {name: is_stale(root, result) for name, result in results.items()}
    short = [name for name, result in results.items() if is_short(name, result)]
    said: Mapping[bool | None, str] = {True: "stale", False: "holds", None: "unknown"}
    for name, result in results.items():
        state = said[stale[name]] + (", short" if name in short else "")
        print(f"  {name:<18}{result['commit']:<12}{result['date']:<12}{state:<16}"
              f"{result['command']}")  # fmt: skip
    if None in stale.values():
        print("  unknown: this clone lacks the commit (a shallow clone, or history was rewritten)")
    if short:
        print("  short: not of the full command; make measure without QUICK measures them")
    return {
        "figures": len(results),
        "stale": [name for name, is_so in stale.items() if is_so],
        "unknown": [name for name, is_so in stale.items() if is_so is None],
        "short": short,
        "readme_words": words(root),
    }


def main(argv: list[str]) -> int:
    argparse.ArgumentParser(
        prog="bench.figures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args(argv)
    results = load(ROOT)
    try:
        refuse_own_results("README and docs have the committed ones; make report takes yours")
        write(ROOT, results)
    except (OSError, ValueError) as error:
        print(f"figures: {error}", file=sys.stderr)
        return 2
    print(json.dumps(summary(ROOT, results)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
