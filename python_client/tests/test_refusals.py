from __future__ import annotations

import pytest
import torch
from small_nets import small_net
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import pactrain
from pactrain import _abi, checks


def test_a_second_attach_is_refused(attach, net):
    attached = attach(net)
    with pytest.raises(pactrain.RefusedError, match="attached already"):
        pactrain.attach(attached.ddp)


def test_a_second_hook_is_refused(attach, net):
    ddp = DistributedDataParallel(net)
    ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    with pytest.raises(pactrain.RefusedError, match="communication hook already"):
        checks.check_model(ddp, [])


def test_half_and_double_parameters_are_refused(group, net):
    with pytest.raises(pactrain.RefusedError, match="float64"):
        checks.check_model(DistributedDataParallel(net.double()), [])


def test_a_sparse_embedding_is_refused(group):
    ddp = DistributedDataParallel(nn.Sequential(nn.Embedding(4, 2, sparse=True)))
    with pytest.raises(pactrain.RefusedError, match="sparse gradients"):
        checks.check_model(ddp, [])


def test_an_embedding_that_passes_renorm_is_refused_where_there_are_other_ranks():
    model = nn.Sequential(nn.Embedding(4, 2, max_norm=1.0))
    with pytest.raises(pactrain.RefusedError, match="embedding '0' has max_norm"):
        checks.check_passes(model, 2)
    checks.check_passes(model, 1)


def test_a_model_that_is_not_on_the_cpu_is_refused(group, net):
    ddp = DistributedDataParallel(net)
    ddp.module.to("meta")
    with pytest.raises(pactrain.RefusedError, match="is on meta"):
        checks.check_model(ddp, [])


def test_skipped_reductions_are_refused(group, net):
    ddp = DistributedDataParallel(net, skip_all_reduce_unused_params=True)
    with pytest.raises(pactrain.RefusedError, match="skip_all_reduce_unused_params"):
        checks.check_model(ddp, [])


def test_mixed_precision_of_ddp_is_refused(group, net):
    ddp = DistributedDataParallel(net)
    ddp.mixed_precision = object()
    with pytest.raises(pactrain.RefusedError, match="mixed_precision"):
        checks.check_model(ddp, [])


def test_fsdp_is_refused():
    class FullyShardedDataParallel(nn.Module):
        pass

    with pytest.raises(pactrain.RefusedError, match="FSDP"):
        checks.unwrap(nn.Sequential(FullyShardedDataParallel()))


def test_wrappers_are_looked_through(group, net):
    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    ddp = DistributedDataParallel(net)
    assert checks.unwrap(Wrapper(torch.compile(ddp, backend="eager"))) is ddp


def test_a_join_that_changes_the_divisor_is_refused_in_words(attach, net):
    attached = attach(net)
    with (
        pytest.raises(pactrain.RefusedError, match=r"divide_by_initial_world_size"),
        attached.session.guard(),
        attached.ddp.join(divide_by_initial_world_size=False),
    ):
        attached.step()


def test_join_compares_parameters_where_all_are_equal(attach, net):
    attached = attach(net)
    for _ in range(2):
        with attached.ddp.join():
            attached.step()
            attached.step()
    attached.step()
    attached.step()
    digests = [digest is not None for _, _, digest in attached.native.submits[-6:]]
    assert digests == [True, False, True, False, True, False]


def test_bad_masks_are_refused(attach):
    with pytest.raises(pactrain.InvalidArgument, match="masks is 'auto'"):
        attach(small_net(), masks="auto")


def test_no_agent_is_an_error_where_none_may_be_started(group, net, monkeypatch):
    monkeypatch.delenv("PACTRAIN_AGENT", raising=False)
    monkeypatch.setenv("PACTRAIN_EMBEDDED", "0")
    with pytest.raises(pactrain.PacTrainError, match="PACTRAIN_AGENT is not set"):
        pactrain.attach(DistributedDataParallel(net))


def test_a_missing_library_is_an_error_that_lists_the_places(monkeypatch, tmp_path):
    monkeypatch.delenv("PACTRAIN_TRAINER_LIBRARY", raising=False)
    monkeypatch.setattr(_abi, "NATIVE", tmp_path)
    with pytest.raises(pactrain.PacTrainError, match="was not found; looked at"):
        _abi.find_library()
    with pytest.raises(pactrain.PacTrainError, match="was not found; looked at"):
        _abi._read_header.__wrapped__()
    (tmp_path / _abi.LIBRARY_NAME).touch()
    with pytest.raises(pactrain.PacTrainError, match=r"pactrain\.h was not found"):
        _abi._read_header.__wrapped__()


def test_what_no_header_has_is_no_name():
    with pytest.raises(AttributeError, match="has no attribute 'Digset'"):
        _abi.Digset  # noqa: B018


def test_a_named_library_that_is_not_there_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("PACTRAIN_TRAINER_LIBRARY", str(tmp_path / "no.so"))
    with pytest.raises(pactrain.InvalidArgument, match="PACTRAIN_TRAINER_LIBRARY"):
        _abi.find_library()


def test_two_models_that_share_parameters_are_refused_at_the_second(attach):
    encoder = nn.Linear(6, 8)
    first, second = (nn.Sequential(encoder, nn.Linear(8, 3)) for _ in "ab")
    attach(first)
    with pytest.raises(pactrain.RefusedError, match=r"0\.weight, 0\.bias: these"):
        attach(second)
