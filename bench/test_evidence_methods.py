"""The virtual workers' methods: each peer against torch's own hook, or against its formula."""

from __future__ import annotations

import math
import multiprocessing
import os
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from bench.evidence import codec, methods
from bench.evidence.methods import (
    Agents,
    Dgc,
    Fp16,
    LocalSteps,
    PowerSgd,
    Setup,
    TernGrad,
    Thc,
    TopK,
)
from bench.evidence.shapes import NETWORKS
from bench.evidence.train import BETAS, EPSILON, MOMENTUM, Optimizer, crossing, risk
from bench.evidence.workloads import ByteTransformer, Resnet9Cifar
from bench.exchange_model import Parameters, Source, step, wrap
from pactrain.types import Codec

SHAPES = [(40, 30), (3, 5), (30,)]
RANKS, HOOK_STEPS = 3, 6
ELEMENTS = sum(map(math.prod, SHAPES))
POWERSGD_BEGINS = 2  # Torch allows no earlier step.


class Given(Source):
    """Another gradient in each step."""

    def __init__(self, rank: int) -> None:
        super().__init__(SHAPES, rank)
        self._flat = [self._make(rank, number) for number in range(HOOK_STEPS)]


def gradients(number: int, ranks: int = RANKS, elements: int = ELEMENTS) -> Tensor:
    rows = [
        torch.randn(elements, generator=torch.Generator().manual_seed(1000 * rank + number))
        for rank in range(ranks)
    ]
    return torch.stack(rows)


def hook_rank(rank: int, store: str, pipe: Connection) -> None:
    """Rank 0 sends what torch's hooks gave in each step."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=FileStore(store, RANKS), rank=rank, world_size=RANKS)
    found: dict[str, list[Tensor]] = {}
    for name in ("fp16", "powersgd1", "powersgd4"):
        model, source = wrap(SHAPES), Given(rank)
        assert isinstance(model.module, Parameters)
        if name == "fp16":
            model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        else:
            state = powerSGD_hook.PowerSGDState(None, int(name[-1]), POWERSGD_BEGINS)
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        for _ in range(HOOK_STEPS):
            step(model, source)
            grads = [p.grad.flatten().clone() for p in model.parameters() if p.grad is not None]
            found.setdefault(name, []).append(torch.cat(grads))
    if rank == 0:
        pipe.send({name: torch.stack(steps).numpy() for name, steps in found.items()})
    dist.barrier()
    # At once: the group's end, under Python's lock, now and then waits for gloo's thread, which
    # wants that lock to let go of a tensor.
    os._exit(0)


@pytest.fixture(scope="module")
def by_hooks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    store: Path = tmp_path_factory.mktemp("hooks") / "store"
    context = multiprocessing.get_context("fork")  # Torch is there already.
    ours, theirs = context.Pipe()
    ranks = [context.Process(target=hook_rank, args=(r, str(store), theirs)) for r in range(RANKS)]
    for process in ranks:
        process.start()
    assert ours.poll(240), "the hooks' ranks are silent"
    found = {name: torch.from_numpy(values) for name, values in ours.recv().items()}
    for process in ranks:
        process.join(60)
        assert process.exitcode == 0
    return found


def test_fp16_is_torchs_hook(by_hooks: dict[str, Tensor]) -> None:
    method = Fp16(Setup(SHAPES, 1))
    for number in range(HOOK_STEPS):
        update, sent = method.exchange(gradients(number), number)
        # Halves are added in another order: one unit in the last place.
        torch.testing.assert_close(update, by_hooks["fp16"][number], rtol=2e-3, atol=1e-3)
        assert sent == 3.5 * ELEMENTS


@pytest.mark.parametrize("rank", [1, 4])
def test_powersgd_is_torchs_hook_with_its_memory(by_hooks: dict[str, Tensor], rank: int) -> None:
    method = PowerSgd(Setup(SHAPES, 1), rank)
    for number in range(POWERSGD_BEGINS, HOOK_STEPS):
        update, _ = method.exchange(gradients(number), number)
        torch.testing.assert_close(
            update, by_hooks[f"powersgd{rank}"][number], rtol=1e-3, atol=1e-4
        )
    assert not torch.allclose(update, gradients(number).mean(0), atol=0.1)
    assert method.elements() == 70 * rank + 15 + 30


def test_agents_exact_is_the_mean_and_levels_are_near_it() -> None:
    rows = gradients(0, ranks=8, elements=50_000)
    exact, sent = Agents(Setup([(50_000,)], 1), Codec.FP32).exchange(rows, 0)
    torch.testing.assert_close(exact, rows.mean(0), rtol=1e-5, atol=1e-6)
    assert sent == 4 * 50_000
    levels, sent = Agents(Setup([(50_000,)], 1), Codec.LEVELS7).exchange(rows, 0)
    error = float((levels - exact).square().sum() / exact.square().sum())
    assert 0.05 < error < 0.15  # NMSE's goal of make bench-exchange.
    assert 2.2 < 8 * sent / 50_000 < 2.5


def test_agents_send_what_the_mask_keeps() -> None:
    kept = torch.arange(0, 1000, 2)
    rows = gradients(0, ranks=8, elements=1000)
    update, sent = Agents(Setup([(1000,)], 1), Codec.FP32, kept).exchange(rows, 0)
    assert sent == 2000
    assert not update[1::2].any()
    torch.testing.assert_close(update[kept], rows[:, kept].mean(0))


def test_an_exchange_repeats_and_another_step_or_seed_has_other_noise() -> None:
    rows = gradients(0, ranks=8, elements=1000)
    first = Agents(Setup([(1000,)], 1), Codec.LEVELS7).exchange(rows, 3)[0]
    assert torch.equal(first, Agents(Setup([(1000,)], 1), Codec.LEVELS7).exchange(rows, 3)[0])
    for seed, number in ((1, 4), (2, 3)):
        other = Agents(Setup([(1000,)], seed), Codec.LEVELS7).exchange(rows, number)[0]
        assert not torch.equal(first, other)


@pytest.mark.parametrize("parents", [(1, 2, 0), (-1, -1, 0), (0, -1, 1)])
def test_what_is_no_tree_is_refused(parents: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="parents = "):
        codec.Tree((1, 1, 1), parents)


def test_rows_other_than_the_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="8 rows"):
        codec.exchange(torch.zeros(7, 10), Codec.FP32, 0)


def test_topk_sends_the_largest_and_keeps_the_rest_for_later() -> None:
    rows = torch.tensor([[4.0, -3.0, 2.0, 1.0], [0.0, 1.0, -2.0, 5.0]])
    method = TopK(Setup([(4,)], 1), 0.25, feedback=True)
    assert torch.equal(method.exchange(rows, 0)[0], torch.tensor([2.0, 0.0, 0.0, 2.5]))
    nothing = torch.zeros_like(rows)
    assert torch.equal(method.exchange(nothing, 1)[0], torch.tensor([0.0, -1.5, -1.0, 0.0]))
    without = TopK(Setup([(4,)], 1), 0.25, feedback=False)
    without.exchange(rows, 0)
    assert not without.exchange(nothing, 1)[0].any()


def test_dgc_that_sends_all_is_nesterovs_momentum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dgc, "density", lambda self, step: 1.0)
    rows = gradients(0, ranks=2, elements=6)
    method = Dgc(Setup([(6,)], 1, momentum=0.9))
    # What has been sent leaves no momentum behind: factor masking.
    for _ in range(2):
        update, _ = method.exchange(rows, 0)
        torch.testing.assert_close(update, 1.9 * rows.mean(0))


@pytest.mark.parametrize(("density", "bytes_per_element"), [(0.25, 7.0), (0.001, 0.056)])
def test_dgc_sends_all_where_that_is_less_than_indices_and_values(
    density: float, bytes_per_element: float
) -> None:
    sent = Dgc.bytes(round(density * 1_000_000), 1_000_000)
    assert sent / 1_000_000 == pytest.approx(bytes_per_element)


def test_dgc_keeps_momentum_of_what_waits_and_clips_each_worker() -> None:
    setup = Setup([(1000,)], 1, momentum=0.5, steps=1)
    method = Dgc(setup)
    row = torch.zeros(2, 1000)
    row[:, 0], row[:, 1] = 100.0, 1.0
    assert int(method.exchange(row, 1)[0].count_nonzero()) == 1  # After its warm-up 0.001.
    row[:, 0] = 0.0
    update, _ = method.exchange(row, 2)
    # v = (u1 + g1) + (u2 + g2), u1 = 0.5, u2 = 0.5 (0.5 + 1).
    assert float(update[1]) == pytest.approx(1.5 + 0.75 + 1.0)
    clipped, _ = Dgc(setup, clip=1.0).exchange(row, 1)
    assert float(clipped.max()) == pytest.approx(1.5 / math.sqrt(2))
    stages = [Dgc(Setup([(1,)], 1, steps=400)).density(number) for number in (0, 10, 20, 30, 40)]
    assert stages == [0.25, 0.0625, 0.015625, 0.004, 0.001]
    assert Dgc(Setup([(1,)], 1, steps=400), cold=True).density(0) == 0.001


def test_terngrad_is_ternary_unbiased_and_clips_at_its_sigmas() -> None:
    rows = gradients(0, ranks=2, elements=200)
    method = TernGrad(Setup([(100,), (100,)], 1))
    many = torch.stack([method.exchange(rows, number)[0] for number in range(600)])
    scales = method._scales(rows)
    assert len(set(scales.tolist())) == 2
    levels = (many[0] / scales * 2).round()
    torch.testing.assert_close(levels, many[0] / scales * 2)
    inside = (rows.abs() <= scales).all(0)
    error = (many.mean(0) - rows.mean(0))[inside].abs().max()
    assert float(error) < 5 * float(scales.max()) / math.sqrt(2 * 600)


def test_the_papers_scheme_is_that_within_the_mask() -> None:
    rows = gradients(0, ranks=2, elements=200)
    kept = torch.arange(0, 200, 4)
    update, sent = TernGrad(Setup([(200,)], 1), kept).exchange(rows, 0)
    assert sent == 1.75 * 50
    mask = torch.zeros(200, dtype=torch.bool)
    mask[kept] = True
    assert not update[~mask].any()


def test_thc_rotates_back_and_feeds_its_errors_back() -> None:
    x = torch.randn(256)
    torch.testing.assert_close(methods.hadamard(methods.hadamard(x)), x)
    matrix = torch.stack([methods.hadamard(row) for row in torch.eye(4)])
    signs = [[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]
    assert torch.equal(matrix, torch.tensor(signs) / 2)
    rows = gradients(0, ranks=2, elements=3000)
    method = Thc(Setup([(3000,)], 1))
    first, _ = method.exchange(rows, 0)
    second, _ = method.exchange(rows, 1)
    one = float((first - rows.mean(0)).norm())
    two = float(((first + second) / 2 - rows.mean(0)).norm())
    assert 0 < two < 0.7 * one < 0.3 * float(rows.mean(0).norm())


def test_local_steps_merge_to_the_mean_and_dilocos_outer_step_has_momentum() -> None:
    start, workers = torch.zeros(2), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert torch.equal(LocalSteps(8).merge(start, workers), torch.tensor([2.0, 3.0]))
    outer = LocalSteps(8, outer=0.5, outer_rate=1.0)
    assert torch.equal(outer.merge(start, workers), torch.tensor([3.0, 4.5]))  # 1.5 moves.
    assert torch.equal(outer.merge(start, workers), torch.tensor([3.5, 5.25]))  # 1 + 0.5 (1 + 0.5).
    assert LocalSteps(30).bytes(30) == 7


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_the_optimizers_are_torchs(name: str) -> None:
    class Sgd(Resnet9Cifar):
        def __init__(self) -> None:
            pass

    class AdamW(ByteTransformer):
        clip = 0.0

        def __init__(self) -> None:
            pass

    workload = Sgd() if name == "sgd" else AdamW()
    weights = torch.randn(50)
    parameter = torch.nn.Parameter(weights.clone())
    decay = workload.weight_decay
    theirs: torch.optim.Optimizer = (
        torch.optim.SGD([parameter], lr=0.01, momentum=MOMENTUM, nesterov=True, weight_decay=decay)
        if name == "sgd"
        else torch.optim.AdamW([parameter], lr=0.01, betas=BETAS, eps=EPSILON, weight_decay=decay)
    )
    ours = Optimizer(workload)
    for number in range(5):
        parameter.grad = gradients(number, 1, 50)[0]
        theirs.step()
        weights = ours.step(weights, parameter.grad, 0.01)
    torch.testing.assert_close(weights, parameter.detach(), rtol=1e-5, atol=1e-6)


def test_where_gradients_have_momentum_decay_gets_its_own() -> None:
    class Sgd(Resnet9Cifar):
        weight_decay = 0.1

        def __init__(self) -> None:
            pass

    weights = torch.randn(50)
    whole, split = Optimizer(Sgd()), Optimizer(Sgd(), has_momentum=True)
    expected, found, before = weights, weights, torch.zeros(50)
    for number in range(5):
        gradient = gradients(number, 1, 50)[0]
        before = MOMENTUM * before + gradient
        expected = whole.step(expected, gradient, 0.1)
        found = split.step(found, gradient + MOMENTUM * before, 0.1)
    torch.testing.assert_close(found, expected)


def test_risk_of_half_the_noise_of_the_mean_is_a_half() -> None:
    rows = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])  # Mean 0, variance of the mean 2 in all.
    assert risk(torch.tensor([1.0, 0.0]), rows, None) == pytest.approx(0.5)
    assert risk(torch.tensor([9.0, 1.0]), rows, torch.tensor([1])) == pytest.approx(1.0)


def test_a_crossing_is_the_first_of_two_evaluations_in_a_row() -> None:
    curve = [(10, 1.0), (20, 5.0), (30, 4.0), (40, 5.0), (50, 6.0)]
    assert crossing(curve, 5.0) == 40
    assert crossing(curve, 6.0) is None


def test_the_papers_networks_have_their_weights() -> None:
    millions = {name: round(network.elements / 1e6, 1) for name, network in NETWORKS.items()}
    assert millions == {"vgg19": 20.0, "resnet18": 11.2, "resnet152": 58.2, "vit_b16": 85.8}
