"""What attach() cannot take, in words."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .devices import accelerator_of, check_works
from .engine import DTYPES
from .errors import RefusedError
from .masks import registry
from .parameters import check_module, some_of

_WRAPPERS = ("_orig_mod", "_forward_module", "module", "model")
_MAX_WRAPPERS = 8
_SHARDED = ("FullyShardedDataParallel", "FSDPModule")


def unwrap(model: nn.Module) -> DistributedDataParallel | None:
    """The DistributedDataParallel inside torch.compile's and other tools' wrappers.

    Raises:
      InvalidArgument: it is no module.
      RefusedError: the model is sharded by FSDP.
    """
    check_module(model)
    for module in model.modules():
        if any(kind.__name__ in _SHARDED for kind in type(module).__mro__):
            raise RefusedError(
                "The model is sharded by FSDP, which is not supported.\n"
                "Wrap it in DistributedDataParallel instead."
            )
    inner: object = model
    for _ in range(_MAX_WRAPPERS):
        if isinstance(inner, DistributedDataParallel):
            return inner
        children = (getattr(inner, name, None) for name in _WRAPPERS)
        inner = next(
            (child for child in children if isinstance(child, nn.Module)), None
        )
    return None


def check_model(ddp: DistributedDataParallel, attached: Sequence[nn.Module]) -> None:
    """Raises RefusedError if this model cannot be attached; the text says why."""
    if ddp in attached:
        raise attached_already()
    check_inner(ddp.module, attached)
    _check_settings(ddp)


def attached_already() -> RefusedError:
    return RefusedError(
        "This model is attached already.\nUse the session that it has, or close that."
    )


def check_shared(module: nn.Module) -> None:
    """Raises RefusedError if another model that is attached has some parameters, too:
    each of the two would exchange their gradients, and mask them."""
    named = module.named_parameters()
    shared = [name for name, p in named if registry.of(p).owner is not None]
    if shared:
        raise RefusedError(
            f"{some_of(shared)}: these parameters belong to another model that is "
            "attached already.\nMake one module of both models, wrap that once and "
            "attach it; or close the other session first."
        )


def check_inner(module: nn.Module, attached: Sequence[nn.Module]) -> None:
    """The same for a bare module that is to be attached by a new wrapper."""
    if any(other.module is module for other in attached):
        raise attached_already()
    check_shared(module)
    trained = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
    device = accelerator_of(trained)
    if device is not None:
        check_works(device)
    for name, parameter in trained:
        if parameter.dtype not in DTYPES:
            raise RefusedError(
                f"parameter {name} is {parameter.dtype}; allowed are float32 and "
                "bfloat16.\nConvert the model, or freeze this parameter."
            )
    for name, inner in module.named_modules():
        if getattr(inner, "sparse", False) and isinstance(
            inner, (nn.Embedding, nn.EmbeddingBag)
        ):
            raise RefusedError(
                f"embedding {name!r} has sparse gradients, which are not supported.\n"
                "Make the embedding with sparse=False."
            )
    if any(hasattr(p, "_in_backward_optimizers") for p in module.parameters()):
        raise RefusedError(
            "An optimizer that runs in backward() applies gradients before their step "
            "is committed.\nCall optimizer.step() after backward()."
        )


def check_passes(module: nn.Module, world_size: int) -> None:
    """Raises RefusedError if forward passes move weights at each rank alone."""
    for name, inner in module.named_modules():
        embeds = isinstance(inner, (nn.Embedding, nn.EmbeddingBag))
        if embeds and inner.max_norm is not None and world_size > 1:
            raise RefusedError(
                f"embedding {name!r} has max_norm: each forward pass scales the rows "
                "that this rank looks up, and no other rank's.\nMake it without "
                "max_norm, and scale its rows after each optimizer step, at all ranks."
            )


def _check_settings(ddp: DistributedDataParallel) -> None:
    if ddp.mixed_precision is not None:
        raise RefusedError(
            "DDP's mixed_precision registers a communication hook of its own, and DDP "
            "takes one only.\nUse torch.autocast instead."
        )
    if ddp._comm_hooks:
        raise RefusedError(
            "The model has a communication hook already, and DDP takes one only.\n"
            "Attach instead of calling register_comm_hook()."
        )
    if ddp._use_python_reducer:
        raise RefusedError(
            "Compiled autograd's python_reducer ignores what a communication hook "
            "returns.\nUse torch.compile without compiled autograd."
        )
    if ddp.skip_all_reduce_unused_params or ddp._delay_all_reduce_params:
        raise RefusedError(
            "DDP would reduce some gradients by itself "
            "(skip_all_reduce_unused_params or delay_all_reduce_named_params).\n"
            "Make the DistributedDataParallel without these arguments."
        )
