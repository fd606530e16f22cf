"""activate_at=, pin= and pin_from=: what is said to the library, and what is said if a
decision comes at another step."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from fake_native import FULL, activate
from small_nets import pruned, small_net

import pactrain
from pactrain.onset import Onset, onset_from
from pactrain.types import Codec, Mode


def test_by_default_masks_are_declared_and_others_come_every_fourth_step(attach):
    options = attach(pruned()).native.options
    assert options.declared_elements > options.kept_elements > 0
    assert (options.activate_every, options.pin_from) == (4, 0)


def test_a_step_that_was_asked_for_is_not_anticipated(wrap):
    wrapped = wrap(pruned(), activate_at=10)
    options = wrapped.native.options
    assert (options.declared_elements, options.activate_every) == (0, 10)
    assert len(wrapped.native.votes) == 1


def test_masks_that_have_to_settle_are_not_declared(attach, net):
    with torch.no_grad():
        net[2].weight[0] = 0
    assert attach(net, masks="weights").native.options.declared_elements == 0


def test_a_pin_is_told_with_its_step(attach):
    options = attach(pruned(), pin="TERNARY 7", pin_from=20).native.options
    assert (options.pin_mode, options.pin_codec) == (Mode.TERNARY, Codec.LEVELS7)
    assert options.pin_from == 20


@pytest.mark.parametrize(
    ("text", "mode", "codec"),
    [
        ("FULL", Mode.FULL, Codec.FP32),
        ("COMPACTED bf16", Mode.COMPACTED, Codec.BF16),
        ("TERNARY 31 levels", Mode.TERNARY, Codec.LEVELS31),
    ],
)
def test_what_can_be_pinned(text, mode, codec):
    assert onset_from(None, text, None) == Onset(0, 1, mode, codec)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, None, None), "activate_at is 0; allowed are 1 to"),
        ((True, None, None), "activate_at is True"),
        ((2.0, None, None), "activate_at is 2.0"),
        (("4", None, None), "activate_at is '4'"),
        ((None, "TERNARY 7", -1), "pin_from is -1"),
        ((None, "TERNARY 4", None), "pin is 'TERNARY 4'; allowed are"),
        ((None, "TERNARY", None), "pin is 'TERNARY'; allowed are"),
        ((None, None, 5), "pin_from is 5, and pin says nothing"),
        ((10, "TERNARY 7", 5), "pin_from is 5, before activate_at, 10"),
    ],
)
def test_what_cannot_be_said(arguments, words):
    with pytest.raises(pactrain.InvalidArgument, match=words):
        onset_from(*arguments)


def test_masks_in_force_with_another_step_are_told_of(attach, caplog):
    attached = attach(pruned(), activate_at=3)
    for _ in range(2):
        attached.step()
    assert "the masks did not come in force with step 3" in caplog.text
    caplog.clear()
    attached.step()
    assert not caplog.text


def test_masks_in_force_with_the_step_asked_for_are_not(attach, caplog):
    attached = attach(pruned(), activate_at=3)
    activate(attached)
    for _ in range(3):
        attached.step()
    assert "did not come in force" not in caplog.text


def test_a_pin_that_is_not_in_force_in_time_is_told_of(attach, caplog):
    attached = attach(pruned(), pin="TERNARY 7", pin_from=2)
    attached.step()
    assert "TERNARY 7 levels, which is pinned, did not come in force" in caplog.text
    caplog.clear()
    ternary = dataclasses.replace(
        FULL, version=1, mode=Mode.TERNARY, codec=Codec.LEVELS7
    )
    other = attach(pruned(), pin="TERNARY 7", pin_from=2)
    other.job.decide = lambda step: ternary
    other.step()
    assert "did not come" not in caplog.text


@pytest.mark.parametrize(
    ("pin", "words"),
    [
        ({"pin": "TERNARY 7", "pin_from": 50}, "TERNARY 7 levels, pinned from step 50"),
        ({"pin": "COMPACTED"}, "COMPACTED fp32, pinned from step 1 on"),
    ],
)
def test_a_pin_that_never_came_is_said_at_the_end(attach, net, pin, words):
    attached = attach(net, **pin)
    attached.step()
    attached.session.close()
    assert f"NOT REACHED   {words}" in attached.session.summary()


def test_a_pin_that_came_is_not_said(attach, net):
    attached = attach(net, pin="FULL")
    attached.step()
    assert "NOT REACHED" not in attached.session.summary()


def test_full_from_the_first_step_is_said_to_leave_masks_out_of_force(attach, caplog):
    attach(pruned(), pin="FULL", pin_from=2)
    assert "never come in force" not in caplog.text
    attach(pruned(), pin="FULL")
    assert "masks never come in force" in caplog.text


def test_masks_that_are_declared_are_those_of_weights_loaded_before(attach):
    checkpoint = small_net(9)
    pactrain.prune(checkpoint, 0.5)
    model = pruned()
    model.load_state_dict(checkpoint.state_dict())
    attached = attach(model)
    assert attached.native.options.mask_digest == attached.native.votes[0]["mask"]
    assert torch.equal(
        pactrain.masks.registry.get(model[2].weight), checkpoint[2].weight != 0
    )


@pytest.mark.parametrize(("masks", "steps"), [("weights", 4), ("track", 3)])
def test_masks_that_have_not_settled_by_then_are_told_of_as_such(
    attach, caplog, masks, steps
):
    net = small_net()
    net[2].weight.data[0] = 0
    attached = attach(net, masks=masks, settle=9, activate_at=4)
    for _ in range(3):
        attached.step()
    assert "the masks did not come in force with step 4" in caplog.text
    words = f"masks were the same for {steps} steps, and settle asks for 9"
    assert words in caplog.text
    assert "took too long" not in caplog.text


def test_why_a_pin_is_late_is_said(attach, caplog):
    net = small_net()
    net[2].weight.data[0] = 0
    options = {"masks": "weights", "settle": 9, "pin_from": 2}
    attach(net, pin="TERNARY 7", **options).step()
    assert "settle asks for 9" in caplog.text  # No decision is made before.
    caplog.clear()
    attach(small_net(), pin="COMPACTED", **options).step()
    assert "no mask leaves elements out" in caplog.text
    caplog.clear()
    attach(small_net(), pin="TERNARY 7", pin_from=2).step()
    assert "the coordinator took too long" in caplog.text


def test_a_pin_that_falls_on_a_change_of_masks_is_late_for_that(attach, caplog):
    attached = attach(pruned(), pin="TERNARY 7", pin_from=3)
    attached.step()
    pactrain.prune(attached.ddp.module, 0.8)
    attached.step()
    assert "masks were the same for 1 step, as settle asks for" in caplog.text
