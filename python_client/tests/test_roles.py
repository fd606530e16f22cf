"""What libraries call positions, types and learned tokens, and what weights."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from torch import nn

from pactrain import roles

CPP = Path(__file__).parents[2] / "trainer" / "cpp" / "libtorch" / "masks.h"

# As in the libraries: names of parameters, and of modules that are an Embedding.
POSITIONS = {
    "BERT": ("position_embeddings", "token_type_embeddings", "distance_embedding"),
    "GPT": ("wpe", "positions_embed"),
    "minGPT": ("pos_emb",),
    "BART, NLLB, OPT, Whisper": ("embed_positions",),
    "CLIP": ("position_embedding", "positional_embedding"),
    "T5, MPNet": ("relative_attention_bias",),
    "DeBERTa": ("rel_embeddings",),
    "XLNet, Transformer-XL": ("seg_embed", "r_w_bias", "r_r_bias", "r_s_bias"),
    "WavLM, Conformer": ("rel_attn_embed", "pos_bias_u", "pos_bias_v"),
    "LayoutLM": ("x_position_embeddings", "w_position_embeddings"),
    "ViT, MAE": ("pos_embed", "pos_embedding", "decoder_pos_embed"),
    "Swin, BEiT": ("relative_position_bias_table", "absolute_pos_embed"),
    "SAM": ("rel_pos_h", "rel_pos_w"),
    "LeViT, BoTNet": ("attention_biases", "height_rel", "width_rel", "rel_height"),
    "DETR": ("row_embed", "col_embed", "row_embeddings", "column_embeddings"),
    "Deformable DETR": ("level_embed", "query_position_embeddings"),
    "TimeSformer": ("time_embed", "time_embeddings", "temporal_embed"),
    "Decision Transformer": ("embed_timestep",),
    "ViLT, XLM": ("modality_type_embeddings", "lang_embeddings"),
    "others": ("pe", "rpe", "posenc", "pos_enc", "pos_encoding", "rel_bias"),
    "DAB-DETR": ("refpoint_embed", "anchors"),
    "more": ("relpos", "frame_embs", "spatial_embed", "segment_embeddings"),
}
TOKENS = {
    "ViT, DeiT": ("cls_token", "mask_token", "class_token", "dist_token"),
    "DINOv2": ("register_tokens", "reg_token"),
    "SAM": ("mask_tokens", "iou_token"),
    "DETR": ("query_embed", "object_queries", "query_feat", "content_queries"),
    "BLIP-2, Perceiver": ("query_tokens", "latents"),
    "prompt tuning": ("prompt_embeddings", "soft_prompt"),
}
# Parameters where zero is not nothing.
RATES = {
    "Mamba, VMamba": ("A_log", "A_logs", "D", "Ds", "dt_projs_bias"),
    "S4": ("log_dt", "log_A_real", "inv_A_real", "A_imag"),
    "RWKV": ("time_decay", "time_first", "time_faaaa"),
    "DiT, Wan": ("scale_shift_table", "modulation"),
    "experts": ("bias", "gate_up_proj_bias"),
}
# Embeddings of words and bare weights, which are pruned.
WEIGHTS = (
    *("wte", "word_embeddings", "embed_tokens", "encoder", "shared", "tok_embeddings"),
    *("token_embedding", "token_emb", "tokens_embed", "embedding", "embed_in"),
    *("q", "r"),
    *("r_kernel", "weight", "proj", "query", "queries", "segmenter", "posterior"),
    *("compose", "type", "timed", "lora_A", "relation", "relu_gate", "bias_proj"),
    *("prompter", "tokenizer", "latent_proj", "open", "rowwise", "relative_gate"),
)


def roles_of(name, owner):
    """As a module, and as a parameter of a module without a telling name."""
    yield roles.role_of(roles.Place(owner, (), name, "weight"))
    yield roles.role_of(roles.Place(nn.Module(), (), "", name))


@pytest.mark.parametrize("library", POSITIONS)
def test_positions_and_types_are_told_by_their_names(library):
    for name in POSITIONS[library]:
        assert set(roles_of(name, nn.Embedding(4, 4))) == {roles.POSITIONS}, name


@pytest.mark.parametrize("library", TOKENS)
def test_learned_tokens_and_queries_are_told_by_their_names(library):
    for name in TOKENS[library]:
        assert set(roles_of(name, nn.Embedding(4, 4))) == {roles.TOKENS}, name


@pytest.mark.parametrize("library", RATES)
def test_biases_and_rates_are_told_by_their_names(library):
    for name in RATES[library]:
        place = roles.Place(nn.Module(), (), "", name)
        assert roles.role_of(place) == roles.RATES, name
    for name in ("dt_projs_weight", "B", "C", "time_maa_w1", "bias_proj"):
        assert roles.role_of(roles.Place(nn.Module(), (), "", name)) is None, name


def test_words_and_weights_have_no_role():
    for name in WEIGHTS:
        assert set(roles_of(name, nn.Embedding(4, 4))) == {None}, name


@pytest.mark.parametrize("name", [*POSITIONS["GPT"], *TOKENS["DETR"], "pos_proj"])
def test_a_layer_is_a_layer_whatever_it_is_called(name):
    assert roles.role_of(roles.Place(nn.Linear(4, 4), (), name, "weight")) is None


def test_a_list_of_parameters_is_what_the_class_around_it_is():
    def role(kind):
        parent = type(kind, (nn.Module,), {})()
        place = roles.Place(nn.ParameterList(), (parent,), "weights", "0")
        return roles.role_of(place)

    assert role("AxialPositionEmbeddings") == roles.POSITIONS  # Of Reformer.
    assert role("RelPosAttention") is None


def test_cpp_trainers_have_the_same_patterns():
    text = CPP.read_text()
    for name, ours in (
        ("kPositions", roles._POSITIONS),
        ("kTokens", roles._TOKENS),
        ("kRates", roles._RATES),
    ):
        found = re.search(rf"char {name}\[\] =\s*((?:\s*\".*\")+);", text)
        assert found is not None, name
        pieces = re.findall(r'"(?:[^"\\]|\\.)*"', found[1])
        assert "".join(map(ast.literal_eval, pieces)) == ours.pattern, name
