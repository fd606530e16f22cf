"""Which parameters prune() takes."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor, nn

from . import roles
from .errors import InvalidArgument
from .parameters import ParameterTable, plain_name, shown, some_of
from .roles import Place

Names: TypeAlias = "Iterable[str | nn.Module] | nn.Module"
Exempt: TypeAlias = "Names | Callable[[str, nn.Parameter], bool] | None"
Entries: TypeAlias = "list[tuple[str, nn.Parameter]]"

FIRST_AND_LAST = "first and last layer"
TIED = "too many weights of equal score"
COMPLEX = "complex numbers"
REWRITTEN = "a parametrization that does not keep zeros"


@dataclass(frozen=True)
class Selection:
    """`exempt` is what the script wants in place of the first and the last layer."""

    exempt: Exempt = None
    include: Names = ()  # Taken whatever their role is.
    exclude: Names = ()


@dataclass(frozen=True)
class Choice:
    """What is pruned, and the reason by name why the others with two or more
    dimensions are not."""

    chosen: Entries
    exempt: Mapping[str, str]


def choose(model: nn.Module, table: ParameterTable, selection: Selection) -> Choice:
    """Vectors, all that has a role (roles.py) and what the selection says are exempt.

    Raises:
      InvalidArgument: a selection is of another type or names what the model has not,
        or nothing is left.
    """
    places = _places(model)
    candidates = [(n, p) for n, p in table if p.dim() >= 2 and p.is_floating_point()]
    _check_candidates(model, candidates, places)
    is_exempt, why = _exemption(model, candidates, places, selection.exempt)
    included = _named(model, "include", selection.include)
    excluded = _named(model, "exclude", selection.exclude)
    exempt = {n: COMPLEX for n, p in table if p.is_complex() and p.dim() >= 2}
    exempt |= dict.fromkeys(table.rewritten(), REWRITTEN)
    for name, parameter in candidates:
        if name in exempt:
            continue
        reason = _role(parameter, places)
        if reason is None and is_exempt(name, parameter):
            reason = why
        if reason != roles.VECTOR and id(parameter) in included:
            reason = None
        if id(parameter) in excluded:
            reason = "excluded"
        if reason is not None:
            exempt[name] = reason
    chosen = [(name, p) for name, p in candidates if name not in exempt]
    if included and included.isdisjoint(id(p) for _, p in chosen):
        raise _includes_nothing(
            [name for name, p in candidates if id(p) in included & excluded]
        )
    if not chosen:
        raise nothing_to_prune(model, exempt)
    return Choice(chosen, exempt)


def _includes_nothing(both: list[str]) -> InvalidArgument:
    if both:
        return InvalidArgument(
            f"include names {some_of(both)}, and so does exclude, which wins: nothing "
            "is left of include.\nTake these names out of one of the two."
        )
    return InvalidArgument(
        "include names no parameter that can be pruned: what has at most one "
        "dimension above 1 (a bias, a gain) or needs no gradient never is.\n"
        "Leave it out, or declare a mask: apply_masks(model, {name: mask})."
    )


def nothing_to_prune(model: nn.Module, exempt: Mapping[str, str]) -> InvalidArgument:
    all_of_them = (
        "its one parameter with two or more dimensions is"
        if len(exempt) == 1
        else f"all of its {len(exempt)} parameters with two or more dimensions are"
    )
    return InvalidArgument(
        f"model ({type(model).__name__}) has nothing to prune: {all_of_them} "
        f"exempt: {reasons_text(exempt)}.\n{_advice(set(exempt.values()))}"
    )


def _advice(reasons: set[str]) -> str:
    if TIED in reasons:
        return (
            "Prune when training has told the weights apart. Or, where they are "
            "already pruned: prune(model, masks_from=model.state_dict())."
        )
    if reasons & {FIRST_AND_LAST, "exempt="}:
        return "Give exempt=() to prune all that is no vector, norm, position or token."
    if reasons & {roles.NORM, roles.POSITIONS, roles.TOKENS, roles.RATES}:
        return "Give include=(...) to name what is to be pruned all the same."
    return "Attach it without prune(), or declare masks: apply_masks(model, masks)."


def reasons_text(exempt: Mapping[str, str]) -> str:
    """ "a.weight, b.weight (first and last layer), ...", for a line."""
    groups: dict[str, list[str]] = {}
    for name, reason in exempt.items():
        groups.setdefault(reason, []).append(name)
    return "; ".join(
        f"{some_of(names, 3)} ({reason})" for reason, names in groups.items()
    )


def _places(model: nn.Module) -> dict[int, list[Place]]:
    found: dict[int, list[Place]] = {}
    for parameter, place in roles.places_of(model):
        found.setdefault(id(parameter), []).append(place)
    return found


def _role(parameter: nn.Parameter, places: Mapping[int, list[Place]]) -> str | None:
    if roles.is_vector(parameter):
        return roles.VECTOR
    found = (roles.role_of(place) for place in places[id(parameter)])
    return next((role for role in found if role is not None), None)


def _check_candidates(
    model: nn.Module, candidates: Entries, places: Mapping[int, list[Place]]
) -> None:
    for name, parameter in candidates:
        for place in places[id(parameter)]:
            mask = f"{place.leaf.removesuffix('_orig')}_mask"
            if place.leaf.endswith("_orig") and mask in place.owner._buffers:
                raise InvalidArgument(
                    f"{name} is already pruned by torch.nn.utils.prune.\n"
                    "Attach as it is: its mask is found. Or prune with pactrain only."
                )
    if not candidates:
        raise InvalidArgument(
            f"model ({type(model).__name__}) has no parameter with two or more "
            "dimensions and real numbers, so that there is nothing to prune.\n"
            "Attach it without prune(), or give {name: mask} to attach()."
        )


def _exemption(
    model: nn.Module,
    candidates: Entries,
    places: Mapping[int, list[Place]],
    exempt: Exempt,
) -> tuple[Callable[[str, nn.Parameter], bool], str]:
    """Which are exempt, and why."""
    if exempt is None:
        ids = _first_and_last(model, candidates, places)
        return (lambda name, parameter: id(parameter) in ids), FIRST_AND_LAST
    if callable(exempt) and not isinstance(exempt, nn.Module):
        return _checked_call(exempt), "exempt="
    ids = _named(model, "exempt", exempt)
    return (lambda name, parameter: id(parameter) in ids), "exempt="


def _first_and_last(
    model: nn.Module, candidates: Entries, places: Mapping[int, list[Place]]
) -> set[int]:
    """A weight that is tied counts at each of its places: that of an embedding is often
    the last layer's, too."""
    trained = {id(parameter) for _, parameter in candidates}
    layers = [
        (id(parameter), place.owner)
        for parameter, place in roles.places_of(model)
        if id(parameter) in trained
        and roles.is_layer(parameter, place)
        and (roles.is_vector(parameter) or _role(parameter, places) is None)
    ]
    # Parameters of the model's own come before all layers, wherever they are used.
    own = _without_wrappers(model)
    order = [key for key, owner in layers if owner is not own]
    order = order or [key for key, _ in layers]
    return {*order[:1], *order[-1:]}


def _without_wrappers(model: nn.Module) -> nn.Module:
    """Of DDP and torch.compile, which hold nothing but the model."""
    while not model._parameters and len(model._modules) == 1:
        (inner,) = model._modules.values()
        if inner is None:
            break
        model = inner
    return model


def _checked_call(
    exempt: Callable[[str, nn.Parameter], bool],
) -> Callable[[str, nn.Parameter], bool]:
    """The same; a wrong number of arguments is an InvalidArgument."""

    def is_exempt(name: str, parameter: nn.Parameter) -> bool:
        try:
            answer = exempt(name, parameter)
        except TypeError as error:
            raise InvalidArgument(
                f"exempt raised {error!r}; it is called with (name, parameter).\n"
                "Give for example exempt=lambda name, parameter: name == 'head.weight'."
            ) from error
        if answer is None:  # Of a function that ends without return.
            raise InvalidArgument(
                f"exempt returned None for {name!r}; allowed are True and False.\n"
                "Give for example exempt=lambda name, parameter: name == 'head.weight'."
            )
        return bool(answer)

    return is_exempt


def _matches(name: str, pattern: str) -> bool:
    return any(
        fnmatch.fnmatchcase(form, pattern) or form.startswith(pattern + ".")
        for form in (name, plain_name(name))
    )


def _named(model: nn.Module, field: str, given: Names) -> set[int]:
    """Ids of the parameters that are named, also by the second name of tied ones."""
    patterns, ids = _listed(model, field, given)
    named = list(model.named_parameters(remove_duplicate=False))
    for pattern in patterns:
        found = {id(p) for name, p in named if _matches(name, pattern)}
        if not found:  # A misspelt pattern would do nothing.
            raise InvalidArgument(
                f"{field} has {pattern!r}, which matches no parameter; the model has "
                f"{some_of([name for name, _ in named])}.\n"
                "Use the names of named_parameters()."
            )
        ids |= found
    return ids


def _listed(model: nn.Module, field: str, given: object) -> tuple[list[str], set[int]]:
    """Patterns, and ids of the parameters of modules."""
    function = " and a function" if field == "exempt" else ""
    if isinstance(given, (str, nn.Module)):
        given = (given,)
    if not isinstance(given, Iterable) or isinstance(given, Tensor):
        raise InvalidArgument(
            f"{field} is {shown(given)}; allowed are names, patterns, "
            f"modules{function}.\n"
            f"Give for example {field}=('head.*', model.stem)."
        )
    patterns: list[str] = []
    ids: set[int] = set()
    for item in given:
        if isinstance(item, nn.Module):
            if set(item.modules()).isdisjoint(model.modules()):
                raise InvalidArgument(
                    f"{field} has a {type(item).__name__} that is no part of the model "
                    f"({type(model).__name__}).\n"
                    "Give modules of this model, not of a copy."
                )
            ids |= {id(p) for p in item.parameters()}
        elif isinstance(item, str):
            patterns.append(item)
        else:
            raise InvalidArgument(
                f"{field} has {shown(item)}; allowed are names, patterns and modules.\n"
                f"Give for example {field}=('head.*', model.stem)."
            )
    return patterns, ids
