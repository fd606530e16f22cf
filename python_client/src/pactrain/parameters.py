"""The parameters of a model that need a gradient, in a fixed order with names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from . import storage
from .errors import InvalidArgument
from .rewritten import rewritten
from .types import Digest, Digester

_COMPILED = "_orig_mod."
_MOST_SHOWN = 80  # Characters.


def plain_name(name: str) -> str:
    """A parameter's name without what torch.compile and DDP put into it."""
    return name.replace(_COMPILED, "").removeprefix("module.")


def some_of(names: Sequence[str], count: int = 5) -> str:
    """The first few, for a message."""
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more


def shown(value: object) -> str:
    """One short line of what came, for a message."""
    if isinstance(value, nn.Module):
        return f"a {type(value).__name__}"
    if isinstance(value, Tensor) and value.dim():
        return f"a {type(value).__name__} of shape {tuple(value.shape)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def check_module(model: object) -> None:
    """Raises InvalidArgument."""
    if not isinstance(model, nn.Module):
        what = f"a {type(model).__name__}"
        if isinstance(model, type):
            what = f"the class {model.__name__}"
        raise InvalidArgument(
            f"model is {what}; allowed is a torch.nn.Module.\n"
            "Give the network itself, not its parameters, state_dict() or class."
        )


MOVE_BACK = (
    "Move a model to its device before it is wrapped. One that was moved to be saved "
    "or scored goes back before the next forward pass of training; torch's own "
    "DistributedDataParallel wants to be made and attached anew then."
)


class ParameterTable:
    """Immutable list of (name, parameter), in registration order.

    Names are without the prefixes of wrappers, so that a checkpoint made from a
    compiled model fits the plain one.
    """

    def __init__(
        self,
        module: nn.Module,
        ignored: Collection[str] = (),
        also: Callable[[Tensor], bool] | None = None,
    ) -> None:
        """`ignored` are names that DDP leaves alone. `also` says which are taken that
        need no gradient; all, where none does, as in an average of weights.

        Raises:
          InvalidArgument: no model, none of its parameters needs a gradient, or one has
            no values yet.
        """
        check_module(module)
        self._module = module
        if also is not None and not any(p.requires_grad for p in module.parameters()):
            also = torch.is_tensor  # All.
        self._items = [
            (name.replace(_COMPILED, ""), parameter)
            for name, parameter in module.named_parameters()
            if name not in ignored
            and (parameter.requires_grad or (also is not None and also(parameter)))
        ]
        for name, parameter in self._items:
            if is_lazy(parameter) or parameter.is_meta:
                raise InvalidArgument(
                    f"{name} has no values yet (a lazy layer, or device meta); allowed "
                    "are parameters that have.\nCall a model with lazy layers once, "
                    "and give one on meta its weights, before this."
                )
        self._places = [p.device for _, p in self._items]
        self._index = {id(p): i for i, (_, p) in enumerate(self._items)}
        self._by_name = dict(self._items)
        self._model_name = type(getattr(module, "_orig_mod", module)).__name__
        if self.elements == 0:
            raise InvalidArgument(
                f"model ({self._model_name}) has no parameter that needs a gradient.\n"
                "Give a model with parameters that require gradients."
            )

    def __iter__(self) -> Iterator[tuple[str, nn.Parameter]]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    @property
    def elements(self) -> int:
        return sum(parameter.numel() for _, parameter in self._items)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self._items]

    def rewritten(self) -> dict[str, Tensor]:
        """What the forward pass sees in the place of those whose zeros are none of it.

        Such have no masks.
        """
        found = rewritten(self._module)
        return {name: found[id(p)] for name, p in self._items if id(p) in found}

    def ids_of_model(self) -> set[int]:
        """Of what the model has by now, also of what needs no gradient."""
        return {id(parameter) for parameter in self._module.parameters()}

    def gone(self) -> str:
        """The name of one that the model has no more; empty: there is none."""
        there = self.ids_of_model()
        return next((name for name, p in self._items if id(p) not in there), "")

    def moved(self) -> str:
        """Where one is that was elsewhere before; empty: all are where they were."""
        return next(
            (
                f"{name} was on {before}, and is on {p.device} now"
                for (name, p), before in zip(self._items, self._places, strict=True)
                if p.device != before
            ),
            "",
        )

    def index_of(self, parameter: object) -> int:
        """Its place in the order. KeyError: not one of this model."""
        return self._index[id(parameter)]

    def find(self, name: str) -> tuple[str, nn.Parameter] | None:
        """The entry for a name, also in the form other tools give it."""
        for candidate in (name, plain_name(name), plain_name(name) + "_orig"):
            if candidate in self._by_name:
                return candidate, self._by_name[candidate]
        return None

    @property
    def summary(self) -> str:
        """For error messages of other ranks."""
        counts = Counter(str(p.dtype).removeprefix("torch.") for _, p in self._items)
        dtypes = " and ".join(
            f"{dtype} ({counts[dtype]})" if len(counts) > 1 else dtype
            for dtype in sorted(counts)
        )
        return (
            f"{self._model_name}: {len(self)} parameters of {dtypes}, "
            f"{self.elements:,} elements"
        )

    def digest(self, digest_of: Digester) -> Digest:
        """Over names, shapes, orders in memory and dtypes: equal on all ranks."""
        text = "\n".join(
            f"{name} {tuple(p.shape)} {storage.bucket_strides(p)} {p.dtype}"
            for name, p in self._items
        )
        return digest_of(text.encode())

    def value_digest(self, digest_of: Digester) -> Digest:
        """Over the values of all parameters, bit for bit."""
        parts = self.digests_by_name(digest_of).values()
        return digest_of(b"".join(part.to_bytes() for part in parts))

    def digests_by_name(self, digest_of: Digester) -> dict[str, Digest]:
        """Of the values of each parameter."""
        return {
            name: digest_of(np.ascontiguousarray(storage.raw_bytes(p)))
            for name, p in self._items
        }
