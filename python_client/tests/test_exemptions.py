"""Which parameters prune() takes, and what it says of the others."""

from __future__ import annotations

import logging

import pytest
import torch
from small_nets import small_net
from torch import nn
from torch.nn.utils import parametrizations

import pactrain
from pactrain import roles


class LanguageModel(nn.Module):
    """pytorch/examples word_language_model, tied."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(100, 16)
        self.rnn = nn.LSTM(16, 16, 2)
        self.decoder = nn.Linear(16, 100)
        self.decoder.weight = self.encoder.weight


class FusedRMSNorm(nn.Module):
    """Of no library that is known here; its gain has two dimensions above 1."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8, 4))


class PositionEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(8, 8)


class Zoo(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1, 8, 1, 1))
        self.cls_token = nn.Parameter(torch.randn(1, 1, 8))
        self.pos_embed = nn.Parameter(torch.randn(1, 16, 8))
        self.stem = nn.Linear(6, 8)
        self.position_embeddings = nn.Embedding(16, 8)
        self.token_type_embeddings = nn.Embedding(2, 8)
        self.encoder = PositionEncoder()
        self.inner = FusedRMSNorm()
        self.ln_1 = nn.ParameterList([torch.rand(8, 4)])
        self.pos_ffn = nn.Linear(8, 8)
        self.lora_b = nn.Parameter(torch.zeros(8, 8))
        self.head = nn.Linear(8, 1)


REASONS = {
    "gain": "vector",
    "cls_token": "vector",
    "pos_embed": "positions",
    "position_embeddings.weight": "positions",
    "token_type_embeddings.weight": "positions",
    "encoder.rows.weight": "positions",
    "inner.weight": "norm",
    "ln_1.0": "norm",
    "lora_b": "too many weights of equal score",
    "stem.weight": "first and last layer",
    "head.weight": "vector",
}


def layers(report):
    return [name for name, _, _ in report.layers]


def test_what_is_no_layer_is_exempt_and_the_report_says_why():
    torch.manual_seed(0)
    report = pactrain.prune(Zoo(), 0.6)
    assert layers(report) == ["pos_ffn.weight"]
    assert report.exempt == REASONS


def test_an_empty_exempt_takes_the_first_layer_and_still_no_norm_or_position():
    report = pactrain.prune(Zoo(), 0.6, exempt=())
    assert layers(report) == ["stem.weight", "pos_ffn.weight"]


@pytest.mark.parametrize(
    "include",
    ["pos_embed", ("pos_*d",), lambda zoo: (zoo.inner, "pos_embed", "stem")],
)
def test_include_takes_what_would_be_exempt(include):
    zoo = Zoo()
    given = include(zoo) if callable(include) else include
    report = pactrain.prune(zoo, 0.6, include=given)
    assert "pos_embed" in layers(report)
    assert ("inner.weight" in layers(report)) == callable(include)
    assert int((zoo.pos_embed == 0).sum()) == round(0.6 * 128)


def test_exclude_adds_to_the_default_and_goes_before_include(net):
    deep = nn.Sequential(*small_net(), nn.Linear(3, 3), nn.Linear(3, 3))
    report = pactrain.prune(deep, 0.5, exclude=(deep[2],), include="*.weight")
    assert layers(report) == ["0.weight", "4.weight", "5.weight", "6.weight"]
    assert report.exempt == {"2.weight": "excluded"}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"include": "typo"}, "include has 'typo', which matches no parameter"),
        ({"exclude": 5}, "exclude is 5; allowed are names, patterns, modules"),
        ({"exclude": (small_net(),)}, "exclude has a Sequential that is no part"),
        ({"include": ("*.bias",)}, "include names no parameter that can be pruned"),
        (
            {"include": "2", "exclude": "2.*"},
            "include names 2.weight, and so does exclude, which wins",
        ),
        ({"of": "network"}, "of is 'network'; allowed are 'layers' and 'model'"),
    ],
)
def test_bad_selections_are_named(net, given, text):
    with pytest.raises(pactrain.InvalidArgument, match=text):
        pactrain.prune(net, 0.5, **given)


def test_a_tied_weight_is_the_last_layer_and_has_both_names():
    report = pactrain.prune(LanguageModel(), 0.7)
    assert layers(report) == [
        f"rnn.weight_{way}_l{layer}" for layer in (0, 1) for way in ("ih", "hh")
    ]
    with pytest.raises(pactrain.InvalidArgument, match="nothing to prune"):
        pactrain.prune(LanguageModel(), 0.7, exempt=("decoder.weight", "rnn"))


@pytest.mark.parametrize("scope", ["layer", "global", "erk"])
def test_of_the_model_reaches_the_amount_over_the_whole_model(scope):
    model = LanguageModel()
    report = pactrain.prune(model, 0.4, scope, of="model")
    assert report.sparsity == pytest.approx(0.4, abs=0.001)
    report = pactrain.prune(model, 0.5, scope, of="model", exclude="rnn.weight_ih_l0")
    assert report.exempt["rnn.weight_ih_l0"] == "excluded"
    whole = pactrain.sparsity(model)
    assert whole.sparsity == pytest.approx(
        0.5, abs=0.001
    )  # With what was pruned there.


def test_of_the_model_says_how_much_can_be_reached():
    with pytest.raises(
        pactrain.InvalidArgument, match=r"all that may be pruned holds 67\.7%"
    ):
        pactrain.prune(LanguageModel(), 0.7, of="model")


def test_a_schedule_takes_the_same_selection(net):
    schedule = pactrain.PruningSchedule(
        net, 0.3, steps=2, every=1, include="0", exclude="2", of="model"
    )
    reports = [schedule.step() for _ in range(2)]
    assert layers(reports[-1]) == ["0.weight"]
    assert reports[-1].sparsity == pytest.approx(0.3, abs=0.01)
    assert schedule.state_dict()["made_with"]["of"] == "model"


def test_one_line_says_what_was_asked_what_came_of_it_and_why(net, capfd, caplog):
    pactrain.prune(net, 0.7)
    line = (
        "prune: 70.0% of 1 layer asked; pruned are 45 of the model's 155 weights "
        "(29.0%). Exempt: 0.weight, 4.weight (first and last layer). "
        'of="model" reaches the amount over the whole model'
    )
    assert capfd.readouterr().err == f"pactrain: {line}\n"
    with caplog.at_level(logging.INFO):  # The script's own logging is used.
        pactrain.prune(small_net(), 0.7)
    assert line in caplog.text
    assert capfd.readouterr().err == ""


def test_the_line_is_said_by_rank_0_and_not_by_schedules(net, capfd, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    pactrain.prune(net, 0.5)
    monkeypatch.setenv("RANK", "0")
    pactrain.PruningSchedule(net, 0.6, steps=1, every=1).step()
    assert capfd.readouterr().err == ""


def test_old_spectral_norm_is_no_pruning_by_torch():
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    nn.utils.spectral_norm(model[1])
    assert layers(pactrain.prune(model, 0.5)) == ["1.weight_orig"]


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("T5LayerNorm", roles.NORM),
        ("BatchNormAct2d", roles.NORM),
        ("NormedLinear", None),
        ("NormalEstimator", None),
        ("PositionwiseFeedForward", None),
        ("PositionWiseFFN", None),
        ("LearnedPositionalEmbedding", roles.POSITIONS),
        ("RelPosBias", roles.POSITIONS),
        ("SegmentEmbedding", roles.POSITIONS),
        ("SegmentationHead", None),
        ("PoseNet", None),
    ],
)
def test_roles_are_told_by_the_name_of_a_class(name, role):
    owner = type(name, (nn.Module,), {})()
    assert roles.role_of(roles.Place(owner, (), "inner", "weight")) == role


MAPS = ["matrix_exp", "cayley", "householder"]


@pytest.mark.parametrize("orthogonal_map", MAPS)
@pytest.mark.parametrize("trivialized", [False, True])
def test_what_a_parametrization_mixes_is_not_pruned(
    caplog, orthogonal_map, trivialized
):
    net = small_net()
    parametrizations.orthogonal(
        net[2], orthogonal_map=orthogonal_map, use_trivialization=trivialized
    )
    name = "2.parametrizations.weight.original"
    report = pactrain.prune(net, 0.5, exempt=())
    assert report.exempt[name] == "a parametrization that does not keep zeros"
    assert name not in dict.fromkeys(layer for layer, _, _ in report.layers)
    counted = {layer: kept for layer, _, kept in pactrain.sparsity(net).layers}
    assert counted[name] == int((net[2].weight != 0).sum())
    caplog.clear()
    session = pactrain.attach(net, masks="weights")
    assert name not in session.state_dict()["masks"]
    session.close()
    assert "many weights are zero" not in caplog.text


@pytest.mark.parametrize("norm", ["weight_norm", "spectral_norm"])
def test_what_a_parametrization_leaves_zero_is_pruned(norm):
    net = small_net()
    getattr(parametrizations, norm)(net[2])
    pactrain.prune(net, 0.5)
    assert float((net[2].weight == 0).float().mean()) == 0.5
