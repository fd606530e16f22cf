"""What a parameter is for, as far as pruning has to know.

Libraries have norms and embeddings of positions in classes of their own, so roles are
told by names: of the class, of the module in its parent, and of the parameter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

VECTOR = "vector"
NORM = "norm"
POSITIONS = "positions"
TOKENS = "learned tokens"
RATES = "biases and rates"

# Layers whose weights are weights, whatever the module is called.
_PLAIN = (
    nn.Linear,
    nn.Bilinear,
    nn.modules.conv._ConvNd,
    nn.RNNBase,
    nn.RNNCellBase,
    nn.MultiheadAttention,
)
# Classes that have weights of their own.
_WEIGHTED = re.compile(r"linear|conv|dense|atten|block|layer(?!_?norm)|former")
_NORM_CLASS = re.compile(r"norm(?!al)")
_NORM_NAME = re.compile(r"norm(?!al)|^(?:ln|bn|gn)(?:_\w*|\d*)$")
_NORM_LEAF = re.compile(r"norm(?!al)|^(?:gain|gamma)$|(?:^|_)(?:ln|bn|gn)(?:_|\d|$)")
# trainer/cpp/libtorch/masks.h has the same three; a test compares them.
_POSITIONS = re.compile(
    r"(?:^|_)(?:(?:rel|abs)?pos(?:ition(?!_?wise)(?:al|s)?)?(?:_?(?:emb|enc)\w*)?"
    r"|[wr]?pe)(?:_|\d|$)"
    r"|(?:^|_)(?:rel|relative|row|col|column|temporal|spatial|time|timestep|frame"
    r"|distance|level|scale|seg|segments?|modality|lang)_?(?:attn_)?emb"
    r"|(?:^|_)emb(?:ed)?_time|(?:^|_)(?:rel_)?(?:height|width)_?rel|rel_(?:height|width)"
    r"|(?:^|_)rel(?:ative)?_(?:\w+_)?bias|(?:^|_)r_[wrs]_bias$|attention_biases$"
    r"|token_type|type_emb|^segment$|^(?:ref_?points?|anchors?)(?:_emb\w*)?$"
)
_TOKENS = re.compile(
    r"^(?!emb(?:ed)?(?:ding)?s?_)\w*_tokens?$|^latents?$|_latents$"
    r"|(?:^|_)(?:query|queries)_(?:emb|feat)"
    r"|(?:^|_)(?:object|learned|learnable|latent|decoder|track|content)"
    r"_(?:query|queries)$"
    r"|(?:^|_)prompts?(?:_?emb\w*)?$"
)
# Of parameters themselves, where zero means something else than nothing: of experts'
# biases, Mamba, S4, RWKV, and what shifts and scales in DiT and Wan.
_RATES = re.compile(
    r"(?:^|_)bias(?:es)?$|^log_|_logs?$|^Ds?$|(?:^|_)A_(?:real|imag)$"
    r"|^time_(?:decay|first|faaaa|maa)$|^scale_shift_table$|^modulation$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Place:
    """Where a parameter is: its module, that module's parents, and the names."""

    owner: nn.Module
    parents: tuple[nn.Module, ...]  # Without the model itself.
    name: str  # The module's, in its parent.
    leaf: str  # The parameter's, in its module.


def places_of(model: nn.Module) -> Iterator[tuple[nn.Parameter, Place]]:
    """In the order of registration; a tied parameter comes at each of its places."""
    modules = dict(model.named_modules(remove_duplicate=False))
    for path, owner in modules.items():
        parts = path.split(".")
        above = (".".join(parts[:count]) for count in range(1, len(parts)))
        parents = tuple(modules[up] for up in above if up in modules)
        for leaf, parameter in owner._parameters.items():
            if parameter is not None:
                yield parameter, Place(owner, parents, parts[-1], leaf)


def is_vector(parameter: nn.Parameter) -> bool:
    """A bias or a gain, maybe with dimensions of size 1 to broadcast it."""
    return sum(size > 1 for size in parameter.shape) <= 1


def is_layer(parameter: nn.Parameter, place: Place) -> bool:
    """The weight of a layer, though it may have one output only."""
    kinds = (*_PLAIN, nn.Embedding, nn.EmbeddingBag)
    return parameter.dim() >= 2 and (
        isinstance(place.owner, kinds) or not is_vector(parameter)
    )


def role_of(place: Place) -> str | None:
    """NORM, POSITIONS, TOKENS or RATES, else None."""
    if isinstance(place.owner, _PLAIN):
        return None
    kind, name, leaf = (
        _snake(text) for text in (type(place.owner).__name__, place.name, place.leaf)
    )
    own = [leaf]
    texts: list[tuple[str, re.Pattern[str] | None]] = [(leaf, _NORM_LEAF)]
    if not _WEIGHTED.search(kind):
        own.append(name)
        texts += [(kind, _NORM_CLASS), (name, _NORM_NAME)]
        above = [_snake(type(parent).__name__) for parent in place.parents]
        if isinstance(place.owner, (nn.ParameterList, nn.ParameterDict)):
            above = [text for text in above[-1:] if not _WEIGHTED.search(text)]
        elif not isinstance(place.owner, nn.Embedding):
            above = []
        texts += [(text, None) for text in above]
    if any(pattern is not None and pattern.search(text) for text, pattern in texts):
        return NORM
    if any(_POSITIONS.search(text) for text, _ in texts):
        return POSITIONS
    if any(_TOKENS.search(text) for text in own):
        return TOKENS
    return RATES if _RATES.search(leaf) else None


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
