"""Topologies of one's own: what is refused, and by which name."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.topologies import read_topology


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{title: x, sites: [3, 2, 1], links: [{between: [0, 1]}]}", "one tree"),
        ("{title: x, sites: [3, 2], links: [{between: [0, 1], slow_direction: 2}]}", "slow_dir"),
        ("{title: x, sites: [3]}", "sites = "),
        ("{title: x, sites: [3, 2], links: 5}", "links = 5, allowed: a list"),
        ("{title: x, sites: [3, 2]}", "core = False and 0 links"),
        ("{title: x, sites: [3, 2], core: true, rate: 3}", "field 'rate'"),
        ("{title: x, sites: [3, 2], links: [{between: [0, 1], slow: 0.2}]}", "link 0 has field"),
        ("{title: x, sites: [3, 2], links: [{between: [0, 2]}]}", "between = 2, allowed: 0 to 1"),
        ("{title: x, sites: [3, 2], links: [{between: 1}]}", "between = 1, allowed: two sites"),
        ("{sites: [3, 2], core: true}", "no field 'title'"),
        ("{title: x, sites: 3, core: true}", "sites = 3"),
        ("{title: x, sites: [2, true], core: true}", "one of sites = True"),
        ("{title: x, sites: [2, 1.5], core: true}", "one of sites = 1.5"),
        ("{title: x, sites: [2, 2], core: 'no'}", "core = no"),
        ("{title: x, sites: [2, 2], core: true, rate_mbps: -100}", "rate_mbps = -100"),
        ("{title: x, sites: [2, 2], core: true, rate_mbps: .nan}", "rate_mbps = nan"),
        ("{title: x, sites: [2, 2], core: true, rate_mbps: 20000}", "allowed: 0.1 to 10000"),
        ("{title: x, sites: [40, 40], core: true}", "allowed: 64 trainers in all"),
        ("[1", "wrong.yaml is no YAML"),
        ("", "the file = None"),
    ],
)
def test_a_topology_that_is_wrong_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        read_topology(path)
