"""The page beside a real job: in a browser, and for readers with and without a token."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from daemons import Cluster

from bench.cluster import start_cluster
from bench.launch import start_trainers
from bench.page import check_page, wait_for_job
from bench.processes import Children
from bench.testbed import Link, LoopbackTestbed

TOKEN = "0123456789abcdef0123"


def ask(address: str, authorization: str | None = None) -> tuple[int, str]:
    """Status and text of the first screen."""
    request = urllib.request.Request(f"http://{address}/")
    if authorization is not None:
        request.add_header("Authorization", authorization)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_wrong_token_is_refused_and_in_the_audit_log(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text(TOKEN)
    flags = ["--listen-page=127.0.0.1:0", f"--page-token-file={token}"]
    cluster = Cluster(tmp_path, 0, coordinator_flags=flags)
    try:
        page = cluster.coordinator.listening["page"]
        assert ask(page)[0] == 401
        status, text = ask(page, "Bearer wrong")
        assert status == 401 and "token as the password" in text
        assert ask(page, f"Bearer {TOKEN}")[0] == 200
        shown = subprocess.run(cluster.admin("audit"), capture_output=True, text=True, timeout=30)
        assert shown.stdout.count("page refused") == 1, shown
        assert "wrong token" in shown.stdout
    finally:
        cluster.stop()


@pytest.mark.nightly
def test_the_page_says_what_a_job_does_in_a_browser(tmp_path: Path) -> None:
    links = [Link("a", "b", 100), Link("b", "c", 100)]
    orders = tmp_path / "orders"
    orders.write_text("train")
    with (
        LoopbackTestbed({"a": 2, "b": 1, "c": 1}, links) as bed,
        Children(tmp_path) as daemons,
        Children(tmp_path) as trainers,
    ):
        cluster = start_cluster(bed, daemons, tmp_path, bed.hosts[0], page=True)
        assert cluster.page is not None
        argv = ["-m", "bench.observe_train", "--orders", str(orders)]
        start_trainers(bed, trainers, "train", argv, [1] * 4, cluster)
        wait_for_job(cluster.page, "train")
        outcome = check_page(cluster.page, "train")
    assert outcome.good, json.dumps([outcome.failed, outcome.axe], indent=1)
    assert outcome.checks > 15
