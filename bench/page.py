"""The coordinator's page in a real Chromium: what it says, for whom, and whether it stays text.

Opens each screen of a page that is up, as `observe-check` has one: reads it, works it by keys,
looks for what axe-core finds (light, dark, as narrow as a telephone), and for anything loaded
from elsewhere. `python -m bench.page ADDRESS JOB [--pictures FOLDER]` does the same by hand;
with `--token-file FILE` over TLS.
The last line is JSON. Exit status 1: a check failed or axe found something.

Needs Debian's `chromium` and PyPI's `playwright` and `axe-playwright-python`.
"""

from __future__ import annotations

import argparse
import json
import ssl
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, FloatRect, Locator, Page, ViewportSize

CHROMIUM = "/usr/bin/chromium"
# Nothing of its own on the network, no sandbox where we are root.
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--no-first-run"]  # fmt: skip
DESK: ViewportSize = {"width": 1180, "height": 900}
TELEPHONE: ViewportSize = {"width": 390, "height": 844}
WAIT_MS = 30_000
MAX_PICTURE_BYTES = 150_000


@dataclass
class PageOutcome:
    checks: int = 0
    failed: list[str] = field(default_factory=list)
    axe: list[str] = field(default_factory=list)  # "screen: rule: which element".

    @property
    def good(self) -> bool:
        return not self.failed and not self.axe

    def keys(self) -> dict[str, Any]:
        """What the line of JSON has of the page."""
        return {"page_checks": self.checks, "page_failed": self.failed,
                "axe_violations": len(self.axe)}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where a page is: "host:port", and the token that it asks for over TLS."""

    address: str
    token: str | None = None

    @property
    def root(self) -> str:
        return f"{'http' if self.token is None else 'https'}://{self.address}"

    def open(self, path: str, ca: Path | None = None) -> Any:
        """What urllib opens; without `ca` whoever answers is believed."""
        request = urllib.request.Request(self.root + path)
        if self.token is None:
            return urllib.request.urlopen(request, timeout=30)
        request.add_header("Authorization", f"Bearer {self.token}")
        context = ssl.create_default_context(cafile=ca)
        context.check_hostname = False  # It is daemon.pactrain's.
        if ca is None:
            context.verify_mode = ssl.CERT_NONE
        return urllib.request.urlopen(request, timeout=30, context=context)


@contextmanager
def browser_context(place: Place, **options: Any) -> Iterator[BrowserContext]:
    """A Chromium that answers the page's prompt for a password as its user would."""
    from playwright.sync_api import sync_playwright

    if place.token is not None:
        options["http_credentials"] = {"username": "reader", "password": place.token}
        options["ignore_https_errors"] = True  # Its CA is ours.
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser.new_context(color_scheme="light", viewport=DESK, **options)
        browser.close()


class Visit:
    """One browser's visit to the page at `root`."""

    def __init__(self, context: BrowserContext, root: str, pictures: Path | None) -> None:
        self.context = context
        self.root = root
        self.pictures = pictures
        self.outcome = PageOutcome()
        self.loaded: set[str] = set()
        self.errors: list[str] = []

    def open(self, path: str) -> Page:
        """`path` as "#/links", once its first message has been shown."""
        page = self.context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("request", lambda request: self.loaded.add(request.url))
        page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", lambda dialog: self.errors.append(f"a dialog: {dialog.message}"))
        page.goto(f"{self.root}/{path}")
        page.wait_for_selector("main > [data-shown]")
        return page

    def check(self, what: str, test: Callable[[], bool]) -> None:
        self.outcome.checks += 1
        said = ""
        try:
            if test():
                return
        except Exception as error:  # Whatever Playwright says, the other checks go on.
            said = f" ({str(error).splitlines()[0]})"
        self.outcome.failed.append(what + said)

    def look(self, page: Page, name: str) -> None:
        """What axe-core finds, and pictures: light, dark, and on a telephone."""
        self.look_once(page, name)
        page.emulate_media(color_scheme="dark")
        self.look_once(page, f"{name}-dark")
        page.emulate_media(color_scheme="light")
        page.set_viewport_size(TELEPHONE)
        wide = page.evaluate("document.scrollingElement.scrollWidth - window.innerWidth")
        self.check(f"{name} fits a telephone", lambda: bool(wide <= 0))
        self.look_once(page, f"{name}-telephone")
        page.set_viewport_size(DESK)

    def look_once(self, page: Page, name: str) -> None:
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(page).response["violations"]
        self.outcome.axe += [f"{name}: {one['id']}: {one['nodes'][0]['target']}" for one in found]
        if self.pictures is not None:
            take(page, self.pictures / f"page-{name}.png")


def appears(wanted: Locator) -> bool:
    """Waits for the first of them: what the coordinator hears of shows within some seconds."""
    wanted.first.wait_for()
    return True


def take(page: Page, path: Path, clip: FloatRect | None = None) -> None:
    """A picture in few colours, so that it stays small; with `clip` of a part of the screen,
    also of what is below its end."""
    from PIL import Image

    page.screenshot(path=path, clip=clip, full_page=clip is not None)
    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(128, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
    size = path.stat().st_size
    if size > MAX_PICTURE_BYTES:
        raise ValueError(f"{path}: {size} bytes, allowed: {MAX_PICTURE_BYTES}")


def jobs_screen(visit: Visit, job: str) -> None:
    page = visit.open("")
    row = page.locator(f'tr:has(th a:text-is("{job}"))')
    visit.check("the job is listed", lambda: row.count() == 1)
    visit.check("it says what travels", lambda: has_mode(row.inner_text()))
    visit.check("it says what is saved", lambda: "B" in row.locator("td").nth(1).inner_text())
    visit.check("it says what is wrong", lambda: row.locator("td").last.inner_text() != "")
    visit.look(page, "jobs")
    page.fill("#filter", "no job is called so")
    visit.check("the filter hides it", lambda: row.count() == 0)
    page.fill("#filter", job)
    visit.check("the filter finds it", lambda: row.count() == 1)
    page.focus("#filter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    heading = page.locator("h1", has_text=job)

    visit.check("keys open the job", lambda: appears(heading) and "#/job/" in page.url)
    page.close()


def has_mode(text: str) -> bool:
    return any(mode in text for mode in ("FULL", "COMPACTED", "TERNARY"))


def job_screen(visit: Visit, job: str) -> None:
    page = visit.open(f"#/job/{job}")
    visit.check("why in words", lambda: page.locator(".why + p").inner_text().startswith("Why: "))
    modes = page.locator("table", has_text="Modes, newest first").locator("tbody tr")
    visit.check("the timeline has modes", lambda: has_mode(modes.first.inner_text()))
    visit.check(
        "each chart has its table",
        lambda: (
            page.locator("figure:has(figcaption)").count()
            == page.locator("figure:has(figcaption) details table").count()
            > 0
        ),
    )
    votes = page.locator("table", has_text="Votes of ranks").locator("tbody td")
    visit.check("votes are counted", lambda: sum(map(int, votes.all_inner_texts())) > 0)
    by_mode = page.locator("table", has_text="By mode").locator("tbody tr")
    visit.check(
        "a step is foretold",
        lambda: any(not text.endswith("not known") for text in by_mode.all_inner_texts()),
    )
    keeps = page.locator("table", has_text="What each parameter keeps").locator("tbody tr")
    visit.check("each parameter says what it keeps", lambda: "%" in keeps.first.inner_text())
    visit.check("as a bar, too", lambda: keeps.first.locator("svg.bar").count() == 1)
    agents = page.locator("table", has_text="Slowest agents").locator("tbody tr")
    visit.check("agents are named", lambda: agents.first.inner_text() != "")
    visit.check(
        "decisions have reasons",
        lambda: page.locator("table", has_text="Decisions, newest").locator("tbody tr").count() > 0,
    )
    page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
    page.locator("figure:has(details)").first.scroll_into_view_if_needed()
    visit.look_once(page, "job-tables")
    page.evaluate("for (const d of document.querySelectorAll('details')) d.open = false")
    page.evaluate("window.scrollTo(0, 0)")
    visit.look(page, "job")
    page.close()


# The second link began later, and its point at 18 is half a second late.
TWO_LINKS = """import("/charts.js").then(({ aligned }) => aligned(new Map([
  ["a", { at: [6, 12, 18], points: [1, 2, 3] }],
  ["b", { at: [18.5, 24], points: [4, 5] }]]), 6))"""
ALIGNED = {
    "at": [6, 12, 18, 24],
    "columns": {"a": [1, 2, 3, None], "b": [None, None, 4, 5]},
}


def links_screen(visit: Visit) -> None:
    page = visit.open("#/links")
    visit.check("sites are drawn", lambda: page.locator("circle.site").count() > 1)
    rows = page.locator("table", has_text="Links, fullest first").locator("tbody tr")
    visit.check("links have rates", lambda: "bit/s" in rows.first.inner_text())
    visit.check("two links' points share an axis", lambda: page.evaluate(TWO_LINKS) == ALIGNED)
    visit.check("the plan is in words", lambda: page.get_by_text("The plan in force:").count() == 1)
    visit.look(page, "links")
    page.close()


def warnings_screen(visit: Visit) -> None:
    page = visit.open("#/warnings")
    page.wait_for_selector("article")
    rules = json.loads(page.evaluate("fetch('/rules.json').then((r) => r.text())"))
    visit.check("each rule is shown", lambda: page.locator("article").count() == len(rules))
    visit.check(
        "each says what to do",
        lambda: all(rule["do"] in page.locator("main").inner_text() for rule in rules),
    )
    visit.look(page, "warnings")
    page.close()


def runbook_screen(visit: Visit, alert: str, address: str) -> None:
    """Who follows a fired alert's runbook_url stands before what to do."""
    page = visit.open(address.removeprefix(f"{visit.root}/"))
    rules = json.loads(page.evaluate("fetch('/rules.json').then((r) => r.text())"))
    to_do = next(rule["do"] for rule in rules if rule["name"] == alert)
    entry = page.locator("article:focus")
    visit.check(f"the runbook of {alert} is at {address}", lambda: to_do in entry.inner_text())
    page.close()


def opens(screen: Callable[[], None]) -> bool:
    screen()
    return True


def wait_for_job(place: Place, job: str, seconds: float = 120) -> None:
    """Until the page's charts of `job` have something to show. TimeoutError: they have not."""
    end = time.monotonic() + seconds
    sent: list[float] = []
    with place.open(f"/events?view=job&job={urllib.parse.quote(job)}") as stream:
        while time.monotonic() < end:
            line = stream.readline().decode()
            if not line.startswith("data: "):
                continue
            told = json.loads(line.removeprefix("data: "))
            sent += told.get("points", {}).get("wire", [])
            if sum(rate > 0 for rate in sent) >= 2 and told["job"]["mode"]:
                return
    raise TimeoutError(f"job {job}: sent nothing that the page shows for {seconds:.0f} s")


def check_page(
    place: Place,
    job: str,
    pictures: Path | None = None,
    runbooks: Mapping[str, str] = MappingProxyType({}),
) -> PageOutcome:
    """All checks of the page at `place`, where `job` runs and has switched at least once.

    `runbooks`: of alerts that were told of, the addresses that were told.
    """
    if pictures is not None:
        pictures.mkdir(parents=True, exist_ok=True)
    with browser_context(place) as context:
        visit = Visit(context, place.root, pictures)
        screens: dict[str, Callable[[], None]] = {
            "jobs": lambda: jobs_screen(visit, job),
            "job": lambda: job_screen(visit, job),
            "links": lambda: links_screen(visit),
            "warnings": lambda: warnings_screen(visit),
        }
        for name, screen in screens.items():
            # What a screen lacks is one of its checks, not the end of all.
            visit.check(f"{name} opens", partial(opens, screen))
        for alert, address in runbooks.items():
            follow = partial(runbook_screen, visit, alert, address)
            visit.check(f"the runbook of {alert} opens", partial(opens, follow))
        visit.check(
            "nothing is loaded from elsewhere",
            lambda: all(url.startswith(visit.root) for url in visit.loaded),
        )
        visit.check(f"no script failed: {visit.errors[:3]}", lambda: visit.errors == [])
    return visit.outcome


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.page", description=__doc__)
    parser.add_argument("address", help="host:port, as the coordinator's --listen-page")
    parser.add_argument("job")
    parser.add_argument("--token-file", type=Path, help="the coordinator's --page-token-file")
    parser.add_argument("--pictures", type=Path)
    options = parser.parse_args(argv)
    token = options.token_file.read_text().strip() if options.token_file else None
    place = Place(options.address, token)
    wait_for_job(place, options.job)
    outcome = check_page(place, options.job, options.pictures)
    for line in outcome.failed + outcome.axe:
        print(f"  {line}")
    print(json.dumps(outcome.keys()))
    return 0 if outcome.good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
