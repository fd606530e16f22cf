"""What our own DistributedDataParallel does at construction, and what it refuses."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from fake_native import FakeJob, submitted
from small_nets import gradients, small_net
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch.nn.utils import prune

import pactrain
from pactrain import attaching, distributed, meeting
from pactrain.types import Op
from pactrain.world import Site, World


def model_of_all_kinds(seed):
    """Pruned, frozen and unused parts; all its values depend on the seed."""
    net = nn.Sequential(small_net(seed), nn.BatchNorm1d(3), nn.Linear(3, 700))
    net[1].running_mean.fill_(seed)
    net[2].requires_grad_(False)  # Larger than the slot, which is for gradients.
    bits = torch.tensor([0x7FC01234 + seed], dtype=torch.int32)
    net.register_buffer("odd_nan", bits.view(torch.float32))
    net.register_buffer("flags", torch.tensor([seed == 0, True, False]))
    net.register_buffer("wide", torch.full((3,), seed / 3, dtype=torch.float64))
    return net


def bits_of(model):
    return {
        name: value.contiguous().reshape(-1).view(torch.uint8).tolist()
        for name, value in model.state_dict().items()
    }


@pytest.mark.parametrize("masks", [None, "track"])
def test_all_ranks_start_from_rank_zeros_bits(natives, monkeypatch, masks):
    """Two ranks in threads."""
    models = [model_of_all_kinds(seed) for seed in (0, 1)]
    for model in models:
        if masks is None:
            pactrain.prune(model[0], 0.5)
        else:  # The masks are buffers, and differ.
            prune.l1_unstructured(model[0][2], "weight", 0.5)
    expected = bits_of(models[0])
    job = FakeJob(2)
    here = threading.local()
    made, started, failures = {}, {}, []

    def fake_attach(options, on_waiting, advice, within):
        made[options.rank] = job.rank(options.rank)
        return made[options.rank]

    def world():
        return World(here.rank, 2, here.rank, 2, "", (Site("", 2),))

    monkeypatch.setattr(attaching.NativeSession, "attach", fake_attach)
    monkeypatch.setattr(distributed, "init", world)

    def run(rank):
        here.rank = rank
        try:
            ddp = pactrain.DistributedDataParallel(models[rank], masks=masks)
            started[rank] = bits_of(models[rank])
            ddp(torch.full((4, 6), rank + 1.0)).square().mean().backward()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not failures
    assert started == {0: expected, 1: expected}
    exchanges = [op for op, _, _ in made[0].submits if op == Op.XOR]
    assert len(exchanges) >= 4  # Settings, masks, and the state in pieces.
    first, second = (gradients(model) for model in models)
    for ours, theirs in zip(first, second, strict=True):
        assert ours is theirs is None or torch.equal(ours, theirs)


def test_names_in_state_dict_are_those_of_torchs_wrapper(group, wrap, net):
    expected = list(TorchDDP(copy.deepcopy(net)).state_dict())
    wrapped = wrap(net)
    assert list(wrapped.ddp.state_dict()) == expected
    wrapped.ddp.load_state_dict(
        {f"module.{name}": value for name, value in small_net(3).state_dict().items()}
    )
    assert torch.equal(net[0].weight, small_net(3)[0].weight)
    assert wrapped.ddp.module is net


def test_a_copy_of_the_model_inside_is_a_plain_model(wrap, net):
    wrapped = wrap(net)
    inner = copy.deepcopy(wrapped.ddp.module)
    inner(torch.ones(4, 6)).sum().backward()  # Has no hooks.
    assert submitted(wrapped.native) == 0


def test_a_model_is_wrapped_once(group, wrap, net):
    wrapped = wrap(net)
    with pytest.raises(pactrain.RefusedError, match="attached already"):
        wrap(net)
    with pytest.raises(pactrain.RefusedError, match="attached already"):
        pactrain.attach(wrapped.ddp)
    with pytest.raises(pactrain.RefusedError, match="torch's DistributedDataParallel"):
        wrap(TorchDDP(small_net()))


@pytest.mark.parametrize("cap", [0, -1, float("nan"), 4097])
def test_a_bucket_cap_out_of_range_is_refused(wrap, net, cap):
    with pytest.raises(pactrain.InvalidArgument, match=r"bucket_cap_mb is .* 4096"):
        wrap(net, bucket_cap_mb=cap)


def test_too_many_buckets_are_refused(wrap, monkeypatch, net):
    monkeypatch.setattr(distributed, "MAX_BUCKETS", 5)
    with pytest.raises(
        pactrain.InvalidArgument, match="gives 6 buckets; allowed are 1 to 5"
    ):
        wrap(net, bucket_cap_mb=1e-6)


def options_at(site, wrap, natives, monkeypatch):
    """What the trainer library gets at one of two sites."""
    monkeypatch.setenv("PACTRAIN_SITES", "a:1,b:1")
    monkeypatch.setenv("PACTRAIN_SITE", site)
    wrap(small_net())
    return natives[-1].options


def test_ranks_are_those_over_all_sites(wrap, natives, monkeypatch):
    options = options_at("b", wrap, natives, monkeypatch)
    assert (options.rank, options.world_size, options.site) == (1, 2, "b")


def test_the_launch_has_one_name_whatever_launchers_say(wrap, natives, monkeypatch):
    launches = set()
    for site, port in (("a", "1"), ("b", "2")):
        monkeypatch.setenv("MASTER_PORT", port)
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", port)
        launches.add(options_at(site, wrap, natives, monkeypatch).launch)
    assert len(launches) == 1


@pytest.mark.parametrize("sites", ["", "a:1"])
def test_a_site_of_the_list_that_is_restarted_has_the_launch_it_had(
    wrap, natives, monkeypatch, sites
):
    monkeypatch.setenv("PACTRAIN_SITES", sites)
    monkeypatch.setenv("PACTRAIN_SITE", "a")
    launches = set()
    for restarts in ("0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
        wrap(small_net())
        launches.add(natives[-1].options.launch)
    assert len(launches) == (1 if sites else 2)


def test_several_sites_need_agents(wrap, net, monkeypatch):
    monkeypatch.setenv("PACTRAIN_SITES", "a:1,b:1")
    monkeypatch.setenv("PACTRAIN_SITE", "b")
    monkeypatch.delenv("PACTRAIN_AGENT")
    with pytest.raises(pactrain.PacTrainError, match="Start an agent per node"):
        wrap(net)


def test_no_group_is_needed_to_meet_but_the_address_is(wrap, net, monkeypatch):
    monkeypatch.delenv("PACTRAIN_AGENT")
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: False)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        pactrain.InvalidArgument, match=r"MASTER_ADDR:MASTER_PORT is ':'"
    ):
        wrap(net)


@pytest.fixture
def unnamed(natives, monkeypatch):
    """Nothing names the job."""
    monkeypatch.delenv("PACTRAIN_JOB_ID")


def job_at(wrap, natives, monkeypatch, token):
    monkeypatch.setattr(distributed, "process_token", lambda: token)
    monkeypatch.setattr(attaching, "process_token", lambda: token)
    wrap(small_net())
    return natives[-1].options.job


@pytest.mark.parametrize("run", [{}, {"TORCHELASTIC_RUN_ID": "none"}])
def test_launches_without_a_name_are_jobs_of_their_own(
    wrap, natives, monkeypatch, unnamed, run
):
    for name, value in run.items():
        monkeypatch.setenv(name, value)
    tokens = ["1" * 32, "2" * 32, "2" * 32]
    jobs = [job_at(wrap, natives, monkeypatch, token) for token in tokens]
    assert jobs[0] != jobs[1] == jobs[2] != "default"


def test_ranks_of_a_launch_without_a_name_get_it_from_rank_zero(
    wrap, natives, monkeypatch, unnamed
):
    store = torch.distributed.HashStore()
    monkeypatch.setattr(distributed, "launch_store", lambda config: store)
    monkeypatch.setattr(meeting, "call_roll", lambda *arguments: None)  # One by one.
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    jobs = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        jobs.append(job_at(wrap, natives, monkeypatch, rank * 32))
    assert jobs == ["unnamed-" + "0" * 16] * 2


def test_ranks_that_cannot_meet_keep_the_name_that_all_have(
    wrap, natives, monkeypatch, unnamed, caplog
):
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert job_at(wrap, natives, monkeypatch, "1" * 32) == "default"
    assert "every other launch without a name would join it" in caplog.text


@pytest.mark.parametrize(
    "named", [{"PACTRAIN_JOB_ID": "a"}, {"TORCHELASTIC_RUN_ID": "a"}]
)
def test_a_name_stays_as_it_is(wrap, natives, monkeypatch, unnamed, named):
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    assert job_at(wrap, natives, monkeypatch, "1" * 32) == "a"


def test_a_list_of_sites_without_a_name_is_the_default_job(
    wrap, natives, monkeypatch, unnamed
):
    monkeypatch.setenv("PACTRAIN_SITES", "a:1")
    monkeypatch.setenv("PACTRAIN_SITE", "a")
    assert job_at(wrap, natives, monkeypatch, "1" * 32) == "default"


def test_torchs_arguments_are_taken_where_they_change_nothing(wrap, net):
    wrapped = wrap(
        net, find_unused_parameters=True, static_graph=False, device_ids=None
    )
    wrapped.step()
    assert wrapped.session.stats()["pactrain/steps"] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"device_ids": [0]}, r"device_ids is \[0\]; allowed is None"),
        ({"dim": 1}, "dim is 1; allowed is 0"),
        ({"process_group": "gloo"}, "no process group is used"),
        ({"bucket_cap": 3}, "bucket_cap is no argument"),
    ],
)
def test_torchs_other_arguments_are_refused_in_words(net, arguments, words):
    with pytest.raises(pactrain.InvalidArgument, match=words):
        pactrain.DistributedDataParallel(net, **arguments)


def test_join_is_refused_in_words(wrap, net):
    with pytest.raises(pactrain.RefusedError, match="on_shrink='continue'"):
        wrap(net).ddp.join()
