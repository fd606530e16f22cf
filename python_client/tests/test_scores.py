from __future__ import annotations

import copy

import pytest
import torch
from small_nets import small_net
from torch import nn
from torch.nn.functional import mse_loss, scaled_dot_product_attention

import pactrain
from pactrain import scores
from pactrain.masks import registry


def tiny():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def data(rows=5, inputs=3, outputs=2, dtype=torch.float64):
    generator = torch.Generator().manual_seed(4)
    return (
        torch.randn(rows, inputs, generator=generator, dtype=dtype),
        torch.randn(rows, outputs, generator=generator, dtype=dtype),
    )


def weights(model):
    return [p for p in model.parameters() if p.dim() == 2]


def explicit_scores(model, batch):
    """theta * (H g) from the whole Hessian."""
    parameters = list(model.parameters())
    names = [name for name, _ in model.named_parameters()]
    sizes = [p.numel() for p in parameters]

    def loss(flat):
        pieces = [
            piece.reshape(p.shape)
            for piece, p in zip(flat.split(sizes), parameters, strict=True)
        ]
        values = dict(zip(names, pieces, strict=True))
        return mse_loss(torch.func.functional_call(model, values, batch[0]), batch[1])

    flat = torch.cat([p.detach().reshape(-1) for p in parameters])
    hessian = torch.autograd.functional.hessian(loss, flat)
    gradient = torch.autograd.functional.jacobian(loss, flat)
    products = (flat * (hessian @ gradient)).split(sizes)
    return [
        piece.reshape(p.shape)
        for piece, p in zip(products, parameters, strict=True)
        if p.dim() == 2
    ]


def test_grasp_is_weight_times_hessian_times_gradient():
    model, batch = tiny(), data()
    found = scores.grasp(model, weights(model), mse_loss, batch)
    for score, expected in zip(found, explicit_scores(model, batch), strict=True):
        assert torch.allclose(score, expected.float(), rtol=1e-5, atol=1e-9)


def test_what_goes_first_leaves_the_most_gradient():
    """Shrinking a weight by a little changes |g|^2 by minus twice its score."""
    model, batch = tiny(), data()
    (score, _) = scores.grasp(model, weights(model), mse_loss, batch)

    def flow(shrunk):
        changed = copy.deepcopy(model)
        if shrunk is not None:
            with torch.no_grad():
                changed[0].weight.view(-1)[shrunk] *= 1 - 1e-6
        loss = mse_loss(changed(batch[0]), batch[1])
        grads = torch.autograd.grad(loss, list(changed.parameters()))
        return float(sum((g * g).sum() for g in grads))

    for index in range(score.numel()):
        change = (flow(index) - flow(None)) / 1e-6
        assert change == pytest.approx(
            -2 * float(score.view(-1)[index]), rel=1e-3, abs=1e-6
        )


def test_prune_by_grasp_drops_the_lowest_of_all_layers():
    model, batch = tiny(), data()
    expected = explicit_scores(model, batch)
    pactrain.prune(model, 0.5, exempt=(), method="grasp", loss=mse_loss, batch=batch)
    flat = torch.cat([score.reshape(-1) for score in expected])
    masks = torch.cat([registry.get(w).reshape(-1) for w in weights(model)])
    assert int(masks.sum()) == 10
    assert float(flat[~masks].max()) <= float(flat[masks].min())


def test_a_loss_of_the_model_alone():
    model, batch = tiny(), data()
    found = scores.grasp(
        model, weights(model), lambda net: mse_loss(net(batch[0]), batch[1]), None
    )
    expected = scores.grasp(model, weights(model), mse_loss, batch)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_grasp_leaves_buffers_gradients_and_random_state_alone():
    model = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2)
    )
    buffers = [buffer.clone() for buffer in model.buffers()]
    state = torch.get_rng_state()
    with torch.no_grad():  # Even if gradients are off outside.
        scores.grasp(model, weights(model), mse_loss, data(8, 6, 2, torch.float32))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in model.parameters())
    for before, buffer in zip(buffers, model.buffers(), strict=True):
        assert torch.equal(before, buffer)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(6, 12)
        self.unused = nn.Linear(6, 6)

    def forward(self, inputs):
        q, k, v = self.qkv(inputs).reshape(1, -1, 3, 4).unbind(2)
        return scaled_dot_product_attention(q, k, v)


def test_attention_is_differentiated_twice_and_the_unused_is_worth_nothing():
    model = Attention()
    used, unused = scores.grasp(
        model, weights(model), lambda net: net(torch.ones(3, 6)).pow(2).sum(), None
    )
    assert used.any()
    assert not unused.any()


def test_a_compiled_and_a_data_parallel_model_score_as_the_plain_one(group, net):
    batch = data(4, 6, 3, torch.float32)
    plain = scores.grasp(net, weights(net), mse_loss, batch)
    for wrapped in (
        torch.compile(net, backend="eager"),
        nn.parallel.DistributedDataParallel(net),
    ):
        found = scores.grasp(wrapped, weights(net), mse_loss, batch)
        assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))


def test_a_loss_that_is_linear_in_the_weights_scores_zero():
    model = nn.Linear(3, 2)
    (score,) = scores.grasp(
        model, [model.weight], lambda net: net(torch.ones(1, 3)).sum(), None
    )
    assert not score.any()


@pytest.mark.parametrize(
    ("loss", "what"),
    [
        (lambda out, target: out, r"tensor of shape \(5, 2\)"),
        (lambda out, target: 1.5, "float"),
        (lambda out, target: out.detach().sum(), "without a gradient"),
    ],
)
def test_a_loss_that_is_none_is_refused(loss, what):
    with pytest.raises(pactrain.InvalidArgument, match=what):
        scores.grasp(tiny(), [], loss, data())


@pytest.mark.parametrize(
    ("loss", "batch", "called"),
    [
        (mse_loss, None, "the model alone, since no batch was given"),
        (lambda net: net, data(), r"\(model\(inputs\), target\), since a batch was"),
    ],
)
def test_a_loss_that_takes_other_arguments_is_told_what_it_gets(loss, batch, called):
    with pytest.raises(pactrain.InvalidArgument, match=called) as raised:
        pactrain.prune(tiny(), 0.5, exempt=(), method="grasp", loss=loss, batch=batch)
    assert "loss raised TypeError(" in str(raised.value)


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        ((torch.ones(5, 3).double(), torch.ones(4, 7)), "loss raised RuntimeError"),
        ((torch.ones(5, 9).double(), torch.ones(5, 2)), "batch: the model raised"),
    ],
)
def test_a_batch_that_does_not_fit_is_told_by_field(batch, text):
    with pytest.raises(pactrain.InvalidArgument, match=text):
        scores.grasp(tiny(), [], lambda out, target: (out - target).sum(), batch)


def test_random_is_equal_for_equal_seeds(net):
    again = small_net()
    first = list(scores.random(weights(net), 1))
    assert all(
        torch.equal(a, b)
        for a, b in zip(first, scores.random(weights(again), 1), strict=True)
    )
    assert not torch.equal(first[0], next(scores.random(weights(net), 2)))
