"""The page beside a real job: in a browser, for readers with and without a token."""

from __future__ import annotations

import json
import secrets
import ssl
import subprocess
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import page_scenarios
import pytest
from conftest import running
from daemons import Cluster
from patience import PATIENCE_SECONDS

from bench import page_load
from bench.cluster import certificates, start_cluster
from bench.observe_job import start_job, three_sites
from bench.page import Place, Visit, appears, browser_context, check_page, wait_for_job
from bench.processes import Children

TOKEN = "0123456789abcdef0123"


def status(place: Place, ca: Path | None = None) -> int:
    """Of the answer to who asks for the first screen."""
    try:
        with place.open("/", ca) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        assert "token as the password" in error.read().decode()
        return error.code


def token_file(folder: Path, token: str = TOKEN) -> Path:
    path = folder / "token"
    path.touch(0o600)
    path.write_text(token)
    return path


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Cluster]:
    """A coordinator whose page speaks TLS and asks for a token."""
    flags = ["--listen-page=127.0.0.1:0", f"--page-token-file={token_file(tmp_path)}"]
    with running(sites=0, coordinator_flags=flags, certified=True) as cluster:
        yield cluster


def refused(cluster: Cluster) -> str:
    """What the audit log has of the page's readers."""
    told = subprocess.run(
        cluster.admin("audit"), capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    return "\n".join(line for line in told.stdout.splitlines() if "page refused" in line)


def test_over_tls_a_wrong_token_is_in_the_audit_log(guarded: Cluster) -> None:
    page = guarded.coordinator.listening["page"]
    ca = guarded.pki / "ca.pem"
    assert status(Place(page, TOKEN), ca) == 200
    assert status(Place(page, "wrong"), ca) == 401
    with pytest.raises((OSError, ssl.SSLError)):
        status(Place(page))  # In plain text nothing is said.
    told = refused(guarded)
    assert len(told.splitlines()) == 1, told
    assert "wrong token" in told


@pytest.mark.nightly
def test_over_tls_a_browser_reads_and_its_first_try_is_no_refusal(guarded: Cluster) -> None:
    page = guarded.coordinator.listening["page"]
    with browser_context(Place(page, TOKEN)) as context:
        visit = Visit(context, f"https://{page}", None)
        shown = visit.open("")  # And the stream has come.
        assert "No job is known yet" in shown.locator("main").inner_text()
        assert not [error for error in visit.errors if "401" not in error]
    assert refused(guarded) == ""


def test_without_certificates_a_token_is_asked_for_as_well(tmp_path: Path) -> None:
    flags = ["--listen-page=127.0.0.1:0", f"--page-token-file={token_file(tmp_path)}"]
    with running(sites=0, coordinator_flags=flags) as cluster:
        assert status(Place(cluster.coordinator.listening["page"])) == 401


@pytest.mark.nightly
def test_hostile_names_stay_text_or_are_refused(launch) -> None:
    """Through a real job and a real coordinator, as a module is called in its script."""
    job = "j" * 63  # The longest that is allowed.
    with running(sites=2, coordinator_flags=["--listen-page=127.0.0.1:0"]) as cluster:
        place = Place(cluster.coordinator.listening["page"])
        for refused in ('<img src=/x onerror="alert(1)">', "a\nb", "j" * 64, "j" * (64 << 10)):
            ranks = launch(cluster, page_scenarios.attach_alone, world=1, job=refused).finish()
            assert ranks[0].error, ranks
        trained = launch(cluster, page_scenarios.hostile_names, job=job)
        trained.wait_said("trained")
        with browser_context(place) as context:
            visit = Visit(context, place.root, None)
            page = visit.open("")
            rows = page.locator("table.jobs tbody tr")
            visit.check("the job is there", lambda: appears(rows))
            visit.check("the refused are not there", lambda: rows.count() == 1)
            visit.look(page, "jobs")
            page = visit.open(f"#/job/{job}")
            name = page.get_by_text(f"most moved: {page_scenarios.HOSTILE}.weight")
            visit.check("the module's name is text", lambda: appears(name))
            visit.check("it is no picture", lambda: page.locator("main img").count() == 0)
            visit.look(page, "job")
            visit.check("it loads nothing", lambda: f"{place.root}/x" not in visit.loaded)
            visit.check(f"no script failed: {visit.errors[:3]}", lambda: visit.errors == [])
        trained.tell("end")
        trained.finish()
    assert visit.outcome.good, json.dumps([visit.outcome.failed, visit.outcome.axe], indent=1)


@pytest.mark.nightly
def test_a_job_of_one_site_is_not_advised_to_measure_what_it_cannot_spare(launch) -> None:
    with running(sites=1, coordinator_flags=["--listen-page=127.0.0.1:0"]) as cluster:
        place = Place(cluster.coordinator.listening["page"])
        trained = launch(cluster, page_scenarios.hostile_names, job="alone")
        trained.wait_said("trained")
        with browser_context(place) as context:
            visit = Visit(context, place.root, None)
            page = visit.open("#/job/alone")
            saves = page.locator("dl.cards > div", has_text="Saves")
            visit.check("it saves nothing", lambda: "it has one site" in saves.inner_text())
            note = page.locator("p.note", has_text="Counted since")
            visit.check("and why", lambda: "nothing to spare" in note.inner_text())
            visit.check("it is not advised to pin", lambda: " pin " not in note.inner_text())
        trained.tell("end")
        trained.finish()
    assert visit.outcome.good, visit.outcome.failed


@pytest.mark.nightly
def test_100_jobs_and_1000_agents_are_shown() -> None:
    visit, costs = page_load.check(messages=1)
    assert visit.outcome.good, json.dumps(
        [visit.outcome.failed, visit.outcome.axe, costs], indent=1
    )


@pytest.mark.nightly
def test_the_page_says_what_a_job_does_in_a_browser(tmp_path: Path) -> None:
    token, pki = secrets.token_hex(32), tmp_path / "pki"
    with (
        three_sites() as bed,
        Children(tmp_path) as daemons,
        Children(tmp_path) as trainers,
    ):
        certificates(bed, pki)
        cluster = start_cluster(bed, daemons, tmp_path, bed.hosts[0], pki=pki,
                                metrics_token=token_file(tmp_path, token), page=True)  # fmt: skip
        assert cluster.page is not None
        place = Place(cluster.page, token)
        start_job(bed, trainers, "train", tmp_path / "orders", cluster)
        wait_for_job(place, "train")
        outcome = check_page(place, "train")
    assert outcome.good, json.dumps([outcome.failed, outcome.axe], indent=1)
    assert outcome.checks > 15
