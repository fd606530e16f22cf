"""The coordinator's page with 100 jobs and 1,000 agents, and an hour behind it, in a real Chromium.

The page is fed by `out/bin/fed_page`, whose cluster is made up and whose names are hostile. Each
screen is opened and left to itself for some messages. The last line is JSON: for each screen the
seconds until it shows, for how long the browser was busy in one go (0: below 50 ms), at first,
afterwards and with typing into the filter, and the largest message. Exit status 1: something is
not shown, or not as text.

    python -m bench.page_load [--messages N]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.cluster import BIN, READY_SECONDS
from bench.page import WAIT_MS, Place, Visit, appears, browser_context
from bench.processes import Children

if TYPE_CHECKING:
    from playwright.sync_api import Page

JOBS = 100
SHOWN_NAME = 100  # Characters: longer ones are cut.
# Counts messages and what they make the browser do, before the page's own script runs.
WATCH = """
window.seen = { messages: 0, bytes: 0, longest: 0 };
new PerformanceObserver((list) => {
  for (const task of list.getEntries()) seen.longest = Math.max(seen.longest, task.duration);
}).observe({ type: "longtask", buffered: true });
const Own = window.EventSource;
window.EventSource = class extends Own {
  constructor(...all) {
    super(...all);
    this.addEventListener("message", (event) => {
      seen.messages += 1;
      seen.bytes = Math.max(seen.bytes, event.data.length);
    });
  }
};
"""
# Playwright's own way to wait is eval(), which the page's policy forbids.
MORE = """([messages, patience]) => new Promise((done, failed) => {
  setTimeout(() => failed(new Error(`${seen.messages} of ${messages} messages came`)), patience);
  setInterval(() => { if (seen.messages >= messages) done(); }, 100);
})"""
TYPE = """(text) => {
  const box = document.getElementById("filter");
  const begin = performance.now();
  box.value = text;
  box.dispatchEvent(new Event("input"));
  document.body.offsetHeight;  // Laid out, too.
  return performance.now() - begin;
}"""


@contextmanager
def fed_page() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="pactrain-page-") as name, Children(Path(name)) as all_:
        child = all_.start("fed-page", [str(BIN / "fed_page")], {})
        line = child.wait_for("listening", READY_SECONDS)
        yield Place(line.split("page=")[1].strip())


def watch(page: Page, messages: int) -> dict[str, float]:
    """What the next messages cost."""
    first, busy = page.evaluate("[seen.bytes, seen.longest]")
    page.evaluate("seen.longest = 0; seen.bytes = 0; seen.messages = 0")
    page.evaluate(MORE, [messages, WAIT_MS])
    return {
        "first_message_kb": round(first / 1000),
        "longest_first_task_ms": round(busy),
        "next_message_kb": round(page.evaluate("seen.bytes") / 1000),
        "longest_task_ms": round(page.evaluate("seen.longest")),
        "heap_mb": round(page.evaluate("performance.memory.usedJSHeapSize") / 1e6),
    }


def measure(visit: Visit, path: str, messages: int) -> tuple[Page, dict[str, Any]]:
    begin = time.monotonic()
    page = visit.open(path)
    shown = {"shown_s": round(time.monotonic() - begin, 2)}
    return page, shown | watch(page, messages)


def jobs_screen(visit: Visit, messages: int) -> dict[str, Any]:
    page, costs = measure(visit, "", messages)
    rows = page.locator("table.jobs tbody tr")
    visit.check("all jobs are listed", lambda: rows.count() == JOBS)
    names = rows.locator("th a")
    visit.check("a hostile name is text", lambda: any("<img" in t for t in names.all_inner_texts()))
    visit.check(
        "a long name is cut", lambda: max(map(len, names.all_inner_texts())) <= SHOWN_NAME + 3
    )
    costs["filter_ms"] = round(max(page.evaluate(TYPE, text) for text in ("7", "job77", "")))
    visit.check("an empty filter shows all again", lambda: rows.count() == JOBS)
    visit.look(page, "load-jobs")
    names.filter(has_text="<img").first.click()
    heading = page.locator("h1", has_text="<img")
    visit.check("a hostile name leads to its job", lambda: appears(heading))
    page.close()
    return costs


def job_screen(visit: Visit, messages: int) -> dict[str, Any]:
    page, costs = measure(visit, "#/job/job77", messages)
    visit.check("an hour is drawn", lambda: page.locator("svg.chart path.line").count() >= 4)
    visit.look(page, "load-job")
    page.close()
    return costs


def links_screen(visit: Visit, messages: int) -> dict[str, Any]:
    page, costs = measure(visit, "#/links", messages)
    rows = page.locator("table", has_text="Links, fullest first").locator("tbody tr")
    visit.check("links are listed", lambda: rows.count() > 30)
    visit.look(page, "load-links")
    page.close()
    return costs


def warnings_screen(visit: Visit, messages: int) -> dict[str, Any]:
    page, costs = measure(visit, "#/warnings", messages)
    more = page.get_by_text(f"and {JOBS - 10} more")
    visit.check("not all of a hundred are listed", lambda: more.count() > 0)
    visit.look(page, "load-warnings")
    page.close()
    return costs


SCREENS = {
    "jobs": jobs_screen,
    "job": job_screen,
    "links": links_screen,
    "warnings": warnings_screen,
}


def check(messages: int, pictures: Path | None = None) -> tuple[Visit, dict[str, Any]]:
    """The visit, and what each screen cost."""
    with fed_page() as place, browser_context(place) as context:
        context.add_init_script(WATCH)
        visit = Visit(context, place.root, pictures)
        costs = {name: screen(visit, messages) for name, screen in SCREENS.items()}
        visit.check(f"no script failed: {visit.errors[:3]}", lambda: visit.errors == [])
        visit.check(
            "nothing is loaded from elsewhere",
            lambda: all(url.startswith(visit.root) and url[-2:] != "/x" for url in visit.loaded),
        )
    return visit, costs


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.page_load", description=__doc__)
    parser.add_argument("--messages", type=int, default=5, help="to look at each screen for")
    parser.add_argument("--pictures", type=Path)
    options = parser.parse_args(argv)
    visit, costs = check(options.messages, options.pictures)
    for line in visit.outcome.failed + visit.outcome.axe:
        print(f"  {line}")
    print(json.dumps({**visit.outcome.keys(), "screens": costs}))
    return 0 if visit.outcome.good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
