"""No optimizer moves weights by gradients that one rank alone has.

Nothing is silent where none was exchanged.
"""

from __future__ import annotations

import copy
import dataclasses
import logging

import pytest
import torch
from fake_native import submitted
from small_nets import pruned, small_net
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import pactrain
from pactrain.lone_gradients import MANY_PASSES

X = torch.ones(4, 6)
SILENT = "was not exchanged"


@pytest.fixture(params=["attach", "wrap"])
def made(request):
    """attach(model), by torch's wrapper and by ours, as if there were two ranks."""

    def run(model, world_size=2, **options):
        attached = request.getfixturevalue(request.param)(model, **options)
        membership = attached.session.membership
        membership.world = dataclasses.replace(membership.world, world_size=world_size)
        return attached

    return run


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), lr=0.1, **options)


def values(model):
    return [p.detach().clone() for p in model.parameters()]


def refused(attached, optimizer):
    """The step is refused, and nothing has moved."""
    before = values(attached.ddp)
    with pytest.raises(pactrain.RefusedError, match=SILENT) as error:
        optimizer.step()
    assert "Call the wrapped model" in str(error.value)
    pairs = zip(values(attached.ddp), before, strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def alone(attached, optimizer=None):
    """A forward and backward pass through the model inside."""
    if optimizer is not None:
        optimizer.zero_grad()
    attached.ddp.module(X).square().mean().backward()


def test_a_model_that_is_called_without_its_wrapper_is_refused_at_once(made):
    attached = made(pruned())
    optimizer = sgd(attached.ddp)
    alone(attached, optimizer)
    assert refused(attached, optimizer)
    assert submitted(attached.native) == 0


def test_also_after_steps_that_were_exchanged(made):
    attached = made(small_net())
    optimizer = sgd(attached.ddp)
    attached.step(optimizer=optimizer)
    alone(attached)  # Added to what was exchanged, as a loss of its own.
    assert refused(attached, optimizer)


def test_a_round_under_no_sync_that_is_never_exchanged_is_refused(made):
    attached = made(small_net())
    optimizer = sgd(attached.ddp)
    with attached.ddp.no_sync():
        attached.step()
    assert refused(attached, optimizer)


def test_rounds_that_end_with_an_exchange_are_right(made):
    attached = made(small_net())
    optimizer = sgd(attached.ddp)
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(3):
            with attached.ddp.no_sync():
                attached.step()
        alone(attached)  # Whatever was added up is exchanged.
        attached.step()
        optimizer.step()
        optimizer.step()  # By the same mean at all ranks.


def test_an_optimizer_in_a_hook_of_the_backward_pass_is_refused(made):
    model = small_net()
    optimizer = sgd(model)
    attached = made(model)
    model[2].weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    with pytest.raises(Exception, match=SILENT):
        attached.step()


def test_a_closure_that_calls_the_model_inside_is_refused_in_its_first_step(made):
    attached = made(small_net())
    optimizer = torch.optim.LBFGS(attached.ddp.parameters(), max_iter=2)

    def closure(model):
        optimizer.zero_grad()
        loss = model(X).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(lambda: closure(attached.ddp))
    with pytest.raises(pactrain.RefusedError, match=SILENT):
        optimizer.step(lambda: closure(attached.ddp.module))


def test_a_gan_passes_through_the_other_model(made, attach):
    attached = made(small_net())
    judge, other = sgd(attached.ddp), nn.Linear(6, 6)
    artist = sgd(other)
    for _ in range(2):
        attached.step(optimizer=judge)
        artist.zero_grad()
        attached.ddp.module(other(X)).square().mean().backward()
        artist.step()  # Not the attached model's.


def test_what_is_no_gradient_of_a_pass_is_the_scripts(made):
    """As torch.distributed.checkpoint makes the state of an optimizer: by zeros."""
    attached = made(small_net())
    optimizer = sgd(attached.ddp, momentum=0.9)
    for parameter in attached.ddp.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    alone(attached)
    optimizer.zero_grad()
    optimizer.step()  # Nothing is left of that pass.
    two = [torch.optim.SGD([p], lr=0.1) for p in attached.ddp.parameters()]
    attached.step()
    for one in two:
        one.step()


def test_copies_and_models_of_closed_sessions_are_free(made):
    attached = made(small_net())
    copied = copy.deepcopy(attached.ddp.module)
    copied(X).sum().backward()
    sgd(copied).step()
    attached.session.close()
    alone(attached)
    sgd(attached.ddp).step()


def warnings_of(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_in_a_world_of_one_it_is_said_once_and_at_the_end(made, caplog):
    attached = made(small_net(), world_size=1)
    optimizer = sgd(attached.ddp)
    for _ in range(3):
        alone(attached, optimizer)
        optimizer.step()
    (said,) = warnings_of(caplog)
    assert SILENT in said
    attached.session.close()
    (_, last) = warnings_of(caplog)
    assert "not reached: 3 optimizer steps moved weights by gradients" in last
    assert "NOT REACHED   3 optimizer steps" in attached.session.summary()


def test_without_an_optimizer_of_torch_it_is_said_after_many_passes(made, caplog):
    attached = made(small_net())
    for passes in range(MANY_PASSES + 5):
        alone(attached)
        assert len(warnings_of(caplog)) == (passes + 1 >= MANY_PASSES)
    assert f"{MANY_PASSES} backward passes in a row" in warnings_of(caplog)[0]


def test_close_says_that_nothing_was_exchanged(made, caplog):
    attached = made(pruned())
    alone(attached)
    attached.session.close()
    (text,) = warnings_of(caplog)
    assert "not reached: gradients came to this model, and none was exchanged" in text


def test_close_says_nothing_of_the_kind_after_a_step_that_was_refused(made, caplog):
    attached = made(pruned())
    attached.ddp.module.load_state_dict(small_net(5).state_dict())
    with pytest.raises(pactrain.PacTrainError), attached.session.guard():
        attached.step()
    attached.session.close()
    assert "no backward pass went through the wrapper" not in caplog.text


def test_a_script_that_only_evaluates_is_told_nothing(made, caplog):
    attached = made(pruned())
    with torch.no_grad():
        attached.ddp(X)
        attached.ddp.module(X)
    attached.session.close()
    assert not warnings_of(caplog)


def test_a_parameter_that_is_gone_is_named_as_the_cause(attach):
    attached = attach(small_net())
    membership = attached.session.membership
    membership.world = dataclasses.replace(membership.world, world_size=2)
    module = attached.ddp.module
    optimizer = sgd(module)
    parametrize.register_parametrization(module[2], "weight", nn.Identity())
    parametrizations.weight_norm(module[4])
    optimizer.zero_grad()
    attached.ddp(X).square().mean().backward()
    with pytest.raises(pactrain.RefusedError, match="no parameter of the model") as e:
        optimizer.step()
    assert "4.weight is" in str(e.value)
    assert "before the model is wrapped" in str(e.value)
