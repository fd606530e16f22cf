"""What each rank would train alone is refused before an optimizer moves it."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from small_nets import pruned, small_net
from torch.nn.parallel import DistributedDataParallel

import pactrain


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def values(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def untouched(model, before):
    return all(
        torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True)
    )


def test_a_layer_that_begins_to_train_after_it_was_wrapped_is_refused(attach):
    model = small_net()
    model[0].requires_grad_(False)
    attached = attach(model)
    optimizer = sgd(model)
    attached.step(optimizer=optimizer)
    before = values(model)
    model[0].requires_grad_(True)
    with pytest.raises(pactrain.RefusedError, match=r"0\.weight .* needed no gradient"):
        attached.step(optimizer=optimizer)
    assert untouched(model, before)


def test_a_layer_that_is_put_in_later_is_refused(attach):
    model = small_net()
    attached = attach(model)
    attached.step()
    model.append(torch.nn.Linear(model[-1].out_features, 3))
    with pytest.raises(pactrain.RefusedError, match="was not there"):
        attached.step(optimizer=sgd(model))


def test_what_ddp_was_told_to_ignore_is_left_alone(attach):
    model = small_net()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
        model, ["0.weight"]
    )
    attached = attach(model)
    attached.step(optimizer=sgd(model))


def test_masks_of_what_ddp_was_told_to_ignore_are_said_not_to_act(attach, caplog):
    model = pruned()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
        model, ["2.weight"]
    )
    attach(model)
    assert "2.weight: pruned, and left alone" in caplog.text


@pytest.mark.parametrize("convert", [torch.nn.Module.bfloat16, torch.nn.Module.double])
def test_a_model_that_gets_another_type_is_refused(attach, convert):
    model = small_net()
    attached = attach(model)
    attached.step()
    convert(model)
    inputs = torch.ones(4, 6, dtype=model[0].weight.dtype)
    with pytest.raises(
        pactrain.RefusedError, match=r"0\.weight is torch\.\w+, but was"
    ):
        attached.step(inputs, sgd(model))


def convolutions():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 2, 3))


def to_channels_last(model):
    model.to(memory_format=torch.channels_last)


def transpose(model):
    weight = model[1].weight
    weight.data = weight.data.transpose(0, 1).contiguous().transpose(0, 1)


@pytest.mark.parametrize("how", [to_channels_last, transpose])
@pytest.mark.parametrize("own", [False, True])
def test_another_memory_order_than_when_it_was_attached_is_refused(
    attach, wrap, own, how
):
    model = convolutions()
    attached = (wrap if own else attach)(model)
    inputs = torch.ones(1, 3, 8, 8)
    optimizer = sgd(model)
    attached.step(inputs, optimizer)
    how(model)
    before = values(model)
    refused = pactrain.RefusedError if own else RuntimeError  # torch's, by a hook.
    with pytest.raises(refused, match=r"\.weight has its elements in"):
        attached.step(inputs, optimizer)
    assert untouched(model, before)


def test_a_memory_order_that_it_has_from_the_beginning_is_fine(attach):
    model = convolutions().to(memory_format=torch.channels_last)
    attached = attach(model)
    for _ in range(2):
        attached.step(torch.ones(1, 3, 8, 8), sgd(model))
    model.to(memory_format=torch.channels_last)
    attached.step(torch.ones(1, 3, 8, 8), sgd(model))


def test_other_parameters_that_a_load_assigns_are_refused_at_once(attach):
    model = pruned()
    attached = attach(model)
    attached.step()
    with pytest.raises(pactrain.RefusedError, match="without assign=True"):
        attached.ddp.module.load_state_dict(
            copy.deepcopy(model.state_dict()), assign=True
        )


def test_the_same_where_one_process_trains_alone():
    model = pruned()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = pactrain.attach(model)
    try:
        with pytest.raises(pactrain.RefusedError, match="without assign=True"):
            model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    finally:
        session.close()


def test_a_copy_may_be_assigned_to_and_trained(attach):
    model = pruned()
    attach(model)
    other = copy.deepcopy(model)
    other.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    other(torch.ones(4, 6)).sum().backward()
    sgd(other).step()


def test_after_close_the_script_is_free(attach):
    model = small_net()
    model[0].requires_grad_(False)
    attached = attach(model)
    attached.session.close()
    model[0].requires_grad_(True)
    model(torch.ones(4, 6)).sum().backward()
    sgd(model).step()


@pytest.fixture
def one_model():
    model = pruned()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = pactrain.attach(model)
    yield model, session
    session.close()


def train(model, optimizer, steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 6)).square().mean().backward()
        optimizer.step()


def test_in_one_process_masks_go_with_a_parameter_that_is_replaced(one_model):
    model, session = one_model
    model[2].weight = torch.nn.Parameter(model[2].weight.detach().clone())
    zero = model[2].weight == 0
    train(model, sgd(model))
    assert torch.equal(model[2].weight == 0, zero)
    assert f"{int(zero.sum()) / 155:.1%} are zero" in session.summary()


def test_in_one_process_weights_that_replace_others_are_not_zeroed(one_model):
    model, _ = one_model
    new = small_net(5)[2].weight.detach().clone()
    model[2].weight = torch.nn.Parameter(new.clone())
    with pytest.raises(pactrain.PacTrainError, match="weights were loaded"):
        train(model, sgd(model))
    assert torch.equal(model[2].weight, new)


def test_in_one_process_a_layer_that_is_put_in_trains(one_model):
    model, session = one_model
    model.append(torch.nn.Linear(3, 3))
    before = model[-1].weight.detach().clone()
    train(model, sgd(model))
    assert not torch.equal(model[-1].weight, before)
    assert "Of 167 weights" in session.summary()


def test_in_one_process_a_replaced_parameter_is_counted_at_the_end(one_model, caplog):
    model, session = one_model
    new = torch.nn.Parameter(model[2].weight.detach().clone())
    model[2].weight = new
    new.data += 1.0  # By nobody who tells of it.
    session.close()
    assert "32 weights outside the masks are not zero" in caplog.text


def test_in_one_process_weights_may_be_loaded_into_a_layer_that_was_unfrozen():
    model = pruned()
    model[0].requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = pactrain.attach(model)
    model[0].requires_grad_(True)
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    train(model, sgd(model))
    session.close()
