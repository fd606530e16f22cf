"""Texts show what bench/results has, and what is measured is of a commit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import exchange, figure_blocks, figures, measure, results
from bench.demo_report import GOAL_MODES
from bench.figure_blocks import Goal, short
from bench.figures import BLOCKS, MarkerError, fill
from bench.results import ROOT, Measurement

FAKE = Measurement("fake", "fake_bench", "make fake", "fake.json", ("src",), short=("ROUNDS=1",),
                   passed=("ROUNDS",))  # fmt: skip
PROGRAM = """
import json, os, signal, sys
from pathlib import Path
Path("out").mkdir(exist_ok=True)
if "FAILS" not in os.environ:
    found = {"rounds": os.environ.get("ROUNDS"), "rate": os.environ.get("RATE")}
    if "NETWORK" in os.environ:
        found["network"] = os.environ["NETWORK"]
    Path("out/fake.json").write_text(json.dumps(found))
if "STOPS" in os.environ:  # It is stopped when the one who measures is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(Path("out/stopped").touch()))
    os.kill(os.getppid(), signal.SIGTERM)
    signal.pause()
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
    source = figures.plot_source(ROOT, recorded)
    if source is not None:
        assert (ROOT / figures.PLOT).read_bytes() == source.read_bytes(), "run make figures"
        assert source.stat().st_size < 60_000


def test_readme_is_short() -> None:
    assert figures.words(ROOT) <= figures.MOST_README_WORDS


def test_readme_is_short_once_all_is_measured() -> None:
    text = fill((ROOT / "README.md").read_text(), everything())
    assert "not measured" not in text
    assert len(text.split()) <= figures.MOST_README_WORDS - 20


def test_every_block_is_in_a_text_once() -> None:
    """Two copies would be read as two figures, and a block that nobody shows is no use."""
    shown = [
        name for path in figures.texts(ROOT) for name in figures.OPEN.findall(path.read_text())
    ]
    assert sorted(shown) == sorted(set(shown))
    assert set(shown) == set(BLOCKS)


def test_every_result_is_of_a_measurement() -> None:
    assert set(results.load(ROOT)) <= {m.name for m in results.MEASUREMENTS}


def test_no_result_is_of_a_short_run() -> None:
    assert [name for name, r in results.load(ROOT).items() if results.is_short(name, r)] == []


@pytest.mark.parametrize("measurement", results.MEASUREMENTS, ids=lambda m: m.name)
def test_a_short_run_is_told_by_its_command(measurement: Measurement) -> None:
    def is_short(short: bool, **env: str) -> bool:
        return results.is_short(measurement.name, {"command": measurement.command(short, env)})

    assert not is_short(False)
    assert not is_short(False, ROUNDS="3")
    assert is_short(True) == bool(measurement.short)
    assert is_short(False, ROUNDS="1") == bool(measurement.passed)


@pytest.mark.parametrize("measurement", results.MEASUREMENTS, ids=lambda m: m.name)
def test_sources_are_there(measurement: Measurement) -> None:
    """A renamed file would never make its figures stale."""
    assert [path for path in measurement.sources if not (ROOT / path).exists()] == []


def test_sources_are_also_what_a_benchmark_imports_and_starts() -> None:
    sources = {m.name: m.sources for m in results.MEASUREMENTS}
    names = ("buckets", "closing", "cluster", "data", "demo", "demo_report", "demo_train", "launch",
             "model", "page_door", "pretrain", "processes", "progress", "spread",
             "testbed")  # fmt: skip
    demo = [path for path in sources["demo-digits"] if path.startswith("bench/")]
    assert demo == [f"bench/{name}.py" for name in names]
    assert {"bench/exchange_train.py", "bench/agent_memory.py", "bench/exchange_report.py",
            "bench/link_sampler.py"} <= set(sources["exchange-1gbit"])  # fmt: skip
    assert {"bench/tls_train.py", "bench/bytes_train.py"} <= set(sources["tls"])
    for paths in sources.values():
        assert {".bazelrc", "tools/packages", "tools/requirements.txt", "third_party"} <= set(paths)


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
    assert BLOCKS["demos"]({"demo-digits": demo_result("digits")}) == (
        "not measured yet (`make measure ONLY=demo-cifar10 PACTRAIN_DATA=folder`)"
    )


def test_three_digits_count() -> None:
    assert [short(n) for n in (0.09996, 9.996, 99.94, 99.96, 123.4)] == [
        "0.100", "10.0", "99.9", "100", "123",
    ]  # fmt: skip


def test_goals_are_judged() -> None:
    def verdict(bound: str, *here: float | None) -> str:
        return Goal("text", bound, [1.0] * len(here), here).verdict()

    assert verdict("at least", 1.0, 1.1) == "met"
    assert verdict("at least", 1.1, 0.9) == "**missed**"
    assert verdict("at most", 1.1, 1.0) == "**missed**"
    assert verdict("at least", None, 1.0) == "met"
    assert verdict("at least", None) == "not measured"


def test_the_demos_goals_are_all_judged() -> None:
    wanted = ", ".join(GOAL_MODES)
    line = f"| the demo's modes, scikit-learn's digits | {wanted} | {{}} |"
    assert line.format(f"{wanted} | met") in BLOCKS["goals"](everything())
    other = everything() | {"demo-digits": demo_result("digits", GOAL_MODES[:1])}
    assert line.format(f"{GOAL_MODES[0]} | **missed**") in BLOCKS["goals"](other)


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
    return {"figures": found}


def demo_result(data: str, modes: Sequence[str] = (*GOAL_MODES, GOAL_MODES[-1])) -> dict[str, Any]:
    run = {
        "seconds": 194.6,
        "seconds_per_step": {"median": 1.9, "min": 1.5, "max": 2.5, "n": 100},
        "seconds_to_accuracy": 174.9,
        "accuracy": 0.6494,
        "bucket_bytes": [5 << 20, 6 << 20],
        "link_bytes": [[10**9, 10**9]] * 2,
    }
    found = {
        "data": data,
        "steps": 100,
        "parameters": 3 * 10**6,
        "target_accuracy": 0.652,
        "ddp": run,
        "pactrain": run,
        "speedup": 12.54,
        "speedup_ceiling": 16.98,
        "accuracy_gap": 0.0011,
        "first_compacted_step": 1,
        "first_ternary_step": 5,
        "modes": [{"step": n, "mode": mode, "codec": "15 levels", "reason": "why"}
                  for n, mode in enumerate(modes)],
        "risk": 0.05,
    }  # fmt: skip
    return {"figures": found, "commit": "c" * 10, "command": "make demo", "date": "2026-11-24",
            "memory": "24 GiB",
            "processor": "AMD EPYC (family 26, model 2), 2 cores, AVX2 and AVX-512"}  # fmt: skip


def everything() -> dict[str, Any]:
    """As if all had been measured."""

    class Anything(dict[str, float]):
        def __missing__(self, key: str) -> float:
            return 1.0

    spread = {"median": 0.2, "min": 0.1, "max": 0.3, "n": 20}
    like: dict[str, Any] = demo_result("digits")
    return {
        "demo-digits": demo_result("digits"),
        "demo-cifar10": demo_result("cifar10"),
        **{f"exchange-{rate}": like | exchange_result(rate, 2.0, 3.0)
           for rate in figure_blocks.RATES},
        "bytes": like | {"figures": {"goal": 4.5, "worst_bytes_per_element": 4.2, "rows": []}},
        "tls": like | {"figures": {"goal": 0.15, "tls_cost": 0.04,
                                   "spread": {"plain": spread, "tls": spread, "cost": spread}}},
        "kernels": like | {"figures": Anything()},
    }  # fmt: skip


@pytest.mark.parametrize("name", BLOCKS)
def test_every_block_can_be_filled(name: str) -> None:
    assert "not measured yet" not in BLOCKS[name](everything())


def test_the_demos_excerpt_says_where_lines_are_left_out() -> None:
    lines = BLOCKS["demo-excerpt"](everything()).splitlines()
    assert lines.count("  ...") == 5 and "  goals:" in lines
    assert sum("met: " in line for line in lines) == 3


def test_figures_and_plot_are_of_the_same_demo(tmp_path: Path) -> None:
    digits = {"demo-digits": demo_result("digits")}
    assert figures.plot_source(tmp_path, digits) == tmp_path / "bench/results/demo-digits.png"
    assert "digits" in BLOCKS["plot"](digits)
    found = figures.plot_source(tmp_path, everything())
    assert found == tmp_path / "bench/results/demo-cifar10.png"
    assert "CIFAR-10" in BLOCKS["plot"](everything())
    assert figures.plot_source(tmp_path, {}) is None


def test_the_exchange_table_has_medians_and_how_far_apart_rounds_were() -> None:
    rates = {f"exchange-{rate}": exchange_result(rate, 2.0, 3.0) for rate in figure_blocks.RATES}
    text = BLOCKS["exchange"](rates)
    assert "| DDP over Gloo, one bucket | 2.00 (1.00 to 4.00) |" in text
    assert BLOCKS["exchange-buckets"](rates) == "1.0 + 2.0 MiB by default, 1.0 + 2.0 MiB as one"


def test_speed_ups_are_over_the_faster_ddp() -> None:
    rates = {f"exchange-{rate}": exchange_result(rate, 2.0, 3.0) for rate in figure_blocks.RATES}
    text = BLOCKS["headline"](rates)
    assert "| FULL fp32, 100 Mbps | 3.00 | 2.00 | 0.500 | 4.00 x |" in text


def test_only_rows_that_are_not_measured_are_left_out_of_the_headline() -> None:
    whole = everything()
    rows = BLOCKS["headline"](whole).splitlines()
    for name, word in (("exchange-100mbit", "100 Mbps"), ("exchange-1gbit", "1 Gbps")):
        left = BLOCKS["headline"]({n: r for n, r in whole.items() if n != name}).splitlines()
        assert left == [row for row in rows if word not in row] != rows
    assert "100 steps, CIFAR-10 |" in rows[2]
    digits = {"demo-digits": whole["demo-digits"]}
    assert len(BLOCKS["headline"](digits).splitlines()) == 3
    assert "commit cccccccccc" in BLOCKS["machine"](digits)
    assert (
        BLOCKS["headline"]({})
        == BLOCKS["machine"]({})
        == ("not measured yet (`make measure ONLY=demo-digits`)")
    )


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


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROUNDS", "RATE", "ONLY", "QUICK", "PACTRAIN_DATA"):
        monkeypatch.delenv(name, raising=False)


def test_figures_of_a_missed_goal_are_recorded_with_their_commit(clone: Path) -> None:
    assert measure.measure(clone, [FAKE], short=False) == 0
    found = recorded(clone)
    assert found["figures"] == {"rounds": None, "rate": None}
    assert (found["command"], found["sources"]) == ("make fake", ["src"])
    assert found["commit"] == results.commit_of(clone)  # Results are no change.
    assert "cores" in found["processor"] and found["memory"].endswith("GiB")


def test_a_short_run_says_so_by_its_command(clone: Path) -> None:
    assert measure.measure(clone, [FAKE], short=True) == 0
    assert recorded(clone)["figures"]["rounds"] == "1"
    assert recorded(clone)["command"] == "ROUNDS=1 .venv/bin/python -m fake_bench"


def test_the_callers_settings_are_recorded_or_do_not_count(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUNDS", "3")
    monkeypatch.setenv("RATE", "1gbit")
    assert measure.measure(clone, [FAKE], short=False) == 0
    assert recorded(clone)["figures"] == {"rounds": "3", "rate": None}
    assert recorded(clone)["command"] == "make fake ROUNDS=3"


def test_all_settings_of_the_exchange_are_kept_from_it() -> None:
    described = set(re.findall(r"\b([A-Z]{3,})=", str(exchange.__doc__)))
    assert {"RATE", "CONGESTION", "RTT"} <= described
    env = dict.fromkeys([*described, "KEEP", "PACTRAIN_RISK", "OMP_NUM_THREADS"], "1")
    measurement = measure.choose("exchange-1gbit")[0]
    stays = {"PATH": "p", "PACTRAIN_DATA": "d", "ROUNDS": "1"}
    assert measure.environment(measurement, env | stays) == stays


def test_a_demo_without_shaped_links_is_not_recorded(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NETWORK", "loopback")
    assert measure.measure(clone, [FAKE], short=False) == 1
    assert "was loopback, allowed: namespaces" in capfd.readouterr().err
    assert results.load(clone) == {}
    monkeypatch.setenv("NETWORK", "namespaces")
    assert measure.measure(clone, [FAKE], short=False) == 0


def test_without_a_plot_there_are_no_figures(clone: Path) -> None:
    assert measure.measure(clone, [replace(FAKE, plot="plot.png")], short=False) == 1
    assert results.load(clone) == {}


def test_whoever_stops_it_stops_the_benchmark(clone: Path) -> None:
    """Also as a background job of a shell, which has SIGINT ignored."""
    done = subprocess.run([sys.executable, "-c", STOPPED, str(clone)], cwd=ROOT, check=False,
                          env={**os.environ, "STOPS": "1"}, capture_output=True,
                          text=True, timeout=60)  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "measure: interrupted\n")
    assert (clone / "out" / "stopped").exists()
    assert results.load(clone) == {}


STOPPED = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.SIG_IGN)
from bench import measure
from bench.test_figures import FAKE
measure.ROOT = Path(sys.argv[1])
measure.choose = lambda *_: [FAKE]
sys.exit(measure.main([], {}))
"""


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
        "figures": 1, "stale": [], "unknown": ["fake"], "short": ["fake"], "readme_words": 2,
    }  # fmt: skip
    of_no_commit = recorded(clone) | {"commit": "0123456789"}
    assert results.is_stale(clone, of_no_commit) is None  # History was rewritten.


def test_only_what_is_asked_for() -> None:
    assert [m.name for m in measure.choose("tls,demo")] == ["demo-digits", "demo-cifar10", "tls"]
    assert [m.name for m in measure.choose("exchange-1gbit")] == ["exchange-1gbit"]
    assert len(measure.choose("")) == len(results.MEASUREMENTS)
    with pytest.raises(ValueError, match="ONLY has 'demos', allowed: bytes, demo, "):
        measure.choose("demos")


def test_without_its_data_a_demo_is_left_out_but_not_if_it_was_asked_for() -> None:
    assert [m.name for m in measure.choose("demo", has_data=False)] == ["demo-digits"]
    assert "demo-cifar10" not in [m.name for m in measure.choose("", has_data=False)]
    done = subprocess.run([sys.executable, "-m", "bench.measure"], cwd=ROOT, check=False,
                          env={**os.environ, "ONLY": "demo-cifar10"}, capture_output=True,
                          text=True)  # fmt: skip
    assert done.returncode == 2
    assert "make measure ONLY=demo-cifar10 PACTRAIN_DATA=folder" in done.stderr


def test_figures_end_with_a_line_of_json() -> None:
    done = subprocess.run([sys.executable, "-c", LAST_LINE], cwd=ROOT, capture_output=True,
                          text=True, check=True)  # fmt: skip
    last = json.loads(done.stdout.splitlines()[-1])
    assert set(last) == {"figures", "stale", "unknown", "short", "readme_words"}


LAST_LINE = """
from bench import figures
figures.write = lambda *_: None  # A test writes nothing into the tree.
figures.main([])
"""
