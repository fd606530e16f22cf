"""Which parameters prune() takes."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable
from typing import TypeAlias

from torch import nn

from .errors import InvalidArgument
from .parameters import ParameterTable, plain_name, some_of

Exempt: TypeAlias = (
    "Iterable[str | nn.Module] | Callable[[str, nn.Parameter], bool] | None"
)
Entries: TypeAlias = "list[tuple[str, nn.Parameter]]"

_NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.LocalResponseNorm,
    nn.RMSNorm,
)


def choose(model: nn.Module, table: ParameterTable, exempt: Exempt) -> Entries:
    """Names and parameters with two or more dimensions that are not exempt.

    Raises:
      InvalidArgument: `exempt` is of another type or names what the model has not, or
        nothing is left.
    """
    candidates = [(n, p) for n, p in table if p.dim() >= 2 and p.is_floating_point()]
    for name, _ in candidates:
        if name.endswith("_orig"):
            raise InvalidArgument(
                f"{name} is already pruned by torch.nn.utils.prune.\n"
                "Attach as it is: its mask is found. Or prune with pactrain only."
            )
    if not candidates:
        raise InvalidArgument(
            f"model ({type(model).__name__}) has no parameter with two or more "
            "dimensions, so that there is nothing to prune.\n"
            "Attach it without prune(), or give {name: mask} to attach()."
        )
    is_exempt = _exemption(model, candidates, exempt)
    chosen = [(name, p) for name, p in candidates if not is_exempt(name, p)]
    if not chosen:
        count = len(candidates)
        all_of_them = (
            "its one parameter with two or more dimensions is"
            if count == 1
            else f"all of its {count} parameters with two or more dimensions are"
        )
        raise InvalidArgument(
            f"model ({type(model).__name__}) has nothing to prune: {all_of_them} "
            "exempt (by default those of the first layer, the last layer and norms).\n"
            "Give exempt=() to prune all of them."
        )
    return chosen


def _exemption(
    model: nn.Module, candidates: Entries, exempt: Exempt
) -> Callable[[str, nn.Parameter], bool]:
    if callable(exempt) and not isinstance(exempt, nn.Module):
        return _checked_call(exempt)
    if exempt is None:
        ids = _first_last_and_norms(model, candidates)
        return lambda name, parameter: id(parameter) in ids
    patterns, ids = _listed(model, exempt)
    _check_patterns(model, patterns)
    return lambda name, parameter: (
        id(parameter) in ids or any(_matches(name, pattern) for pattern in patterns)
    )


def _checked_call(
    exempt: Callable[[str, nn.Parameter], bool],
) -> Callable[[str, nn.Parameter], bool]:
    """The same; a wrong number of arguments is an InvalidArgument."""

    def is_exempt(name: str, parameter: nn.Parameter) -> bool:
        try:
            return exempt(name, parameter)
        except TypeError as error:
            raise InvalidArgument(
                f"exempt raised {error!r}; it is called with (name, parameter).\n"
                "Give for example exempt=lambda name, parameter: name == 'head.weight'."
            ) from error

    return is_exempt


def _matches(name: str, pattern: str) -> bool:
    return any(
        fnmatch.fnmatchcase(form, pattern) or form.startswith(pattern + ".")
        for form in (name, plain_name(name))
    )


def _check_patterns(model: nn.Module, patterns: Iterable[str]) -> None:
    """A misspelt pattern would exempt nothing, in the place of the default."""
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        if not any(_matches(name, pattern) for name in names):
            raise InvalidArgument(
                f"exempt has {pattern!r}, which matches no parameter; the model has "
                f"{some_of(names)}.\nUse the names of named_parameters()."
            )


def _first_last_and_norms(model: nn.Module, candidates: Entries) -> set[int]:
    ids = {
        id(p) for m in model.modules() if isinstance(m, _NORMS) for p in m.parameters()
    }
    layers = [p for _, p in candidates if id(p) not in ids]
    return ids | {id(p) for p in layers[:1] + layers[-1:]}


def _listed(model: nn.Module, exempt: object) -> tuple[list[str], set[int]]:
    """Patterns, and ids of the parameters of modules."""
    if isinstance(exempt, (str, nn.Module)):
        exempt = (exempt,)
    if not isinstance(exempt, Iterable):
        raise InvalidArgument(
            f"exempt is {exempt!r}; allowed are names, patterns, modules and a "
            "function.\nGive for example exempt=('head.*', model.stem)."
        )
    patterns: list[str] = []
    ids: set[int] = set()
    for item in exempt:
        if isinstance(item, nn.Module):
            if set(item.modules()).isdisjoint(model.modules()):
                raise InvalidArgument(
                    f"exempt has a {type(item).__name__} that is no part of the model "
                    f"({type(model).__name__}).\n"
                    "Give modules of this model, not of a copy."
                )
            ids |= {id(p) for p in item.parameters()}
        elif isinstance(item, str):
            patterns.append(item)
        else:
            raise InvalidArgument(
                f"exempt has {item!r}; allowed are names, patterns and modules.\n"
                "Give for example exempt=('head.*', model.stem)."
            )
    return patterns, ids
