"""The flow-level simulator: cases by hand, what is conserved, and the testbed."""

from __future__ import annotations

import itertools
import random
from functools import partial

import pytest

from bench.evidence import plan, scale
from bench.evidence.flows import Ends, Flows, fair_rates
from bench.evidence.shapes import NETWORKS
from bench.evidence.simulator import (
    CHUNK,
    Bucket,
    Coding,
    Pipes,
    capacity,
    on_the_wire,
    ring_seconds,
    simulate,
)
from bench.exchange_layout import Layout, all_reduce_bytes, parse_layout
from bench.topologies import star_links, topologies

CHAIN = parse_layout("3,2,3", "", "")
FRAME = on_the_wire(4 * 4096, 1)  # Bytes of a whole exact frame.


def pipes(layout: Layout, rate: float = 100.0) -> Pipes:
    return Pipes(layout, rate, layout.hosts)


def star(sites: int, agents: int = 1) -> Layout:
    return Layout((agents,) * sites, star_links(sites), (agents,) * sites, core=True)


# --- Rates ---------------------------------------------------------------------------------


def test_two_on_one_pipe_have_half_each() -> None:
    assert fair_rates({(0, 1): (0,), (2, 3): (0,)}, [10.0]) == {(0, 1): 5.0, (2, 3): 5.0}


def test_who_is_held_back_elsewhere_leaves_the_rest_to_the_others() -> None:
    # The textbook's case: one goes through both, one through each.
    rates = fair_rates({(0, 1): (0, 1), (2, 3): (0,), (4, 5): (1,)}, [10.0, 4.0])
    assert rates == {(0, 1): 2.0, (4, 5): 2.0, (2, 3): 8.0}


@pytest.mark.parametrize("seed", range(20))
def test_rates_are_max_min_fair(seed: int) -> None:
    """No pipe carries more than it can; each connection is among the fastest of a full pipe."""
    rng = random.Random(seed)
    capacities = [rng.uniform(1, 10) for _ in range(6)]
    routes: dict[Ends, tuple[int, ...]] = {
        (n, n + 100): tuple(rng.sample(range(6), rng.randint(1, 4))) for n in range(12)
    }
    rates = fair_rates(routes, capacities)
    carried = [sum(rates[e] for e, route in routes.items() if pipe in route) for pipe in range(6)]
    assert all(load <= most * (1 + 1e-9) for load, most in zip(carried, capacities, strict=True))
    for ends, route in routes.items():
        assert any(
            carried[pipe] == pytest.approx(capacities[pipe])
            and rates[ends] >= max(rates[e] for e, r in routes.items() if pipe in r) * (1 - 1e-9)
            for pipe in route
        )


def test_a_transfer_slows_down_while_another_shares_its_pipe() -> None:
    flows = Flows([10.0])
    times: dict[str, float] = {}

    def ends(name: str) -> None:
        times[name] = flows.now

    flows.send((0, 1), (0,), (0,), 100, partial(ends, "long"))
    flows.at(2.0, lambda: flows.send((2, 3), (0,), (0,), 20, partial(ends, "short")))
    flows.run()
    # 20 of 100 by 2 s; then 5 a second for 4 s; the last 60 at 10 a second.
    assert times == {"short": pytest.approx(6.0), "long": pytest.approx(12.0)}
    assert flows.sent == [120.0]


def test_a_connection_sends_the_oldest_first() -> None:
    flows, order = Flows([1.0]), []
    for age in (3, 1, 2):
        flows.send((0, 1), (0,), (age,), 1, lambda age=age: order.append(age))  # type: ignore[misc]
    flows.run()
    assert order == [3, 1, 2]  # The first one was under way when the others came.


@pytest.mark.parametrize("rate", [0.0, float("inf")])
def test_a_pipe_without_a_rate_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="capacity = "):
        Flows([1.0, rate])
    with pytest.raises(ValueError, match="route of "):
        Flows([1.0]).send((0, 1), (), (0,), 1, lambda: None)


# --- The plan ------------------------------------------------------------------------------


def test_the_plan_is_the_coordinators() -> None:
    assert plan.trees(CHAIN) == [(1, 1, 1)]
    assert plan.trees(parse_layout("1,1,1,1", "", "")) == [(1, 1, 1, 2)]
    assert plan.trees(star(3)) == [(0, 0, 0), (1, 1, 1), (2, 2, 2)]
    assert plan.swaps(parse_layout("4,4", "", ""))
    assert plan.way(CHAIN, 0, 2) == [0, 2]
    assert plan.way(CHAIN, 2, 0) == [3, 1]
    assert plan.way(star(3), 0, 2) == [0, 5]


@pytest.mark.parametrize(
    ("elements", "frame", "sharers", "size"),
    [(70_000, 4096, (5, 1), 16_384), (137_216, 4096, (5, 1), 28_672),
     (500_000, 16_384, (5, 1), 16_384), (6_553_600, 4096, (5, 1), 65_536),
     (1_000_000, 4096, (32, 3, 1), 8192), (11_173_962, 16_384, (32, 3, 1), 32_768),
     (65_537, 4096, (1,), 65_536)],
)  # fmt: skip
def test_chunks_are_as_large_as_the_agents(
    elements: int, frame: int, sharers: tuple[int, ...], size: int
) -> None:
    """As in agent/exchange/schedule_test.cc."""
    assert plan.chunk_size(elements, frame, sharers, CHUNK) == size


def test_a_root_that_turns_codes_less_than_one_that_stays() -> None:
    assert plan.coded_sums(CHAIN) == 3  # Two decoded, the total encoded.
    assert plan.coded_sums(parse_layout("1,1,1,1", "", "")) == 3
    assert plan.coded_sums(star(5)) == pytest.approx(2.6)
    assert plan.coded_sums(parse_layout("4,4", "", "")) == 3


# --- The exchange, by hand -------------------------------------------------------------------


def near(layout: Layout) -> Pipes:
    """Sites' own networks so fast that they cost nothing."""
    return Pipes(layout, 100.0, layout.hosts, site_mbps=1e12)


def test_one_frame_swaps_in_the_time_of_one() -> None:
    found = simulate(near(parse_layout("1,1", "", "")), [Bucket(4096)])
    assert found.seconds == pytest.approx(FRAME / capacity(100))


def test_one_frame_goes_up_and_down_a_chain() -> None:
    found = simulate(near(CHAIN), [Bucket(4096)])
    assert found.seconds == pytest.approx(2 * FRAME / capacity(100))
    longer = simulate(near(parse_layout("1,1,1,1,1", "", "")), [Bucket(4096)])
    assert longer.seconds == pytest.approx(4 * FRAME / capacity(100))


def test_of_many_frames_only_the_first_ones_wait() -> None:
    found = simulate(near(CHAIN), [Bucket(100 * 4096)])
    assert found.seconds == pytest.approx(101 * FRAME / capacity(100))


def test_members_bring_their_sums_through_the_sites_network() -> None:
    """One chunk of one frame, two agents a site: to the owner, over the link, to the other."""
    two = Layout((2, 2), ((0, 1),), (2, 2))
    found = simulate(Pipes(two, 100.0, two.hosts, site_mbps=200.0), [Bucket(4096)])
    hops = 2 * FRAME / capacity(200) + FRAME / capacity(100)
    assert found.seconds == pytest.approx(hops)


def test_encoding_and_decoding_take_the_owners_time() -> None:
    coding = Coding(bits=2.0, encode=1e6, decode=2e6)
    found = simulate(near(parse_layout("1,1", "", "")), [Bucket(16_384)], coding)
    plain = 4 * 16_384
    link = on_the_wire(16_384 * 2 / 8, 1) / capacity(100)
    assert found.seconds == pytest.approx(plain / 1e6 + link + 2 * plain / 2e6)


def test_a_bucket_that_comes_late_ends_late() -> None:
    found = simulate(near(CHAIN), [Bucket(4096), Bucket(4096, released=1.0)])
    assert found.seconds == pytest.approx(1.0 + 2 * FRAME / capacity(100))


def test_a_slow_direction_holds_both_up() -> None:
    fast = parse_layout("1,1", "", "")
    slow = Layout(fast.sites, fast.links, fast.hosts, shares=((0.2, 1.0),))
    seconds = [simulate(near(one), [Bucket(20 * 4096)]).seconds for one in (fast, slow)]
    assert seconds[1] == pytest.approx(5 * seconds[0])


@pytest.mark.parametrize("buckets", [[], [Bucket(0)]])
def test_nothing_to_exchange_is_refused(buckets: list[Bucket]) -> None:
    with pytest.raises(ValueError, match="buckets, allowed"):
        simulate(pipes(CHAIN), buckets)


# --- What is conserved ---------------------------------------------------------------------


@pytest.mark.parametrize("elements", [1, 4096, CHUNK + 1, 10 * CHUNK])
@pytest.mark.parametrize("agents", [1, 3])
@pytest.mark.parametrize("coding", [Coding(), Coding(2.3, 3e9, 5e9), Coding(merged=4)])
def test_a_tree_carries_each_element_once_each_way(
    elements: int, agents: int, coding: Coding
) -> None:
    layout = Layout((agents,) * 4, ((1, 0), (1, 2), (1, 3)), (agents,) * 4)
    found = simulate(pipes(layout), [Bucket(elements)], coding)
    frames = found.link_bytes[0] - elements * coding.bits / 8
    assert 0 < frames <= (64 + 44 + 22) * (elements / coding.frame + elements / CHUNK + 1)
    assert found.link_bytes == pytest.approx([found.link_bytes[0]] * 6)
    assert found.seconds >= found.link_bytes[0] / capacity(100)


def test_a_star_carries_what_the_planner_says() -> None:
    sites = 5
    elements = 4 * sites * CHUNK  # Each root has as many chunks.
    found = simulate(pipes(star(sites)), [Bucket(elements)])
    once = elements // 4096 * FRAME
    assert found.link_bytes == pytest.approx([star(sites).tree_crossings * once] * 2 * sites)
    # Links wait for the first frames and after the last ones only.
    bound, chunk = found.link_bytes[0] / capacity(100), 16 * FRAME / capacity(100)
    assert bound <= found.seconds <= bound + chunk


def test_more_rate_or_fewer_elements_never_take_longer() -> None:
    for layout in (CHAIN, star(4), parse_layout("2,2", "", "")):
        times = [simulate(pipes(layout, rate), [Bucket(5 * CHUNK)]).seconds for rate in (50, 100)]
        fewer = simulate(pipes(layout), [Bucket(4 * CHUNK)]).seconds
        assert times[0] > times[1] > fewer


def test_merged_frames_change_the_tail_alone() -> None:
    fine, coarse = (
        simulate(pipes(CHAIN), [Bucket(40 * CHUNK)], Coding(merged=merged)).seconds
        for merged in (1, 4)
    )
    assert fine < coarse < fine + 4 * 3 * FRAME / capacity(100)


def test_a_ring_takes_what_the_formula_says() -> None:
    for layout in (CHAIN, star(4, agents=2)):
        bytes_of = all_reduce_bytes(layout, 4e6)
        found = ring_seconds(pipes(layout), layout.ranks_per_host, 4e6)
        assert found == pytest.approx(bytes_of / capacity(100))


# --- Against the testbed, and at scale -------------------------------------------------------

TESTBED = scale.read_testbed()


def held() -> list[tuple[str, str]]:
    return [
        (name, row["name"])
        for name, found in TESTBED.items()
        for row in found["figures"]["rows"]
        if row["name"] in scale.MEASURED_ROWS and scale.links_hold(row, found["figures"])
    ]


@pytest.mark.parametrize(("name", "row"), held())
def test_it_is_near_the_testbed_where_links_hold_the_step(name: str, row: str) -> None:
    """How near is in docs/results.md, with the goal: within a tenth."""
    figures = TESTBED[name]["figures"]
    measured = next(min(r["rounds"]) for r in figures["rows"] if r["name"] == row)
    assert scale.predict(figures, row, scale.read_speeds()) == pytest.approx(measured, rel=0.1)


def test_the_testbed_had_three_and_more_sites_and_all_modes() -> None:
    assert {len(found["figures"]["sites"]) for found in TESTBED.values()} >= {2, 3, 4, 5}
    assert {row for _, row in held()} == set(scale.MEASURED_ROWS)


def test_worlds_reach_1024_workers_in_32_sites_with_the_agents_that_are_allowed() -> None:
    largest = scale.world("star", 32, 32).layout
    assert (largest.world, len(largest.sites), sum(largest.hosts)) == (1024, 32, 64)


def test_backward_releases_buckets_one_after_the_other() -> None:
    network = NETWORKS["resnet18"]
    buckets = scale.released(network, 0.5)
    assert sum(bucket.elements for bucket in buckets) == round(0.5 * network.elements)
    assert all(a.released < b.released for a, b in itertools.pairwise(buckets))
    assert buckets[-1].released == pytest.approx(network.compute_seconds)


def test_each_topology_can_be_simulated() -> None:
    for topology in topologies().values():
        assert simulate(pipes(topology.layout), [Bucket(CHUNK)]).seconds > 0


def test_what_ends_a_little_early_is_owed_and_sent_all_the_same() -> None:
    flows, times = Flows([10.0], tolerance=0.5), []
    for ends, sizes in (((0, 1), (10.0, 10.0)), ((2, 3), (10.4, 9.6))):
        for age, size in enumerate(sizes):
            flows.send(ends, (0,), (age,), size, lambda: times.append(flows.now))
    flows.run()
    # At 5 a second each: both first ones end at 2 s; 0.4 of 10.4 are sent with the next one.
    assert times == pytest.approx([2.0, 2.0, 4.0, 4.0])
    assert flows.sent == [pytest.approx(40.0)]
