"""What `make report-times` plans, paces and says; the links themselves are report-times' own."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from bench import agent_memory
from bench.evidence import (
    advice,
    figures,
    goals,
    report,
    step_times,
    step_times_plan,
    step_times_tables,
    step_times_train,
    tables,
)
from bench.evidence.figures import Evidence
from bench.evidence.ready_rows import ReadyRow, Sites
from bench.evidence.shapes import NETWORKS, Network
from bench.evidence.step_times import Record, formula, renewed, summary, why_too_large
from bench.evidence.step_times_plan import (
    MOST_SEGMENTS,
    READY_ROWS,
    ROWS,
    Steps,
    is_ours,
    kept_of,
    known_after,
    merged,
    missing,
    pin_of,
    ready_buckets,
    releases,
    segments,
    steps_of,
)
from bench.evidence.step_times_train import Paced, hook_of
from bench.evidence.times import COSTS, compression_seconds
from bench.exchange_layout import powersgd_bytes
from bench.exchange_model import Source, step
from bench.topologies import topologies

RATE = 100.0


def entry(row: str, network: str, times: float = 1.1, rate: float = RATE) -> dict[str, Any]:
    """A step that takes so many times its bound, and sends what the formula says."""
    found = formula(row, network, rate)
    seconds = times * found.bound
    sent = found.bytes_per_element * NETWORKS[network].elements
    return {"row": row, "rate_mbps": rate, "seconds": seconds, "steps": [seconds] * 2,
            "link_bytes": [sent, 1.0] * 2, "cpu_seconds": seconds, "machine_cpu_seconds": seconds,
            "processors": 2,
            "commit": "abc", "date": "2026-11-26", "machine": "this"}  # fmt: skip


def content(network: str, *entries: dict[str, Any]) -> dict[str, Any]:
    return {"network": network, "wall_seconds": 360.0, "rows": list(entries)}


def evidence(*contents: dict[str, Any]) -> Evidence:
    """Measured in both ways alike."""
    times = {c["network"]: c for c in contents}
    return Evidence({}, {}, topologies(), times=times, ready=times)


# --- The plan ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "steps"), [(50.0, (0, 2)), (20.0, (1, 2)), (5.1, (1, 2)), (0.5, (1, 8)),
                           (0.001, (1, 20))],
)  # fmt: skip
def test_a_short_step_is_taken_more_often_and_a_very_long_one_without_a_warm_up(
    seconds: float, steps: tuple[int, int]
) -> None:
    assert steps_of(seconds) == Steps(*steps)
    assert steps_of(seconds, quick=True) == Steps(steps[0], 1 if seconds == 50.0 else steps[1])


def test_our_rows_first_take_steps_until_agents_know_a_new_rate() -> None:
    assert (known_after("levels7-0.5", 0.25), known_after("levels7", 9.0)) == (20, 1)
    assert known_after("exact-0.5", 5.0) == 1
    assert {known_after(row, 0.25) for row in ("hier_bf16", "ddp", "topk0.1ef")} == {0}


def test_what_is_there_is_not_measured_again() -> None:
    found = [entry("ddp", "vgg19"), entry("fp16", "vgg19"), entry("fp16", "vgg19", rate=500)]
    assert missing(found, ["ddp", "fp16"], [100.0, 500.0]) == {"ddp": [500.0]}
    assert missing([], ["ddp"], [100.0]) == {"ddp": [100.0]}


def test_a_newer_measurement_takes_the_place_of_the_older() -> None:
    old = [entry("ddp", "vgg19", 1.5), entry("ddp", "vgg19", rate=500)]
    found = merged(old, entry("levels7-0.5", "vgg19"))
    found = merged(found, entry("ddp", "vgg19", 1.2))
    assert [(e["row"], e["rate_mbps"]) for e in found] == [
        ("levels7-0.5", 100.0), ("ddp", 100.0), ("ddp", 500)]  # fmt: skip
    assert found[1]["seconds"] == entry("ddp", "vgg19", 1.2)["seconds"]


@pytest.mark.parametrize("network", NETWORKS)
def test_backward_releases_the_last_layers_first_each_by_its_share(network: str) -> None:
    found = NETWORKS[network]
    sizes = [math.prod(shape) for shape in found.shapes]
    counts = segments(sizes)
    assert sum(counts) == len(sizes)
    assert len(counts) <= MOST_SEGMENTS + 1
    at = releases(found, counts)
    assert at == sorted(at, reverse=True)
    assert at[0] == pytest.approx(found.compute_seconds)
    last = sum(sizes[len(sizes) - counts[-1] :]) / found.elements
    forward = found.compute_seconds / 3
    assert at[-1] == pytest.approx(forward + 2 * forward * last)


def test_every_row_has_a_hook_or_a_pin() -> None:
    assert {row: pin_of(row) for row in ROWS if is_ours(row)} == {
        "levels7-0.5": "TERNARY 7", "levels7-0.2": "TERNARY 7", "levels7": "TERNARY 7",
        "exact-0.5": "COMPACTED", "hier_fp32": "FULL"}  # fmt: skip
    assert [row for row in ROWS if not is_ours(row) and hook_of(row) is None] == [
        "ddp", "ddp_buckets"]  # fmt: skip
    with pytest.raises(ValueError, match="allowed: "):
        hook_of("thc")


def test_ready_made_bytes_go_in_ddps_buckets_once_the_accelerator_has_compressed_them() -> None:
    network = NETWORKS["resnet18"]
    buckets = ready_buckets("fp16", network)
    assert sum(bucket.elements for bucket in buckets) == network.elements
    full = [4 * bucket.elements >= cap * 2**20
            for bucket, cap in zip(buckets, (1, 25, 25), strict=True)]  # fmt: skip
    assert full == [True, True, False]
    first = buckets[0].elements - math.prod(buckets[0].shapes[-1])
    assert 4 * first < 2**20
    took = compression_seconds(COSTS["fp16"], network)
    assert buckets[-1].at == pytest.approx(network.compute_seconds + took)
    forward, share = network.compute_seconds / 3, buckets[0].elements / network.elements
    assert buckets[0].at == pytest.approx(forward + (2 * forward + took) * share)
    assert [len(ready_buckets(row, network)) for row in ("ddp", "powersgd1")] == [1, 1]


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("row", [row for row in READY_ROWS if not is_ours(row)])
def test_a_ready_row_sends_its_formulas_bytes_when_they_are_due(
    row: str, alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = 0

    def counted(real: Callable[..., Any], *tensors: Any, **options: Any) -> Any:
        nonlocal sent
        sent += tensors[-1].nbytes
        return real(*tensors, **options)

    for name in ("all_reduce", "all_gather_into_tensor"):
        monkeypatch.setattr(dist, name, partial(counted, getattr(dist, name)))
    network = Network("small", [(400, 30), (50,), (300, 40), (20,)], 0.3)
    ready = ReadyRow(row, network, Sites([1]))
    clock = FakeTime()
    monkeypatch.setattr("bench.evidence.clock.time", clock)
    ready.take()
    cost = step_times_plan.cost_of(row)
    assert clock.now - 100 == pytest.approx(0.3 + compression_seconds(cost, network))
    own = network.elements * cost.keep * cost.bits / 8
    if cost.powersgd:
        own = powersgd_bytes(network.shapes, cost.powersgd)
    assert sent == pytest.approx(own, rel=0.02)


def test_ours_are_given_what_a_mask_leaves_of_each_parameter_in_the_same_time() -> None:
    network = NETWORKS["vgg19"]
    kept = kept_of(network, 0.2)
    assert len(kept.shapes) == len(network.shapes)
    assert kept.elements == pytest.approx(0.2 * network.elements, rel=1e-3)
    assert kept.compute_seconds == network.compute_seconds
    assert [pin_of(row, has_masks=False) for row in ("exact-0.5", "levels7-0.2")] == [
        "FULL", "TERNARY 7"]  # fmt: skip


class Bucket:
    def __init__(self, last: bool) -> None:
        self.is_last = lambda: last


def test_ddps_first_step_which_is_one_bucket_is_not_compressed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(default_hooks, "allreduce_hook", lambda *_: seen.append("sum"))
    hook: Any = step_times_train.Rebuilt(lambda bucket: seen.append("top"))  # type: ignore[arg-type, return-value]
    for last in (False, True, False, True):
        hook(Bucket(last))
    assert seen == ["sum", "sum", "top", "top"]


# --- A step's sleep ------------------------------------------------------------------------


class FakeTime:
    """Passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def watch(parameter: torch.Tensor, call: Callable[[], None]) -> None:
    """Calls it once the parameter has its gradient."""
    parameter.register_post_accumulate_grad_hook(lambda _: call())  # type: ignore[no-untyped-call]


def test_a_paced_model_has_its_gradients_when_the_accelerator_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeTime()
    monkeypatch.setattr("bench.evidence.clock.time", clock)
    network = Network("small", [(4, 10), (40,), (10, 2), (20,)], 0.3)
    model, source = Paced(network), Source(network.shapes, rank=0)
    seen: dict[str, float] = {}

    def note(name: str) -> None:
        seen[name] = clock.now - 100

    for name, parameter in model.named_parameters():
        watch(parameter, partial(note, name))
    step(model, source)
    assert list(seen) == [f"weights.{n}" for n in (3, 2, 1, 0)]
    assert list(seen.values()) == pytest.approx([0.1 + 0.2 * n / 120 for n in (20, 40, 80, 120)])
    assert clock.now - 100 == pytest.approx(0.3)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    expected = Source(network.shapes, rank=0).take()
    assert all(map(torch.equal, gradients, expected))


def test_what_a_step_does_beside_its_sleep_makes_it_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeTime()
    monkeypatch.setattr("bench.evidence.clock.time", clock)
    network = Network("small", [(4, 10), (40,)], 0.3)
    model = Paced(network)
    watch(model.weights[1], lambda: clock.sleep(0.05))
    step(model, Source(network.shapes, rank=0))
    assert clock.now - 100 == pytest.approx(0.3)


# --- What is kept and refused ----------------------------------------------------------------


def test_a_file_has_all_that_was_measured_so_far(tmp_path: Path) -> None:
    Record("vgg19", tmp_path).add(entry("ddp", "vgg19"))
    Record("vgg19", tmp_path).add(entry("fp16", "vgg19"))
    found = step_times.read_times(folder=tmp_path)
    assert [e["row"] for e in found["vgg19"]["rows"]] == ["fp16", "ddp"]
    assert [path.name for path in (tmp_path / "chain").iterdir()] == ["vgg19.json"]


def test_rows_that_memory_cannot_hold_are_left_out_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(agent_memory, "available_bytes", lambda: 8 << 30)
    monkeypatch.setattr(step_times, "why_no_namespaces", lambda: None)
    assert why_too_large("resnet18", "ddp") is None
    assert step_times.measure(["vit_b16"], ["ddp", "levels7"], [RATE], folder=tmp_path) == 1
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(" is left out: ")[0] for line in said] == [
        "report-times: vit_b16, ddp", "report-times: vit_b16, levels7"]  # fmt: skip
    assert all("are available; free some" in line for line in said)


@pytest.mark.parametrize(
    ("argument", "named"), [("--networks=alexnet", "networks"), ("--rates=10", "rates"),
                            ("--rows=thc", "rows")],
)  # fmt: skip
def test_what_is_not_known_is_refused(
    argument: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert step_times.main([argument]) == 2
    assert f"{named} has '" in (said := capsys.readouterr().err) and "allowed: " in said


def test_the_last_line_has_the_worst_network_and_what_cannot_be() -> None:
    few_bytes = entry("fp16", "vgg19") | {"link_bytes": [1e6] * 4}
    too_fast = entry("ddp", "vgg19", 0.5)
    line = summary({"chain": {
        "vgg19": content("vgg19", entry("levels7-0.5", "vgg19", 1.1), few_bytes),
        "resnet18": content("resnet18", entry("levels7-0.5", "resnet18", 1.2)),
        "resnet152": content("resnet152", too_fast | {"row": "ddp"})}})  # fmt: skip
    assert {key: line[key] for key in ("networks", "rows", "hours")} == {
        "networks": 3, "rows": 4, "hours": 0.3}  # fmt: skip
    assert line["worst_over_bound_levels"] == pytest.approx(1.2)
    assert len(line["wrong"]) == 2
    assert line["wrong"][0].startswith("vgg19, chain, fp16 at 100 Mbps: 0.0")
    assert json.dumps(line)


def test_agents_may_pack_or_not_where_links_are_fast() -> None:
    fast = entry("levels7-0.5", "vgg19", 9, rate=1000.0)
    coded = fast | {"link_bytes": [0.5 * NETWORKS["vgg19"].elements * 2.35 / 8] * 4}
    assert summary({"chain": {"vgg19": content("vgg19", fast)}})["wrong"] == []
    assert summary({"chain": {"vgg19": content("vgg19", coded)}})["wrong"] == []


def test_of_a_link_with_a_slow_direction_that_one_counts() -> None:
    """Bytes that the fast direction could not have sent in time are wrong, too."""
    found = formula("hier_fp32", "vgg19", 100.0, "asymmetric")
    sent = found.bytes_per_element * NETWORKS["vgg19"].elements
    row = entry("hier_fp32", "vgg19") | {"rate_mbps": 100.0, "link_bytes": [sent, sent]}
    places = {seconds: {"asymmetric": {"vgg19": content("vgg19", row | {"seconds": seconds})}}
              for seconds in (1.01 * found.bound, 0.9 * found.bound)}  # fmt: skip
    assert [len(summary(place)["wrong"]) for place in places.values()] == [0, 1]
    assert found.bound == pytest.approx(5 * formula("hier_fp32", "vgg19", 100.0).bound)


def test_a_cluster_has_its_own_rate_whatever_is_asked_for() -> None:
    known = topologies()
    assert step_times.rates_of(known["cluster"], [100.0, 500.0]) == [10_000.0]
    assert step_times.rates_of(known["star"], [100.0, 500.0]) == [100.0, 500.0]


def test_the_page_shows_rows_that_were_run_elsewhere_and_only_those() -> None:
    found = Evidence({}, {}, topologies(), elsewhere={
        "star": {"vgg19": content("vgg19", entry("fp16", "vgg19", rate=500.0))}})  # fmt: skip
    said = step_times_tables.elsewhere(found)
    assert said.count("<details>") == 3 and said.count("not run yet (`make report-times`)") == 2
    table = next(part for part in said.split("</details>") if "Star of five" in part)
    assert "500 Mbps" in table and "DDP, fp16 hook" in table and "PowerSGD" not in table
    assert step_times_tables.missing_words(found).endswith("topologies: star: VGG19 1.")


@pytest.mark.parametrize(
    ("times", "sooner"),
    [
        (
            {"hier_fp32": 1.5, "ddp": 1.6, "ddp_buckets": 1.0, "fp16": 0.5},
            "DDP, torch's buckets 1.00",
        ),
        ({"hier_fp32": 1.01, "ddp": 1.0}, ""),  # Within what measurements differ.
        ({"exact-0.5": 1.5, "fp16": 1.0, "powersgd1": 0.1}, "DDP, fp16 hook 1.00"),
        ({"levels7-0.5": 1.5, "powersgd1": 1.0}, "PowerSGD of rank 1 1.00"),
        ({"levels7-0.5": 1.5, "levels7-0.2": 1.0}, ""),
    ],
)
def test_the_page_says_where_a_measured_step_of_ours_is_longer_than_a_peers(
    times: dict[str, float], sooner: str
) -> None:
    rows = [
        entry(row, "vgg19", rate=500.0) | {"seconds": seconds} for row, seconds in times.items()
    ]
    found = Evidence({}, {}, topologies(), elsewhere={"star": {"vgg19": content("vgg19", *rows)}})
    said = step_times_tables.losing(found)
    first = next(iter(times.values()))
    assert said.endswith(f"| VGG19, star, 500 Mbps | {step_times_tables.title(next(iter(times)))} "
                         f"| {first:.2f} | {sooner} |"
                         if sooner else "None of those that were measured.")  # fmt: skip


def test_a_measured_step_that_takes_longer_lowers_what_the_last_line_says() -> None:
    def against(times: float) -> Any:
        rows = [entry("levels7-0.5", "vgg19", times), entry("ddp", "vgg19", 1.0)]
        rows.append(entry("ddp", "vgg19", 1.0) | {"row": "ddp_buckets", "seconds": 1.0})
        curve = [(step, 80.0) for step in range(10, 81, 10)]
        pieces = {(workload, method, 1): {"curve": curve, "steps": 80, "keep": keep, "test": 80.0}
                  for method, keep in (("ddp", 1.0), ("levels7-0.5", 0.5))
                  for workload in figures.VISION}  # fmt: skip
        targets = {workload: {"target": 75.0} for workload in figures.VISION}
        found = Evidence(pieces, targets, topologies(),
                         ready={"vgg19": content("vgg19", *rows)})  # fmt: skip
        return figures.headline(found)

    slow, fast = against(3.0), against(0.9)
    assert slow["against"]["ddp"] == slow["against_measured"]["ddp"]
    assert fast["against"]["ddp"] == fast["against_by_formula"]["ddp"]
    assert slow["against"]["ddp"] < slow["against_by_formula"]["ddp"]
    # The soonest way of DDP's.
    assert slow["against"]["best_ddp"] < slow["against"]["ddp"] / 5


def test_what_a_quick_run_could_not_measure_is_said_and_the_line_comes_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(report, "DOCS", tmp_path)
    monkeypatch.setattr("subprocess.run", lambda *_, **__: CompletedProcess([], 3))
    monkeypatch.setattr("bench.evidence.step_times.measure", lambda *_, **__: 1)
    monkeypatch.setattr(report, "plot", lambda *_: None)
    monkeypatch.setattr(report, "plot_amounts", lambda *_: None)
    monkeypatch.setattr(report, "plot_scale", lambda *_: None)
    assert report.main(["--quick"]) == 3
    said = capsys.readouterr()
    assert "not all was measured again" in said.err
    assert "headline" in json.loads(said.out.splitlines()[-1])


def test_a_quick_run_renews_its_rows_and_leaves_the_others() -> None:
    old = {"vgg19": content("vgg19", entry("ddp", "vgg19"), entry("fp16", "vgg19"))}
    found = renewed(old, {"vgg19": content("vgg19", entry("ddp", "vgg19", 2.0)),
                          "resnet18": content("resnet18", entry("ddp", "resnet18"))})  # fmt: skip
    assert [e["row"] for e in found["vgg19"]["rows"]] == ["fp16", "ddp"]
    assert found["vgg19"]["rows"][1]["seconds"] == entry("ddp", "vgg19", 2.0)["seconds"]
    assert set(found) == {"vgg19", "resnet18"}
    assert set(report.QUICK_TIMES) <= set(READY_ROWS)


# --- What the page says ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "networks", "met"),
    [(1.2, list(NETWORKS), True), (1.3, list(NETWORKS), False), (1.3, ["vgg19"], False),
     (1.2, ["vgg19"], None), (1.2, [], None)],
)  # fmt: skip
def test_the_goal_is_met_when_all_networks_are_within_it(
    times: float, networks: list[str], met: bool | None
) -> None:
    levels = ("levels7-0.5", "levels7-0.2", "levels7", "levels3-0.5")
    found = evidence(*(content(n, *(entry(row, n, times) for row in levels)) for n in networks))
    goal, exact = goals.shapes_goals(found)
    assert goal.met is met
    assert (f"worst {times:.3f} x" in goal.value) == bool(networks)
    assert found.share_of_bound() == (pytest.approx(1 / times) if networks else None)
    assert (exact.value, exact.met) == ("not run yet", None)


def test_each_of_our_rows_is_held_to_its_bound() -> None:
    rows = [("levels7-0.5", 1.1), ("levels7-0.2", 1.4), ("exact-0.5", 1.2)]
    found = evidence(content("vgg19", *(entry(row, "vgg19", times) for row, times in rows)))
    goal, exact = goals.shapes_goals(found)
    assert "worst 1.400 x (VGG19)" in goal.value and "keep 0.5 at most 1.10 x" in goal.value
    assert (goal.met, exact.met) == (False, False)


def test_times_by_measured_seconds_are_of_networks_that_have_both() -> None:
    both = [entry("levels7-0.5", "vgg19"), entry("fp16", "vgg19") | {"seconds": 9.0}]
    found = evidence(content("vgg19", *both), content("resnet18", entry("fp16", "resnet18")))
    assert found.networks_timed("fp16", "levels7-0.5", 100.0, "ready") == ["vgg19"]
    ratio = found.timed_ratio("vgg19", "fp16", "levels7-0.5", 100.0, "processors")
    assert ratio == 9.0 / both[0]["seconds"]
    found.times = {}
    assert found.networks_timed("fp16", "levels7-0.5", 100.0, "processors") == []


def test_own_steps_are_ddps_sum_every_so_often() -> None:
    found = evidence(content("vgg19", entry("ddp", "vgg19") | {"seconds": 8.019}))
    local = found.timed("vgg19", "local8", 100.0, ready=True)
    assert local is not None and local["seconds"] == pytest.approx(0.019 + 1.0)
    assert found.timed("vgg19", "local8", 100.0) is None


def test_the_tables_have_the_measured_beside_the_formula() -> None:
    found = evidence(content("vgg19", entry("levels7-0.5", "vgg19", 1.3)))
    text = step_times_tables.section(found)
    line = next(line for line in text.splitlines() if "7 levels, keep 0.5" in line)
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    ratio = 1.3 * formula("levels7-0.5", "vgg19", RATE).bound
    seconds = formula("levels7-0.5", "vgg19", RATE).seconds
    assert cells[1].endswith(f"= {ratio / seconds:.2f}")
    assert cells[2:] == ["not run yet"] * 3 + ["1.00", "0.50"]
    assert text.count("100 Mbps") == 1 and "500 Mbps" not in text
    assert "Hours on the links: 0.10" in text
    assert "Of 156 step times at the paper's shapes 1 " in step_times_tables.missing_words(found)
    assert step_times_tables.missing_words(found).endswith("topologies: none.")


def test_what_peers_take_on_processors_is_of_the_measured_alone() -> None:
    ours = entry("levels7-0.5", "vgg19")
    slow = entry("powersgd1", "vgg19") | {"seconds": 3 * ours["seconds"]}
    text = advice.on_processors(evidence(content("vgg19", ours, slow)))
    assert "| PowerSGD of rank 1 | 3.0 to 3.0 |" in text
    assert "TopK" not in text
    assert "not run yet" in advice.on_processors(evidence())


def test_a_page_without_measurements_says_how_to_make_them() -> None:
    text = tables.page(evidence(), {}, {}, tables.AtScale())
    assert "not run yet (`make report-times`)" in text
    assert "Of 156 step times at the paper's shapes 0 " in text
