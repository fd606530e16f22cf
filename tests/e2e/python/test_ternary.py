"""TERNARY through real daemons, chosen by the policy."""

from __future__ import annotations

import json
import subprocess

import pytest
import risk_scenarios
import scenarios
from patience import PATIENCE_SECONDS
from test_training import equal_digests, values


def test_ranks_in_three_sites_go_ternary_by_policy_and_end_equal(adaptive, launch):
    results = values(launch(adaptive, scenarios.until_ternary, world=6).finish())
    equal_digests(results)
    for result in results:
        assert result["mode"].startswith("TERNARY ")
        assert result["mode"].endswith(" levels")
        assert "of the batch" in result["reason"]
        assert result["outside"] == 0
        assert result["stats"]["pactrain/dense_steps"] == 0
        assert result["stats"]["pactrain/failed_steps"] == 0


def test_a_network_without_masks_goes_ternary_with_all_elements(adaptive, launch):
    results = values(launch(adaptive, scenarios.until_ternary, world=3, amount=0.0).finish())
    equal_digests(results)
    for result in results:
        assert result["mode"].startswith("TERNARY ")
        assert result["stats"]["pactrain/ratio"] == 1


def test_nan_reaches_every_rank_in_ternary(adaptive, launch):
    results = values(launch(adaptive, scenarios.nan_in_ternary, world=3).finish())
    for result in results:
        assert result["mode"].startswith("TERNARY ")
        assert result["nan"]


def test_what_an_operator_pins_travels_at_every_rank(cluster, launch):
    job = cluster.new_job()
    pin = cluster.admin("pin", job, "TERNARY", "--levels", "3")
    results = values(launch(cluster, scenarios.until_ternary, job=job, pin=pin).finish())
    equal_digests(results)
    for result in results:
        assert result["mode"] == "TERNARY 3 levels"
        assert result["reason"].endswith("pinned to TERNARY 3 levels by an operator")
    shown = subprocess.run(
        cluster.admin("--json", "job", job),
        check=True,
        capture_output=True,
        timeout=PATIENCE_SECONDS,
    )
    history = [decision["codec"] for decision in json.loads(shown.stdout)["history"]]
    assert history[0] == "CODEC_LEVELS3"
    assert "CODEC_FP32" in history


def test_the_risk_shown_is_that_of_the_trainers_gradients(adaptive, launch):
    job = adaptive.new_job()
    pin = adaptive.admin("pin", job, "TERNARY", "--levels", "5")
    show = adaptive.admin("--json", "job", job)
    launched = launch(
        adaptive, risk_scenarios.known_gradients, world=6, job=job, pin=pin, show=show
    )
    result = values(launched.finish())[0]
    assert result["risk"] == pytest.approx(result["true"], rel=0.12)
    assert 0 < result["riskClip"] < result["risk"]
