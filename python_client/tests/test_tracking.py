"""masks="track": what is seen, when it is voted for, and what is refused."""

from __future__ import annotations

import pytest
import torch
from fake_native import activate
from small_nets import small_net
from thread_ranks import FIRST, Script
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import pactrain
from pactrain.effective_weights import EffectiveWeights
from pactrain.errors import InvalidArgument
from pactrain.masks import registry
from pactrain.parameters import ParameterTable


class Masked(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.register_buffer("kept", mask)

    def forward(self, weight):
        return weight * self.kept


class Signs(Masked):
    """Its buffer of 0 and 1 is no mask."""

    def forward(self, weight):
        return weight * (1 - 2 * self.kept.float())


class Dropped(Masked):
    """Its mask says what is left out, as masked_fill's."""

    def forward(self, weight):
        return weight.masked_fill(self.kept != 0, 0)


class MaskedLinear(nn.Linear):
    """A layer of nobody's library. What its mask means only the forward pass knows."""

    def __init__(self, mask):
        super().__init__(mask.shape[1], mask.shape[0])
        self.register_buffer("mask", mask)
        self.register_buffer("weight_mask", mask)

    def forward(self, x):
        weight = self.weight.masked_fill(self.mask, 0)
        return nn.functional.linear(x, weight, self.bias)


class Largest(nn.Module):
    """Makes its mask anew in each forward pass."""

    def forward(self, weight):
        return weight * (weight.abs() > weight.abs().median())


def seen_in(layer, leaf="weight"):
    """The mask that is seen of a layer's weight."""
    table = ParameterTable(layer)
    names = [n for n in table.names if leaf in n and "bias" not in n]
    weights = EffectiveWeights(layer, table)
    return weights.whole(table.names.index(names[0]))


def test_weights_that_are_zero_are_out(net):
    layer = nn.Linear(6, 5)
    layer.weight.data[2] = 0
    assert torch.equal(seen_in(layer), layer.weight != 0)


def test_the_masks_of_torch_prune_count_and_not_the_weights_under_them():
    layer = nn.Linear(6, 5)
    prune.l1_unstructured(layer, "weight", 0.5)
    assert layer.weight_orig.all()
    assert torch.equal(seen_in(layer), layer.weight_mask != 0)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.int64])
def test_the_mask_of_a_parametrization_counts(dtype):
    layer = nn.Linear(6, 5)
    mask = (torch.arange(30).reshape(5, 6) % 3 != 0).to(dtype)
    parametrize.register_parametrization(layer, "weight", Masked(mask))
    assert torch.equal(seen_in(layer), mask != 0)


def test_two_parametrizations_keep_what_both_keep():
    layer = nn.Linear(6, 5)
    rows, columns = torch.ones(5, 6), torch.ones(5, 6)
    rows[0], columns[:, 0] = 0, 0
    for mask in (rows, columns):
        parametrize.register_parametrization(layer, "weight", Masked(mask))
    assert torch.equal(seen_in(layer), (rows * columns) != 0)


def test_a_parametrization_without_a_mask_is_asked_for_its_weight():
    layer = nn.Linear(6, 5)
    parametrize.register_parametrization(layer, "weight", Largest())
    before = torch.get_rng_state()
    assert torch.equal(seen_in(layer), layer.weight != 0)
    assert torch.equal(torch.get_rng_state(), before)
    assert layer.parametrizations.weight[0].training


def test_spectral_norm_is_left_alone():
    layer = parametrizations.spectral_norm(nn.Linear(6, 5))
    u = layer.parametrizations.weight[0]._u.clone()
    assert seen_in(layer).all()
    assert torch.equal(layer.parametrizations.weight[0]._u, u)


def test_a_library_may_come_and_go_and_weights_may_lie_in_any_order():
    conv = nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last)
    table = ParameterTable(conv)
    weights = EffectiveWeights(conv, table)
    assert weights.whole(0).all()
    prune.custom_from_mask(conv, "weight", torch.rand(conv.weight.shape) < 0.5)
    mask = conv.weight_mask != 0
    assert torch.equal(weights.whole(0), mask)
    prune.remove(conv, "weight")
    assert torch.equal(weights.whole(0), mask)
    other = torch.rand(conv.weight.shape) < 0.5
    parametrize.register_parametrization(conv, "weight", Masked(other))
    assert torch.equal(weights.whole(0), other)


def test_a_buffer_that_is_called_mask_says_nothing():
    layer = MaskedLinear(torch.rand(5, 6) < 0.5)
    assert seen_in(layer).all()
    layer.weight.data[2] = 0
    assert torch.equal(seen_in(layer), layer.weight != 0)


def test_a_mask_of_torch_prune_counts_only_where_torch_multiplies_by_it():
    class Doubled(prune.CustomFromMask):
        def apply_mask(self, module):
            return module.weight_orig * (2 - module.weight_mask)

    layer = nn.Linear(6, 5)
    Doubled.apply(layer, "weight", (torch.rand(5, 6) < 0.5).float())
    assert seen_in(layer).all()


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
@pytest.mark.parametrize("kind", [Signs, Dropped])
def test_a_tensor_of_a_parametrization_counts_only_if_it_acts_as_a_mask(kind, dtype):
    layer = nn.Linear(6, 5)
    values = (torch.arange(30).reshape(5, 6) % 3 != 0).to(dtype)
    parametrize.register_parametrization(layer, "weight", kind(values))
    assert torch.equal(seen_in(layer), layer.weight != 0)


def test_a_mask_may_keep_weights_that_are_zero():
    layer = nn.Linear(6, 5)
    mask = torch.arange(30).reshape(5, 6) % 3 != 0
    parametrize.register_parametrization(layer, "weight", Masked(mask))
    layer.parametrizations.weight.original.data[:2] = 0
    assert torch.equal(seen_in(layer), mask)


def test_tied_weights_act_where_one_of_their_layers_uses_them():
    net = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)])
    net[1].weight = net[2].weight = net[0].weight
    keep = [torch.zeros(6, 6), torch.zeros(6, 6)]
    keep[0][0], keep[1][:, 0] = 1, 1
    for layer, mask in zip(net[1:], keep, strict=True):
        prune.custom_from_mask(layer, "weight", mask)
    assert seen_in(net).all()
    prune.custom_from_mask(net[0], "weight", torch.zeros(6, 6))
    assert torch.equal(seen_in(net), (keep[0] + keep[1]) != 0)


def zero(model, count=1):
    model[2].weight.data.reshape(-1)[:count] = 0


@pytest.fixture
def tracked(attach):
    def start(**options):
        net = small_net()
        zero(net, 3)
        return attach(net, masks="track", settle=2, **options), net

    return start


def settled_vote(attached):
    vote = attached.native.votes[-1]
    return vote if vote["unchanged"] >= vote["settle"] else None


def test_masks_are_voted_for_when_they_were_the_same_for_so_many_steps(tracked):
    attached, _ = tracked()
    attached.step()
    assert not settled_vote(attached)
    attached.step()
    vote = settled_vote(attached)
    assert vote["settle"] == 2
    assert vote["elements"] - vote["kept"] == 3
    count = len(attached.native.votes)
    attached.step()
    assert len(attached.native.votes) == count


def test_the_default_is_ten_steps_and_no_gse(attach):
    attached = attach(small_net(), masks="track")
    assert attached.session.stats()["pactrain/mask_settle_steps"] == 10
    assert not attached.native.options.gse
    assert attached.native.options.declared_elements == 0


def test_settle_holds_for_declared_masks_too(attach, net):
    pactrain.prune(net, 0.5)
    attached = attach(net, settle=3)
    assert attached.native.options.declared_elements == 0
    assert not settled_vote(attached)
    attached.step()
    attached.step()
    assert settled_vote(attached)["settle"] == 3


@pytest.mark.parametrize("settle", [0, -1, 1.5, True, "2", 10**7])
def test_a_settle_out_of_range_is_an_error(attach, net, settle):
    with pytest.raises(
        InvalidArgument, match=r"settle is .*; allowed are 1 to 1,000,000"
    ):
        attach(net, settle=settle)


def test_a_weight_that_comes_back_starts_anew_and_is_not_inside(tracked):
    attached, net = tracked()
    attached.step()
    activate(attached)
    attached.step()
    attached.step()
    assert attached.session.stats()["pactrain/masks_active"]
    assert attached.session.masks_settled
    net[2].weight.data.reshape(-1)[:3] = 1.0
    for _ in range(2):
        attached.step()
    assert not attached.session.masks_settled
    vote = attached.native.votes[-1]
    assert not vote["inside"]
    assert vote["unchanged"] < 2
    assert vote["moved"] == "2.weight 3 elements moved"
    assert "2.weight 3" in attached.session.summary()


def test_weights_are_never_touched(tracked):
    attached, net = tracked(gse=True)
    attached.step()
    activate(attached)
    attached.step()
    net[2].weight.data.reshape(-1)[:3] = 1.0
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    attached.step(optimizer=optimizer)
    attached.session.apply_masks()
    attached.session.close()
    assert bool((net[2].weight.reshape(-1)[:3] == 1).all())


@pytest.mark.parametrize("in_place", [True, False])
def test_a_mask_that_turns_out_to_be_none_is_believed_no_more(attach, in_place):
    net = small_net()
    part = Signs(torch.ones_like(net[2].weight))
    parametrize.register_parametrization(net[2], "weight", part)
    attached = attach(net, masks="track", settle=2)
    attached.step()
    if in_place:
        part.kept.data[0] = 0
    else:
        part.kept = (torch.rand_like(part.kept) < 0.5).float()
    for _ in range(6):
        attached.step()
    vote = settled_vote(attached)
    assert vote["kept"] == vote["elements"]


def test_masks_that_settled_and_are_not_agreed_on_are_warned_of_once(tracked, caplog):
    attached, _ = tracked()
    for _ in range(51):
        attached.step()
    assert "not agreed" not in caplog.text
    for _ in range(70):
        attached.step()
    assert caplog.text.count("the same at this rank for 52 steps") == 1
    assert "other ranks have others" in caplog.text


def test_masks_that_move_for_long_are_warned_of_once_with_what_moves(tracked, caplog):
    attached, net = tracked()
    for step in range(100):
        zero(net, 4 + step % 8)
        net[2].weight.data.reshape(-1)[step % 8] = 1.0
        attached.step()
    assert "moved for" not in caplog.text
    for step in range(60):
        net[2].weight.data.reshape(-1)[step % 8] = step % 3
        attached.step()
    assert caplog.text.count("masks have moved for 102 steps without being") == 1
    assert "moved most: 2.weight" in caplog.text


@pytest.mark.parametrize("gse", [True, False])
def test_what_gse_means_for_weights_that_grow_is_said_at_the_start(
    tracked, caplog, gse
):
    with caplog.at_level("INFO", logger="pactrain"):
        tracked(gse=gse)
    assert (
        "by their gradients (RigL), or from zero, need gse=False" in caplog.text
    ) == gse


def settle_again(attached, net, change):
    """The script changes weights; the masks settle, and come in force."""
    change(net[2].weight.data.reshape(-1))
    for _ in range(8):
        attached.step()
    activate(attached, len(attached.native.votes))
    attached.step()


@pytest.mark.parametrize("gse", [True, False])
def test_grown_weights_that_are_held_at_zero_are_told_of(tracked, caplog, gse):
    """As RigL: some go, as many are to grow from zero, and get no gradients."""
    attached, net = tracked(gse=gse)
    for _ in range(8):
        attached.step()
    activate(attached)
    attached.step()
    settle_again(attached, net, lambda w: w[4:6].zero_())
    assert "no weight came back" not in caplog.text
    settle_again(attached, net, lambda w: w[6:8].zero_())
    settle_again(attached, net, lambda w: w[8:10].zero_())
    told = "and no weight came back. Weights at zero get no gradients"
    assert caplog.text.count(told) == gse
    assert ("with gse=True masks shrank 3 times" in attached.session.summary()) == gse


def test_masks_from_which_weights_come_back_do_not_only_shrink(tracked, caplog):
    attached, net = tracked(gse=True)
    for _ in range(8):
        attached.step()
    activate(attached)
    attached.step()
    for number in range(3):
        settle_again(attached, net, lambda w, n=number: w[4 + n : 5 + n].zero_())
        settle_again(attached, net, lambda w, n=number: w[4 + n : 5 + n].fill_(1))
    assert "no weight came back" not in caplog.text
    assert "no weight came back" not in attached.session.summary()


def test_a_layer_that_is_all_zero_was_not_pruned(attach):
    net = small_net()
    net[2].weight.data.zero_()
    attached = attach(net, masks="track", settle=1)
    attached.step()
    assert attached.native.votes[-1]["kept"] == attached.native.votes[-1]["elements"]


def test_masks_of_pactrain_and_tracked_ones_do_not_go_together(attach, tracked, net):
    pactrain.prune(net, 0.5)
    with pytest.raises(InvalidArgument, match=r"masks of prune\(\) or set_masks\(\)"):
        attach(net, masks="track")
    attached, other = tracked()
    with pytest.raises(InvalidArgument, match="masks are tracked"):
        attached.session.set_masks({})
    with pytest.raises(InvalidArgument, match="masks are tracked"):
        attached.session.sync_masks()
    # As a copy of another model's parameter brings it.
    registry.set(other[2].weight, other[2].weight > 0)
    with (
        pytest.raises(InvalidArgument, match=r"Leave out masks='track'"),
        attached.session.guard(),
    ):
        attached.step()


def test_a_state_has_the_masks_that_the_weights_have_now(tracked, attach):
    attached, net = tracked()
    attached.step()
    zero(net, 5)
    state = attached.session.state_dict()
    attached.session.close()
    other = small_net()
    other.load_state_dict(net.state_dict())
    declared = attach(other, state=state)
    assert declared.session.stats()["pactrain/keep"] < 1
    assert torch.equal(other[2].weight, net[2].weight)
    declared.session.close()
    fresh = small_net()
    fresh.load_state_dict(net.state_dict())
    again = attach(fresh, masks="track", settle=1, state=state)
    assert again.session.next_step >= state["step"]
    again.step()
    assert again.native.votes[-1]["elements"] - again.native.votes[-1]["kept"] == 5


def test_weights_that_are_loaded_are_what_is_tracked(tracked):
    attached, net = tracked()
    attached.step()
    zero(other := small_net(), 7)
    net.load_state_dict(other.state_dict())
    for _ in range(4):
        attached.step()
    vote = settled_vote(attached)
    assert vote["elements"] - vote["kept"] == 7


def sparse_script(rank, **options):
    """Its script keeps a row of weights at zero by itself."""
    script = Script(rank, masks="track", settle=2, **options)
    weight = script.ddp.module[0][2].weight
    kept = torch.ones_like(weight)
    kept[0] = 0
    weight.register_hook(lambda gradient: gradient * kept)
    if not script.ddp._membership.newcomer:
        weight.data.mul_(kept)
    return script


def test_a_newcomer_finds_the_masks_that_the_others_find(ranks):
    def joins():
        script = sparse_script(2, seed=5)
        script.ddp.start()
        return script.run()

    running = ranks(2)
    running.job.ends_at = FIRST + 3
    running.regroup.expected = 3
    for rank in range(2):
        running.start(rank, lambda rank=rank: sparse_script(rank).run())
    running.start(2, joins)
    results = running.finish()
    assert not running.errors
    assert results[0].state() == results[1].state() == results[2].state()
    votes = [running.natives[rank].votes[-1] for rank in range(3)]
    assert votes[0] == votes[1] == votes[2] | {"moved": votes[0]["moved"]}
    assert votes[0]["elements"] - votes[0]["kept"] == 8
    assert votes[0]["unchanged"] == 2


def test_a_newcomer_gets_the_mask_buffers_that_the_others_have(ranks):
    def script(rank, **options):
        return Script(rank, masks="track", settle=2, masked=True, **options)

    def joins():
        newcomer = script(2, seed=5)
        newcomer.ddp.start()
        return newcomer.run()

    running = ranks(2)
    running.job.ends_at = FIRST + 3
    running.regroup.expected = 3
    for rank in range(2):
        running.start(rank, lambda rank=rank: script(rank, seed=rank).run())
    running.start(2, joins)
    results = running.finish()
    assert not running.errors
    masks = [results[rank].ddp.module[0][2].weight_mask for rank in range(3)]
    assert torch.equal(masks[0], masks[1])
    assert torch.equal(masks[0], masks[2])


def test_in_one_process_there_is_nothing_to_track(monkeypatch, net):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    zero(net, 3)
    with pytest.warns(UserWarning, match="nothing to exchange"):
        session = pactrain.attach(net, masks="track", settle=3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.ones(4, 6)).square().mean().backward()
    optimizer.step()
    assert session.stats()["pactrain/keep"] == 1
    session.close()


CALLS = {
    "prune()": lambda net: pactrain.prune(net, 0.5),
    "apply_masks()": pactrain.apply_masks,
    "PruningSchedule()": lambda net: pactrain.PruningSchedule(net, 0.5, 4, 2),
}


@pytest.mark.parametrize("call", CALLS)
def test_calls_that_declare_masks_are_refused_while_they_are_tracked(tracked, call):
    attached, net = tracked()
    attached.step()
    with pytest.raises(InvalidArgument) as raised:
        CALLS[call](net)
    assert str(raised.value).startswith(f"{call} was called while masks are tracked")
    assert "session.close(), then prune, then attach" in str(raised.value)
    attached.step()  # Nothing was declared.


def test_a_schedule_from_before_is_refused_at_its_step(attach):
    net = small_net()
    schedule = pactrain.PruningSchedule(net, 0.5, 4, 2)
    attach(net, masks="track")
    with pytest.raises(InvalidArgument, match=r"PruningSchedule\.step\(\) was called"):
        schedule.step()


def test_what_the_refusal_advises_works(tracked):
    attached, net = tracked()
    attached.step()
    attached.session.close()
    pactrain.prune(net, 0.5)
    pactrain.attach(attached.ddp)
    attached.step()


def test_in_one_process_the_same_calls_are_refused(natives):
    net = small_net()
    with pytest.warns(UserWarning, match="nothing to exchange"):
        session = pactrain.attach(net, masks="track")
    for declare in CALLS.values():
        with pytest.raises(InvalidArgument, match="masks='track'"):
            declare(net)
    with pytest.raises(InvalidArgument, match=r"set_masks\(\) was called"):
        session.set_masks({})
    net[2].weight.data[0] = 0
    session.load(net.state_dict())
    net(torch.ones(4, 6)).sum().backward()
    session.close()
