from __future__ import annotations

import io

import pytest
import torch
from fake_native import activate
from small_nets import small_net

import pactrain
from pactrain.masks import registry

STEP = torch.optim.SGD


def amounts(schedule, steps):
    seen = []
    for _ in range(steps):
        schedule.step()
        seen.append(schedule.amount)
    return seen


def test_the_amount_grows_as_a_cube(net):
    schedule = pactrain.PruningSchedule(net, 0.8, steps=10, every=5)
    half = 0.8 * (1 - 0.5**3)
    assert amounts(schedule, 12) == pytest.approx([0] * 4 + [half] * 5 + [0.8] * 3)
    assert int(registry.get(net[2].weight).sum()) == round(0.2 * 64)
    assert schedule.done


def test_the_last_change_comes_with_the_last_step_and_reaches_the_amount(net):
    schedule = pactrain.PruningSchedule(net, 0.5, steps=7, every=3, start=2)
    assert schedule.total_changes == 3
    seen = amounts(schedule, 9)
    assert [i + 1 for i, a in enumerate(seen) if a != ([0.0, *seen])[i]] == [5, 8, 9]
    assert seen[-1] == 0.5


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.filterwarnings("ignore:.*nothing to exchange")
def test_a_schedule_that_training_ends_before_is_said(attach, net, caplog, wrapped):
    schedule = pactrain.PruningSchedule(net, 0.8, steps=10, every=5, start=2)
    session = attach(net).session if wrapped else pactrain.attach(net)
    amounts(schedule, 8)
    session.close()
    assert (
        "not reached: a PruningSchedule was to prune 80.0%: of its 2 changes 1 were "
        "made (70.0%), as its step() was called 8 times, and the last one"
    ) in caplog.text


def test_nothing_is_said_of_a_schedule_that_was_done(net, caplog):
    schedule = pactrain.PruningSchedule(net, 0.8, steps=4, every=2)
    with pytest.warns(UserWarning, match="nothing to exchange"):
        session = pactrain.attach(net)
    amounts(schedule, 4)
    session.close()
    assert schedule.done
    assert "PruningSchedule" not in caplog.text


def test_a_change_waits_until_the_one_before_is_in_force(attach):
    model = small_net()
    attached = attach(model)
    optimizer = STEP(model.parameters(), lr=0.1, momentum=0.9)
    schedule = pactrain.PruningSchedule(model, 0.75, steps=2, every=1, start=2)
    for _ in range(6):
        attached.step(optimizer=optimizer)
        schedule.step()
    assert schedule.changes == 1
    assert not attached.session.masks_settled
    first = registry.get(model[2].weight)
    activate(attached)
    attached.step(optimizer=optimizer)
    assert attached.session.masks_settled
    report = schedule.step()
    assert schedule.changes == 2
    assert not schedule.done  # Declared, not in force.
    assert report.layers == (("2.weight", 64, 16),)
    assert not (registry.get(model[2].weight) & ~first).any()
    attached.step(optimizer=optimizer)
    attached.step(optimizer=optimizer)
    assert all(vote["inside"] for vote in attached.native.votes)
    activate(attached, version=2)
    attached.step(optimizer=optimizer)
    assert schedule.done
    assert int((model[2].weight != 0).sum()) == 16


def test_who_waits_for_long_is_told_once(attach, caplog):
    model = small_net()
    attached = attach(model)
    schedule = pactrain.PruningSchedule(model, 0.75, steps=2, every=1)
    for _ in range(500):
        schedule.step()
    assert caplog.text.count("change 1 of 2 is not in force after 200 steps") == 1
    attached.session.close()


def test_without_a_session_weights_are_zeroed_again_at_each_step(net):
    schedule = pactrain.PruningSchedule(net, 0.5, steps=1, every=1)
    schedule.step()
    with torch.no_grad():
        net[2].weight.fill_(1)
    schedule.step()
    assert int((net[2].weight == 0).sum()) == 32


def test_a_schedule_goes_on_from_its_state(net):
    first = pactrain.PruningSchedule(net, 0.8, steps=10, every=2)
    for _ in range(5):
        first.step()
    wrapped = torch.compile(small_net(), backend="eager")
    pactrain.apply_masks(wrapped, {"2.weight": registry.get(net[2].weight)})
    second = pactrain.PruningSchedule(wrapped, 0.8, steps=10, every=2)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    assert second.amount == first.amount
    assert amounts(second, 5) == amounts(first, 5)


@pytest.mark.parametrize("steps", [1, 10])
def test_a_schedule_that_goes_on_without_its_masks_says_so(net, steps):
    first = pactrain.PruningSchedule(net, 0.8, steps=10, every=10 // steps)
    for _ in range(10):
        first.step()
    again = small_net()
    second = pactrain.PruningSchedule(again, 0.8, steps=10, every=10 // steps)
    second.load_state_dict(first.state_dict())
    assert not second.done
    with pytest.raises(
        pactrain.InvalidArgument, match=rf"model has no masks.* {steps} of {steps} "
    ) as raised:
        second.step()
    assert "attach(ddp, state=...)" in str(raised.value)
    pactrain.apply_masks(again, {"2.weight": registry.get(net[2].weight)})
    second.step()
    assert second.done


@pytest.mark.parametrize("schedule_first", [True, False])
def test_masks_of_a_sessions_state_may_come_before_or_after_the_schedules(
    attach, schedule_first
):
    model = small_net()
    attached = attach(model)
    schedule = pactrain.PruningSchedule(model, 0.8, steps=4, every=2)
    for _ in range(2):
        attached.step()
        schedule.step()
    attached.step()
    state = attached.session.state_dict()
    again = small_net(1)
    second = pactrain.PruningSchedule(again, 0.8, steps=4, every=2)
    if schedule_first:
        second.load_state_dict(schedule.state_dict())
    attach(again, state=state)
    if not schedule_first:
        second.load_state_dict(schedule.state_dict())
    assert second.step() is None
    assert second.changes == 1


@pytest.mark.parametrize("missing", ["steps", "changes", "made_with"])
def test_a_state_that_is_none_is_refused(net, missing):
    schedule = pactrain.PruningSchedule(net, 0.8, steps=10, every=2)
    state = schedule.state_dict()
    del state[missing]
    with pytest.raises(
        pactrain.InvalidArgument, match=rf"state\['{missing}'\] is None; allowed"
    ):
        schedule.load_state_dict(state)


def test_a_state_of_changes_that_never_come_is_refused(net):
    schedule = pactrain.PruningSchedule(net, 0.8, steps=10, every=2)
    with pytest.raises(pactrain.InvalidArgument, match=r"\['changes'\] is 9; .* 5\."):
        schedule.load_state_dict({**schedule.state_dict(), "changes": 9})


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"amount": 0.5}, "amount: .* with 0.5, this one has 0.8"),
        ({"steps": 20}, "steps: .* with 20, this one has 10"),
        ({"every": 5}, "every: .* with 5, this one has 2"),
        ({"start": 3}, "start: .* with 3, this one has 0"),
        ({"scope": "erk"}, "scope: .* with 'erk', this one has 'layer'"),
        ({"method": "random"}, "method: .* with 'random', this one has 'magnitude'"),
        ({"kind": "freeze"}, "kind: .* with 'freeze', this one has 'zero'"),
        ({"seed": 1}, "seed: .* with 1, this one has 0"),
        (
            {"exempt": ("2",)},
            r"parameters \(those that only one has\): .* with "
            r"\['0.weight', '4.weight'\], this one has \['2.weight'\]",
        ),
    ],
)
def test_another_schedules_state_is_refused(net, changed, text):
    given = {"amount": 0.8, "steps": 10, "every": 2}
    schedule = pactrain.PruningSchedule(net, **given)
    schedule.step()
    other = pactrain.PruningSchedule(small_net(), **given | changed)
    with pytest.raises(pactrain.InvalidArgument, match=text):
        schedule.load_state_dict(other.state_dict())
    assert schedule.state_dict()["steps"] == 1


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"amount": 1.0}, "amount is 1.0"),
        ({"steps": 0}, "steps is 0"),
        ({"steps": 2.5}, "steps is 2.5"),
        ({"every": 0}, "every is 0"),
        ({"every": 11}, "every is 11; allowed is at most steps, which is 10"),
        ({"start": -1}, "start is -1"),
        ({"method": "grasp"}, "chooses once"),
        ({"method": "best"}, "method is 'best'; allowed are 'magnitude' and 'random'"),
        ({"scope": "row"}, "scope is 'row'"),
        ({"kind": "drop"}, "kind is 'drop'"),
        ({"exempt": ("*",)}, "nothing to prune"),
    ],
)
def test_values_out_of_range_are_named(net, changed, text):
    with pytest.raises(pactrain.InvalidArgument, match=text):
        pactrain.PruningSchedule(
            net, **{"amount": 0.5, "steps": 10, "every": 2} | changed
        )
