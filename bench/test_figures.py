"""Texts show what bench/results has, and what is measured is of a commit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import figure_blocks, figures, measure, results
from bench.figure_blocks import BLOCKS, Goal
from bench.figures import MarkerError, fill
from bench.results import ROOT, Measurement

FAKE = Measurement("fake", "fake_bench", "make fake", "fake.json", ("src",), short=("ROUNDS=1",))
PROGRAM = """
import os, sys
from pathlib import Path
Path("out").mkdir(exist_ok=True)
if "FAILS" not in os.environ:
    Path("out/fake.json").write_text('{"rounds": "%s"}' % os.environ.get("ROUNDS"))
if "COMMITS" in os.environ:
    path = os.environ["COMMITS"]
    Path(path).write_text("changed meanwhile")
    who = "git -c user.name=t -c user.email=t@localhost"
    os.system(f"git add {path} && {who} commit -qm meanwhile")
if "TOUCHES" in os.environ:
    Path("src/a.cc").write_text("changed meanwhile")
sys.exit(1)  # A goal is missed.
"""


def test_texts_show_what_was_measured() -> None:
    recorded = results.load(ROOT)
    for path in figures.texts(ROOT):
        text = path.read_text()
        assert text == fill(text, recorded), f"{path}: run make figures"
    source = figures.plot_source(ROOT)
    if source is not None:
        assert (ROOT / figures.PLOT).read_bytes() == source.read_bytes(), "run make figures"
        assert source.stat().st_size < 60_000


def test_readme_is_short() -> None:
    assert figures.words(ROOT) <= figures.MOST_README_WORDS


def test_every_block_is_in_a_text_once() -> None:
    """Two copies would be read as two figures, and a block that nobody shows is no use."""
    shown = [
        name for path in figures.texts(ROOT) for name in figures.OPEN.findall(path.read_text())
    ]
    assert sorted(shown) == sorted(set(shown))
    assert set(shown) == set(BLOCKS)


def test_every_result_is_of_a_measurement() -> None:
    assert set(results.load(ROOT)) <= {m.name for m in results.MEASUREMENTS}


@pytest.mark.parametrize("measurement", results.MEASUREMENTS, ids=lambda m: m.name)
def test_sources_are_there(measurement: Measurement) -> None:
    """A renamed file would never make its figures stale."""
    assert [path for path in measurement.sources if not (ROOT / path).exists()] == []


def test_make_runs_the_module_that_is_recorded() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for measurement in results.MEASUREMENTS:
        target = measurement.make.split()[1]
        assert re.search(rf"^{target}:.*(\n\t.*)*-m {measurement.module}$", makefile, re.M)


def test_blocks_are_filled_as_lines_and_within_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BLOCKS, "x", lambda _: "| new |")
    text = "a <!-- figures: x -->old<!-- end --> b\n<!-- figures: x -->\nold\nold\n<!-- end -->\n"
    filled = fill(text, {})
    assert filled == ("a <!-- figures: x -->| new |<!-- end --> b\n"
                      "<!-- figures: x -->\n| new |\n<!-- end -->\n")  # fmt: skip
    assert fill(filled, {}) == filled


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<!-- figures: nosuch -->\n<!-- end -->", "nosuch.*allowed: headline"),
        ("<!-- figures: tls -->\n", "no '<!-- end -->'"),
        ("<!-- figures: tls --><!-- figures: goals --><!-- end -->", "no '<!-- end -->'"),
    ],
)
def test_a_wrong_marker_is_named(text: str, words: str) -> None:
    with pytest.raises(MarkerError, match=words):
        fill(text, {})


def test_what_is_not_measured_says_how() -> None:
    assert BLOCKS["tls"]({}) == "not measured yet (`make measure ONLY=tls`)"


def test_goals_are_judged() -> None:
    def verdict(bound: str, *here: float | None) -> str:
        return Goal("text", bound, [1.0] * len(here), here).verdict()

    assert verdict("at least", 1.0, 1.1) == "met"
    assert verdict("at least", 1.1, 0.9) == "**missed**"
    assert verdict("at most", 1.1, 1.0) == "**missed**"
    assert verdict("at least", None, 1.0) == "met"
    assert verdict("at least", None) == "not measured"


def row(name: str, seconds: float) -> dict[str, Any]:
    return {
        "name": name,
        "seconds": seconds,
        "spread": {"median": seconds, "min": seconds / 2, "max": 2 * seconds, "n": 5},
        "bound_seconds": seconds / 1.02,
        "link_bytes_per_element": [1.0, 4.0],
        "link_share": 0.9,
        "cpu_seconds": 0.5,
        "stolen_seconds": 0.0,
        "nmse": 0.1,
        "bucket_bytes": [1 << 20, 1 << 21],
    }


def exchange_result(rate: str, one: float, default: float) -> dict[str, Any]:
    rows = [row(name, 0.5) for name in figure_blocks.TITLES]
    rows[0], rows[1] = row("ddp-gloo", one), row("ddp-default", default)
    agents = [{"memory_bytes": 2**20, "bound_bytes": 2**21}] * 3
    found = {"rate": rate, "elements": 10**6, "processors": 2, "rows": rows, "agents": agents,
             "raw_stream_share": 1.0}  # fmt: skip
    return {"figures": found, "commit": "c" * 10, "processor": "P"}


def test_the_exchange_table_has_medians_and_how_far_apart_rounds_were() -> None:
    rates = {f"exchange-{rate}": exchange_result(rate, 2.0, 3.0) for rate in figure_blocks.RATES}
    text = BLOCKS["exchange"](rates)
    assert "| DDP over Gloo, one bucket | 2.00 (1.00 to 4.00) |" in text
    assert BLOCKS["exchange-buckets"](rates) == "1.0 + 2.0 MiB by default, 1.0 + 2.0 MiB as one"


def test_speed_ups_are_over_the_faster_ddp() -> None:
    rates = {f"exchange-{rate}": exchange_result(rate, 2.0, 3.0) for rate in figure_blocks.RATES}
    run = {"seconds": 20.0, "accuracy": 0.6, "bucket_bytes": [1 << 20]}
    demo = {"figures": {"steps": 100, "ddp": run, "pactrain": run, "speedup": 1.0,
                        "speedup_ceiling": 2.0, "accuracy_gap": 0.0}}  # fmt: skip
    text = BLOCKS["headline"](rates | dict.fromkeys(figure_blocks.DEMOS, demo))
    assert "| FULL fp32, 100 Mbps | 3.00 | 2.00 | 0.500 | 4.00 x |" in text


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one source and one benchmark, which misses its goal."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    git(tmp_path, "init", "-q")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.cc").write_text("a")
    (tmp_path / ".gitignore").write_text("/out/\n__pycache__/\n")
    (tmp_path / "fake_bench.py").write_text(PROGRAM)
    commit(tmp_path)
    return tmp_path


def git(root: Path, *arguments: str) -> None:
    who = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    subprocess.run(["git", *who, *arguments], cwd=root, check=True, capture_output=True)


def commit(root: Path) -> None:
    git(root, "add", "-A")
    git(root, "commit", "-qm", "more")


def recorded(clone: Path) -> dict[str, Any]:
    return dict(results.load(clone)["fake"])


def test_figures_of_a_missed_goal_are_recorded_with_their_commit(clone: Path) -> None:
    assert measure.measure(clone, [FAKE], short=False) == 0
    found = recorded(clone)
    assert found["figures"] == {"rounds": os.environ.get("ROUNDS", "None")}
    assert (found["command"], found["sources"]) == ("make fake", ["src"])
    assert found["commit"] == results.commit_of(clone)  # Results are no change.
    assert "cores" in found["processor"] and found["memory"].endswith("GiB")


def test_a_short_run_says_so_by_its_command(clone: Path) -> None:
    assert measure.measure(clone, [FAKE], short=True) == 0
    assert recorded(clone)["figures"] == {"rounds": "1"}
    assert recorded(clone)["command"] == "ROUNDS=1 .venv/bin/python -m fake_bench"


def test_a_run_without_figures_fails(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (clone / "out").mkdir()
    (clone / "out" / "fake.json").write_text('{"of": "an earlier run"}')
    monkeypatch.setenv("FAILS", "1")
    assert measure.measure(clone, [FAKE], short=False) == 1
    assert results.load(clone) == {}


def test_what_no_commit_has_is_not_measured(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOUCHES", "1")
    assert measure.measure(clone, [FAKE], short=False) == 1
    assert "not those of the last commit: src/a.cc" in capfd.readouterr().err
    monkeypatch.delenv("TOUCHES")
    assert measure.measure(clone, [FAKE], short=False) == 1
    assert results.load(clone) == {}


@pytest.mark.parametrize(("path", "status"), [("README.md", 0), ("src/a.cc", 1)])
def test_only_texts_may_be_committed_meanwhile(
    clone: Path, monkeypatch: pytest.MonkeyPatch, path: str, status: int
) -> None:
    before = results.commit_of(clone)
    monkeypatch.setenv("COMMITS", path)
    assert measure.measure(clone, [FAKE], short=False) == status
    assert results.commit_of(clone) != before
    assert [found["commit"] for found in results.load(clone).values()] == [before] * (1 - status)


def test_a_result_is_stale_once_a_source_changes(clone: Path) -> None:
    measure.measure(clone, [FAKE], short=False)
    commit(clone)
    assert results.is_stale(clone, recorded(clone)) is False
    (clone / "src" / "a_test.cc").write_text("a test makes no figure stale")
    commit(clone)
    assert results.is_stale(clone, recorded(clone)) is False
    (clone / "src" / "a.cc").write_text("b")
    commit(clone)
    assert results.is_stale(clone, recorded(clone)) is True


def test_where_the_commit_is_not_known_neither_is_what_is_stale(
    clone: Path, tmp_path: Path
) -> None:
    measure.measure(clone, [FAKE], short=False)
    commit(clone)
    (clone / "README.md").write_text("two words")
    (clone / "docs").mkdir()
    commit(clone)
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{clone}", str(shallow))
    assert figures.summary(shallow, results.load(shallow)) == {
        "figures": 1, "stale": [], "unknown": ["fake"], "readme_words": 2,
    }  # fmt: skip


def test_only_what_is_asked_for() -> None:
    assert [m.name for m in measure.choose("tls,demo")] == ["demo-digits", "demo-cifar10", "tls"]
    assert [m.name for m in measure.choose("exchange-1gbit")] == ["exchange-1gbit"]
    assert len(measure.choose("")) == len(results.MEASUREMENTS)
    with pytest.raises(ValueError, match="ONLY has 'demos', allowed: bytes, demo, "):
        measure.choose("demos")


def test_figures_end_with_a_line_of_json() -> None:
    done = subprocess.run([sys.executable, "-c", LAST_LINE], cwd=ROOT, capture_output=True,
                          text=True, check=True)  # fmt: skip
    last = json.loads(done.stdout.splitlines()[-1])
    assert set(last) == {"figures", "stale", "unknown", "readme_words"}


LAST_LINE = """
from bench import figures
figures.write = lambda *_: None  # A test writes nothing into the tree.
figures.main([])
"""
