"""The pure parts of make bench-exchange: what it is asked, and what must cross a link."""

from __future__ import annotations

import math

import pytest

from bench.exchange import parse_options
from bench.exchange_layout import (
    all_gather_bytes,
    all_reduce_bytes,
    bound_seconds,
    model_shapes,
    parse_layout,
    parse_rate,
    powersgd_bytes,
    ring_crossings,
)
from bench.exchange_report import Rounds, link_share, make_row
from bench.exchange_rows import link_bytes
from bench.link_sampler import Sample, busy_seconds, parse

ELEMENTS = 5_586_981
CHAIN = parse_layout("3,2,3", "0-1,1-2", "")


@pytest.mark.parametrize(
    ("text", "mbps"), [("100mbit", 100), ("1gbit", 1000), ("0.5gbit", 500), ("800kbit", 0.8)]
)
def test_a_rate_has_a_unit(text: str, mbps: float) -> None:
    assert parse_rate(text) == pytest.approx(mbps)


@pytest.mark.parametrize("text", ["", "100", "mbit", "0mbit", "-1mbit", "100 mbit", "1e3mbit"])
def test_other_rates_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="RATE = "):
        parse_rate(text)


@pytest.mark.parametrize(
    ("sites", "links", "nodes", "named"),
    [
        ("8", "0-1", "", "SITES"),
        ("3,0", "0-1", "", "SITES"),
        ("60,60", "0-1", "", "SITES"),
        ("3,2,3", "", "", "LINKS"),
        ("3,2,3", "0-1", "", "LINKS"),
        ("3,2,3", "0-1,0-1", "", "LINKS"),
        ("3,2,3", "0-1,1-3", "", "LINKS"),
        ("1,1,1,1", "0-1,1-2,2-0", "", "LINKS"),
        ("3,2,3", "0-1,1-2", "5", "NODES"),
    ],
)
def test_what_is_no_tree_of_all_sites_is_refused(
    sites: str, links: str, nodes: str, named: str
) -> None:
    with pytest.raises(ValueError, match=f"{named} = "):
        parse_layout(sites, links, nodes)


def test_trainers_share_their_sites_node_or_have_one_each() -> None:
    assert CHAIN.ranks_per_host == [3, 2, 3]
    assert CHAIN.testbed_sites() == {"a": 1, "b": 1, "c": 1}
    own = parse_layout("3,2,3", "0-1,1-2", "8")
    assert own.ranks_per_host == [1] * 8
    assert own.testbed_sites() == {"a": 3, "b": 2, "c": 3}
    assert [(link.a, link.b) for link in own.testbed_links(100)] == [("a", "b"), ("b", "c")]


def test_a_ring_enters_a_site_once_for_each_time_it_passes_by() -> None:
    assert ring_crossings(CHAIN) == 1
    # 0 > 1 > 2 > 3 > 0 with 1 in the middle of a star passes its links in turn.
    assert ring_crossings(parse_layout("1,1,1,1", "1-0,1-2,1-3", "")) == 1
    # Sites 0 and 2 on one side: 0 > 1 > 2 > 3 crosses over again and again.
    assert ring_crossings(parse_layout("1,1,1,1", "0-2,2-1,1-3", "")) == 2


def test_bounds_are_those_of_exact_sums_and_rings() -> None:
    assert all_reduce_bytes(CHAIN, 4) == 7.0
    assert all_gather_bytes(CHAIN, 8) == 56.0
    assert link_bytes("full", CHAIN, ELEMENTS) == 4 * ELEMENTS
    assert link_bytes("compacted-0.5", CHAIN, ELEMENTS) == 2 * ELEMENTS
    assert link_bytes("levels7-0.2", CHAIN, ELEMENTS) / ELEMENTS == pytest.approx(0.0743, abs=1e-4)
    assert link_bytes("ddp-gloo", CHAIN, ELEMENTS) == 7 * ELEMENTS
    assert link_bytes("fp16", CHAIN, ELEMENTS) == 3.5 * ELEMENTS
    assert bound_seconds(4 * ELEMENTS, 100) == pytest.approx(1.870, abs=1e-3)


@pytest.mark.parametrize("elements", [1000, 12_345, ELEMENTS, 60_192_808])
def test_a_model_has_as_many_elements_as_were_asked_for(elements: int) -> None:
    assert sum(map(math.prod, model_shapes(elements))) == elements


def test_powersgd_sends_two_factors_of_each_matrix_and_vectors_whole() -> None:
    assert powersgd_bytes([(100, 20, 5), (7,)], rank=2) == 4 * (2 * 200 + 7)
    assert powersgd_bytes([(4, 4)], rank=1) == 4 * 16  # Not worth it.


def test_busy_is_from_a_steps_first_traffic_to_its_last() -> None:
    samples = [
        Sample(0.9, 1.0, (10,)),  # Too little: acknowledgements.
        Sample(1.0, 1.2, (1000,)),
        Sample(1.2, 1.4, (0,)),
        Sample(1.4, 1.6, (1000,)),
        Sample(2.3, 2.5, (1000,)),  # Of the next step.
    ]
    assert parse("[0.9, 1.0, 10]") == samples[0]
    assert busy_seconds(samples, 0, [0.5, 2.0], 1000) == pytest.approx(0.4)
    assert busy_seconds(samples, 0, [0.5, 2.0, 3.0], 1000) == pytest.approx(0.2)


def test_a_links_share_leaves_out_what_an_idle_link_sends_at_once() -> None:
    payload = 100e6 / 8 * 1448 / 1514  # A second's.
    burst = 32_000 * 1448 / 1514
    assert link_share(payload + burst, 1.0, 100) == pytest.approx(1.0)
    assert link_share(burst, 1.0, 100) == 0.0


def test_a_row_has_medians_of_its_rounds() -> None:
    rounds = Rounds()
    for seconds in (2.0, 9.0, 1.9):
        event = {"seconds": seconds, "cpu_seconds": 1.0, "times": [0.0, seconds],
                 "link_bytes": [4.0e6, 8.0e6]}  # fmt: skip
        samples = [Sample(0.0, 0.1, (0, 10**6)), Sample(seconds - 0.1, seconds, (0, 10**6))]
        rounds.add(event, samples, 100)
    row = make_row("full", rounds, CHAIN, 2_000_000, 100)
    assert row["seconds"] == 2.0
    assert row["link_bytes_per_element"] == [2.0, 4.0]
    assert row["bound_seconds"] == pytest.approx(0.669, abs=1e-3)
    assert row["link_share"] == pytest.approx(0.35, abs=0.01)


def test_options_come_from_variables_and_have_defaults() -> None:
    options = parse_options({"RATE": "1gbit", "ROWS": "full,ddp-gloo", "ROUNDS": "7", "STEPS": ""})
    assert (options.rate_mbps, options.rows, options.rounds) == (1000, ("full", "ddp-gloo"), 7)
    assert (options.elements, options.layout) == (ELEMENTS, CHAIN)
    for wrong in ({"ROWS": "full,best"}, {"ROUNDS": "0"}, {"ELEMENTS": "-5"}, {"STEPS": "x"}):
        with pytest.raises(ValueError, match="allowed"):
            parse_options(wrong)
