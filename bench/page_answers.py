"""What the page answers to a new operator, as pictures for docs/images.

A job on three sites is made to have what is asked about: masks in force, some steps in FULL as
its page advises, a link that became slow, a rank that all wait for, and a job that waits for a
site. Each answer is looked for on its screen, in words, and its part of the screen is kept.

    python -m bench.page_answers FOLDER
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cluster import pin, start_cluster
from bench.observe_faults import SLOW
from bench.observe_job import Relays, give, start_job, start_waiting, three_sites
from bench.page import DESK, Place, Visit, browser_context, take, wait_for_job
from bench.processes import Children, interrupt_on_signals
from bench.slow_relay import Rates

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


def savings(visit: Visit, pictures: Path, operator: Callable[..., None]) -> None:
    """Follows the page's own advice on how to measure FULL: `operator` says a word."""
    page = visit.open(f"#/job/{JOB}")
    note = page.locator("p.note", has_text="Counted since")
    visit.check("how FULL is measured", lambda: f"admin pin {JOB} FULL" in note.inner_text())
    operator("FULL")
    page.locator(".why", has_text="FULL").wait_for(timeout=PATIENCE_MS)
    page.get_by_text("Time is compared with the FULL steps").wait_for(timeout=PATIENCE_MS)
    operator(verb="unpin")
    page.locator(".why", has_text="COMPACTED").wait_for(timeout=PATIENCE_MS)
    saves = page.locator("dl.cards > div", has_text="Saves")
    saves.filter(has_text=re.compile(r"Saves\s*[1-9][\d.]* (s|min)$")).wait_for(timeout=PATIENCE_MS)
    visit.check("what it saves", lambda: "at least" not in saves.inner_text())
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


def what_is_kept(visit: Visit, pictures: Path) -> None:
    page = visit.open(f"#/job/{JOB}")
    keeps = page.locator("table", has_text="What each parameter keeps")
    visit.check("each parameter", lambda: "0.weight" in keeps.inner_text())
    visit.check("who told it", lambda: page.get_by_text("told by rank 0 at agent a0").count() == 1)
    keep(page, keeps, pictures, "keep", page.locator("table", has_text="Votes of ranks"))
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


def answer(pictures: Path) -> list[str]:
    """The checks that failed."""
    pictures.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="pactrain-answers-") as name,
        three_sites() as bed,
        Relays() as relays,
        Children(Path(name)) as daemons,
        Children(Path(name)) as trainers,
    ):
        cluster = start_cluster(bed, daemons, Path(name), bed.hosts[0], risk="exact",
                                relayed=relays.before, page=True)  # fmt: skip
        orders = Path(name) / "orders"
        start_job(bed, trainers, JOB, orders, cluster)
        start_waiting(trainers, WAITS, cluster.agents[0])
        assert cluster.page is not None
        place = Place(cluster.page)
        wait_for_job(place, JOB)
        with browser_context(place) as context:
            visit = Visit(context, place.root, pictures)
            mode_and_why(visit, pictures)
            savings(visit, pictures, partial(pin, bed, bed.hosts[0], cluster, None, JOB))
            votes_and_steps(visit, pictures)
            what_is_kept(visit, pictures)
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
