"""The pure parts of make bench-exchange: what it is asked, and what must cross a link."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from bench.agent_memory import MIB, Memory, batches, bound_bytes
from bench.agent_memory import parse as parse_memory
from bench.cluster import ROOT
from bench.exchange import (
    Measured,
    direction_rates,
    far_site,
    make_result,
    parse_options,
    silent_seconds,
)
from bench.exchange_layout import (
    all_gather_bytes,
    all_reduce_bytes,
    bound_seconds,
    diameter,
    model_shapes,
    one_way_ms,
    parse_layout,
    parse_loss,
    parse_rate,
    parse_rtt,
    powersgd_bytes,
    ring_crossings,
)
from bench.exchange_report import Rounds, busiest_share, link_share, make_row
from bench.exchange_rows import OURS, ROWS, link_bytes
from bench.link_sampler import Sample, busy_seconds, parse

ELEMENTS = 5_586_981
CHAIN = parse_layout("3,2,3", "0-1,1-2", "")


@pytest.mark.parametrize(
    ("text", "mbps"), [("100mbit", 100), ("1gbit", 1000), ("0.5gbit", 500), ("800kbit", 0.8)]
)
def test_a_rate_has_a_unit(text: str, mbps: float) -> None:
    assert parse_rate(text) == pytest.approx(mbps)


@pytest.mark.parametrize(
    "text",
    ["", "100", "mbit", "0mbit", "-1mbit", "100 mbit", "1e3mbit", "99kbit", "11gbit", "¹mbit"],
)
def test_other_rates_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="RATE = "):
        parse_rate(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ELEMENTS", "²"),
        ("ELEMENTS", "999"),
        ("ELEMENTS", "9" * 5000),
        ("ROUNDS", "0"),
        ("STEPS", "-1"),
        ("ROWS", "full,nonsense"),
        ("ROWS", "full,levels7-0.5,full"),
        ("CONGESTION", "nosuch"),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"{name} .*allowed"):
        parse_options({name: value})


def test_a_topology_brings_its_links_and_rates() -> None:
    star = parse_options({"TOPOLOGY": "star", "ROWS": "full"})
    assert star.layout.testbed_sites() == {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "core": 0}
    assert [(k.a, k.b) for k in star.layout.testbed_links(9)][1:2] == [("b", "core")]
    assert far_site(star.layout) == 1
    slow = parse_options({"TOPOLOGY": "asymmetric", "ROWS": "full"})
    assert direction_rates(slow) == pytest.approx([20, 100])
    assert parse_options({"TOPOLOGY": "cluster"}).rate_mbps == 10_000
    for wrong in ({"TOPOLOGY": "ring"}, {"TOPOLOGY": "star", "SITES": "3,3"}):
        with pytest.raises(ValueError, match=r"(TOPOLOGY|SITES) = .*allowed"):
            parse_options(wrong)


def test_on_a_core_each_sum_crosses_a_link_more_than_once() -> None:
    star = parse_options({"TOPOLOGY": "star"}).layout
    assert link_bytes("full", star, 1000) == pytest.approx(1.6 * 4000)
    assert ring_crossings(star) == 1


def test_a_slow_row_may_be_silent_for_its_round() -> None:
    fast = silent_seconds(parse_options({"ROWS": "full"}))
    slow = silent_seconds(parse_options({"ROWS": "full,ddp-gloo", "RATE": "1mbit", "STEPS": "9"}))
    assert fast == pytest.approx(120 + 6 * 1.87, abs=0.1)
    assert slow == pytest.approx(120 + 30 * 327.1, abs=1)
    far = silent_seconds(parse_options({"ROWS": "full", "RTT": "1000ms", "STEPS": "2"}))
    assert far == pytest.approx(120 + (3 * 1.87 + 20) * 3, abs=0.1)
    # Mathis: sqrt(1.5 / 0.06) = 5 segments a second are 57.9 kbit/s.
    lossy = {"ROWS": "full", "RTT": "1000ms", "STEPS": "2", "LOSS": "6%"}
    link_bytes_of_full = 4 * ELEMENTS
    assert silent_seconds(parse_options(lossy)) == pytest.approx(
        120 + (3 * link_bytes_of_full * 8 / (57.92e3 * 1448 / 1514) + 20) * 3, rel=1e-3
    )
    some_steps = silent_seconds(parse_options({"ROWS": "full", "RTT": "100ms"}))
    assert some_steps == pytest.approx(120 + (3 * 1.87 + 2) * 21, abs=0.3)


@pytest.mark.parametrize("text", ["20", "-1ms", "1001ms", "1s", "ms"])
def test_a_round_trip_is_in_milliseconds(text: str) -> None:
    assert (parse_rtt("20ms"), parse_rtt("0.5ms"), parse_rtt("")) == (20.0, 0.5, 0.0)
    with pytest.raises(ValueError, match="RTT = "):
        parse_rtt(text)


@pytest.mark.parametrize("text", ["20", "-1%", "10.1%", "0.002", "%"])
def test_a_loss_is_in_percent(text: str) -> None:
    assert (parse_loss("0.2%"), parse_loss("10%"), parse_loss("")) == (0.002, 0.1, 0.0)
    with pytest.raises(ValueError, match="LOSS = "):
        parse_loss(text)


def test_links_share_the_way_between_the_farthest_sites() -> None:
    assert one_way_ms(CHAIN, 20) == 5.0
    star = parse_layout("1,1,1,1", "1-0,1-2,1-3", "")
    assert diameter(star) == 2
    assert one_way_ms(parse_layout("1,1,1,1", "2-0,2-3,3-1", ""), 60) == 10.0
    assert one_way_ms(parse_layout("4,4", "0-1", ""), 50) == 25.0


@pytest.mark.parametrize(
    ("sites", "links", "nodes", "named"),
    [
        ("8", "0-1", "", "SITES"),
        ("3,0", "0-1", "", "SITES"),
        ("60,60", "0-1", "", "SITES"),
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
    assert parse_layout("3,2,3", "", "8") == own
    assert parse_layout("3,2", "", "").links == ((0, 1),)
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
    assert link_bytes("levels7-0.2", CHAIN, ELEMENTS) / ELEMENTS == pytest.approx(0.0587, abs=1e-4)
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


def test_the_sampler_says_something_also_of_an_idle_link() -> None:
    argv = [sys.executable, "-m", "bench.link_sampler", "lo"]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as sampler:
        assert sampler.stdout is not None
        samples = [parse(sampler.stdout.readline()) for _ in range(3)]
        sampler.kill()
    ends = [sample.until for sample in samples]
    assert ends == sorted(ends)
    assert all(sample.since < sample.until and len(sample.sent) == 1 for sample in samples[1:])


def test_a_links_share_leaves_out_what_an_idle_link_sends_at_once() -> None:
    payload = 100e6 / 8 * 1448 / 1514  # A second's.
    burst = 32_000 * 1448 / 1514
    assert link_share(payload + burst, 1.0, 100) == pytest.approx(1.0)
    assert link_share(burst, 1.0, 100) == 0.0


def test_a_row_has_medians_of_its_rounds() -> None:
    rounds = Rounds()
    for seconds in (2.0, 9.0, 1.9):
        event = {"seconds": seconds, "cpu_seconds": 1.0, "machine_cpu_seconds": 1.5,
                 "stolen_seconds": seconds / 10, "times": [0.0, seconds],
                 "link_bytes": [4.0e6, 8.0e6, 8.0e6, 0.0]}  # fmt: skip
        samples = [Sample(0.0, 0.1, (0, 10**6, 10**6, 0)),
                   Sample(0.9, 1.0, (0, 0, 10**6, 0)),
                   Sample(seconds - 0.1, seconds, (0, 10**6, 0, 0))]  # fmt: skip
        rounds.add(event, samples, [100] * 4)
    row = make_row("full", rounds, CHAIN, 2_000_000, 100)
    assert (row["seconds"], row["stolen_seconds"]) == (2.0, 0.2)
    assert row["spread"] == {"median": 2.0, "min": 1.9, "max": 9.0, "n": 3}
    assert row["link_bytes_per_element"] == [2.0, 4.0, 4.0, 0.0]
    assert row["bound_seconds"] == pytest.approx(0.669, abs=1e-3)
    assert row["link_shares"] == pytest.approx([0.0, 0.35, 0.74, 0.0], abs=0.01)
    # Of the two that carry most.
    assert row["link_share"] == pytest.approx((0.35 + 0.74) / 2, abs=0.01)


def test_directions_within_a_hundredth_of_the_most_are_the_busiest() -> None:
    assert busiest_share([99.0, 100.0, 98.9], [0.8, 0.9, 0.1]) == pytest.approx(0.85)


def test_options_come_from_variables_and_have_defaults() -> None:
    options = parse_options({"RATE": "1gbit", "ROWS": "full,ddp-gloo", "ROUNDS": "7", "STEPS": ""})
    assert (options.rate_mbps, options.rows, options.rounds) == (1000, ("full", "ddp-gloo"), 7)
    assert (options.elements, options.layout) == (ELEMENTS, CHAIN)
    for wrong in ({"ROWS": "full,best"}, {"ROUNDS": "0"}, {"ELEMENTS": "-5"}, {"STEPS": "x"},
                  {"LOSS": "1%"}):  # fmt: skip
        with pytest.raises(ValueError, match="allowed"):
            parse_options(wrong)


def one_round(seconds: float) -> Rounds:
    return Rounds([seconds], [1.0], [1.5], [0.1], [[4.0e6, 8.0e6] * 2], [[seconds] * 4])


def test_a_round_trip_may_add_so_much_and_a_share_of_the_step() -> None:
    options = parse_options({"ROWS": "full", "RTT": "20ms", "LOSS": "0.1%"})
    measured = Measured({"full": one_round(2.0)}, {"full": one_round(2.025)}, raw=[1e7],
                        with_bbr=[4, 5, 0])  # fmt: skip
    result = make_result(options, measured)
    assert (result["rtt_ms"], result["loss_share"]) == (20, 0.001)
    assert result["bbr_connections"] == [4, 5, 0]
    row = result["rows"][0]
    assert row["rtt_ratio"] == pytest.approx(1.0125)
    assert row["rtt_ms_above"] == pytest.approx(25)
    assert row["rtt_goal_ms_above"] == pytest.approx(30 + 100)


def test_without_them_no_row_has_a_round_trip_or_an_error() -> None:
    measured = Measured({"full": one_round(2.0)}, raw=[1e7])
    result = make_result(parse_options({"ROWS": "full"}), measured)
    assert set(result) == {"rate", "elements", "sites", "links", "nodes", "burst_kb", "rows",
                           "congestion_control", "raw_stream_share", "processors",
                           "link_mbps"}  # fmt: skip
    assert set(result["rows"][0]) == {"name", "seconds", "bound_seconds", "link_share", "rounds",
                                      "link_shares", "link_bytes_per_element", "spread",
                                      "cpu_seconds", "machine_cpu_seconds",
                                      "stolen_seconds"}  # fmt: skip


def test_an_agents_memory_is_beside_its_bound_and_the_reserve() -> None:
    options = parse_options({"ROWS": "compacted-0.5", "ELEMENTS": "1000000"})
    measured = Measured({"compacted-0.5": one_round(1.0)}, raw=[1e7],
                        agents=[Memory(10, 20)] * 3, full_reserve=[7, 8, 9])  # fmt: skip
    agents = make_result(options, measured)["agents"]
    assert [agent["trainers"] for agent in agents] == [3, 2, 3]
    assert [agent["full_reserve_bytes"] for agent in agents] == [7, 8, 9]
    assert agents[0]["memory_bytes"] == 30
    assert agents[0]["bound_bytes"] == bound_bytes(3, 500_000) == 6 * 2_000_000 + 64 * MIB


def test_an_agents_memory_is_its_own_and_what_it_touched_of_the_shared() -> None:
    status = (
        "Name:\tagent\nVmHWM:\t  900 kB\nRssAnon:\t 90 kB\nRssFile:\t 100 kB\nRssShmem:\t 500 kB\n"
    )
    smaps = """7f00-7f10 rw-s 00000000 00:01 9 /memfd:pactrain-slot (deleted)
Size: 400 kB
Referenced: 40 kB
7f10-7f20 r--p 00000000 00:01 9 /usr/lib/libc.so.6
Referenced: 70 kB
7f20-7f30 rw-s 00000000 00:01 9 /memfd:pactrain-result (deleted)
Referenced: 8 kB
7f30-7f40 rw-p 00000000 00:00 0
Referenced: 5 kB
"""
    assert parse_memory(status, smaps) == Memory(300 << 10, 48 << 10)


def test_rows_that_do_not_fit_together_have_runs_of_their_own() -> None:
    rows = {row: row in OURS for row in ROWS}
    assert batches(rows, ELEMENTS, 8, 3, 20 << 30) == [ROWS]
    large = batches(rows, 60_192_808, 8, 3, 22 << 30)
    assert [row for batch in large for row in batch] == list(ROWS)
    assert 1 < len(large) <= len(ROWS)
    assert batches(rows, 60_192_808, 8, 8, 18 << 30) == [(row,) for row in ROWS]


def test_what_does_not_fit_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match=r"needs about 14 GB .* of which 5 GB are available"):
        batches({"full": True}, 60_192_808, 8, 3, 5 * 10**9)
