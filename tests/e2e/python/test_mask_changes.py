"""Pruning through real daemons: schedules, kinds and methods."""

from __future__ import annotations

import mask_scenarios
import pytest
from test_training import equal_digests, values


@pytest.mark.parametrize("kind", ["zero", "freeze"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_ten_mask_changes_in_a_running_job(cluster, launch, optimizer, kind):
    launched = launch(cluster, mask_scenarios.scheduled, world=4, optimizer=optimizer, kind=kind)
    results = values(launched.finish())
    equal_digests(results)
    for result in results:
        assert result["seen"] == results[0]["seen"]  # In force after the same steps.
        assert len(result["seen"]) == 10
        assert result["wrong"] == 0
        assert result["not_inside"] == 0
        assert result["layers"]["2.weight"] == result["layers"]["4.weight"] == 205
        # Compacted to compacted, and no step was lost or sent dense for it.
        assert result["full_after"] == 0
        assert result["stats"]["pactrain/dense_steps"] == 0
        assert result["stats"]["pactrain/failed_steps"] == 0
        assert result["stats"]["pactrain/steps"] == result["made"] == result["numbered"]
