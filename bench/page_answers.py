"""What the page answers to a new operator, as pictures for docs/images.

A job on three sites is made to have what is asked about: masks in force, a link that became
slow, a rank that all wait for, and a job that waits for a site. Each answer is looked for on its
screen, in words, and its part of the screen is kept.

    python -m bench.page_answers FOLDER
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cluster import Cluster, start_cluster
from bench.launch import start_trainers
from bench.observe_faults import SLOW, WAITING, give
from bench.page import DESK, Place, Visit, browser_context, take, wait_for_job
from bench.processes import Children, interrupt_on_signals
from bench.slow_relay import Rates, SlowRelay
from bench.testbed import Link, LoopbackTestbed

if TYPE_CHECKING:
    from playwright.sync_api import FloatRect, Locator, Page

JOB, WAITS = "train", "waits"
MARGIN = 16
PATIENCE_MS = 120_000  # Until a fault shows.


def keep(
    page: Page, last: Locator, pictures: Path, name: str, first: Locator | None = None
) -> None:
    """A picture of the screen from `first`, or its top, to the end of `last`."""
    last.wait_for(timeout=PATIENCE_MS)
    page.evaluate("window.scrollTo(0, 0)")
    end = last.bounding_box()
    begin = first.bounding_box() if first else {"y": 0.0}
    assert begin is not None and end is not None
    top = max(0.0, begin["y"] - MARGIN)
    height = end["y"] + end["height"] + MARGIN - top
    clip: FloatRect = {"x": 0, "y": top, "width": DESK["width"], "height": height}
    take(page, pictures / f"page-answer-{name}.png", clip)


def mode_and_why(visit: Visit, pictures: Path) -> None:
    page = visit.open(f"#/job/{JOB}")
    page.locator(".why", has_text="COMPACTED").wait_for(timeout=PATIENCE_MS)
    why = page.locator(".why + p")
    visit.check("why", lambda: "equal and settled at all" in why.inner_text())
    visit.check("since when", lambda: ", since " in page.locator(".why").inner_text())
    keep(page, page.locator("figure").first, pictures, "why")
    page.close()


def savings(visit: Visit, pictures: Path) -> None:
    page = visit.open(f"#/job/{JOB}")
    saves = page.locator("dl.cards > div", has_text="Saves")
    visit.check("what it saves", lambda: "not known" not in saves.inner_text())
    keep(page, page.locator("figure", has_text="Bytes a second"), pictures, "saves",
         page.locator("h2", has_text="What it saves"))  # fmt: skip
    page.close()


def votes_and_steps(visit: Visit, pictures: Path) -> None:
    page = visit.open(f"#/job/{JOB}")
    votes = page.locator("table", has_text="Votes of ranks").locator("tbody td")
    visit.check("who is for it", lambda: votes.all_inner_texts() == ["4", "0", "0", "0"])
    steps = page.locator("figure", has_text="A step, predicted and measured")
    visit.check("a step is predicted", lambda: "not known" not in steps.inner_text())
    keep(page, steps, pictures, "votes-steps", page.locator("h2", has_text="Masks"))
    page.close()


def slow_link(visit: Visit, pictures: Path) -> None:
    page = visit.open("#/links")
    found = page.locator(".findings li", has_text="Link slow").first
    found.wait_for(timeout=PATIENCE_MS)
    keep(page, page.locator(".findings"), pictures, "slow-link")
    visit.check("the slow link has a name", lambda: " b go " in found.inner_text())
    visit.check("and what to do", lambda: "What to do:" in found.inner_text())
    page.close()


def waited_for(visit: Visit, pictures: Path) -> None:
    page = visit.open(f"#/job/{JOB}")
    found = page.locator(".findings li", has_text="Straggler").first
    keep(page, found, pictures, "straggler")
    visit.check("who is waited for", lambda: "all wait for agent c0" in found.inner_text())
    visit.check("and what to do", lambda: "What to do:" in found.inner_text())
    page.close()
    page = visit.open(f"#/job/{WAITS}")
    found = page.locator(".findings li", has_text="Job waits").first
    keep(page, found, pictures, "job-waits")
    page.close()


@contextmanager
def three_sites(folder: Path) -> Iterator[tuple[LoopbackTestbed, Cluster, dict[str, SlowRelay]]]:
    links = [Link("a", "b", 100), Link("b", "c", 100)]
    relays: dict[str, SlowRelay] = {}

    def relayed(host: str, address: str) -> str:
        relays[host] = SlowRelay(address)
        return relays[host].address

    with LoopbackTestbed({"a": 2, "b": 1, "c": 1}, links) as bed, Children(folder) as daemons:
        yield (
            bed,
            start_cluster(
                bed, daemons, folder, bed.hosts[0], risk="exact", page=True, relayed=relayed
            ),
            relays,
        )


def answer(pictures: Path) -> list[str]:
    """The checks that failed."""
    pictures.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="pactrain-answers-") as name,
        three_sites(Path(name)) as (bed, cluster, relays),
        Children(Path(name)) as trainers,
    ):
        orders = Path(name) / "orders"
        give(orders, "train")
        argv = ["-m", "bench.observe_train", "--orders", str(orders)]
        start_trainers(bed, trainers, JOB, argv, [1] * 4, cluster)
        env = {"PACTRAIN_JOB_ID": WAITS, "PACTRAIN_SITE": "a", "PACTRAIN_SITES": "a:1,b:1",
               "OMP_NUM_THREADS": "1", **cluster.agents[0].trainer_env}  # fmt: skip
        trainers.start(WAITS, [sys.executable, "-c", WAITING], env)
        assert cluster.page is not None
        place = Place(cluster.page)
        wait_for_job(place, JOB)
        with browser_context(place) as context:
            visit = Visit(context, place.root, pictures)
            mode_and_why(visit, pictures)
            savings(visit, pictures)
            votes_and_steps(visit, pictures)
            relays["b0"].limit(Rates(SLOW, SLOW))
            slow_link(visit, pictures)
            relays["b0"].limit(Rates())
            give(orders, "straggle")
            waited_for(visit, pictures)
            visit.check(f"no script failed: {visit.errors[:3]}", lambda: visit.errors == [])
    return visit.outcome.failed


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.page_answers", description=__doc__)
    parser.add_argument("pictures", type=Path, metavar="FOLDER")
    interrupt_on_signals()
    failed = answer(parser.parse_args(argv).pictures)
    for line in failed:
        print(f"  {line}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
