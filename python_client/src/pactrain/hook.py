"""The communication hook that DDP calls for every bucket.

DDP wants a plain function whose second parameter is named `bucket`, and reads its
annotations as objects: no `from __future__ import annotations` here.
"""

import weakref

import torch
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from .engine import StepEngine


class _Relay:
    """DDP takes one hook in its life: it asks here for the session of now."""

    def __init__(self, engine: StepEngine) -> None:
        self.engine = engine


_relays: weakref.WeakKeyDictionary[DistributedDataParallel, _Relay] = (
    weakref.WeakKeyDictionary()
)


def connect(ddp: DistributedDataParallel, engine: StepEngine) -> list[RemovableHandle]:
    """From now on the model's buckets go to `engine`, and DDP sends no buffers.

    Until the handles are removed the engine hears in which streams gradients come: DDP
    takes them in one stream after the other, and calls the hook in the last.
    """
    relay = _relays.get(ddp)
    if relay is None:
        relay = _relays[ddp] = _Relay(engine)
        ddp.register_comm_hook(relay, exchange_hook)
        ddp._comm_hooks.pop()  # A copy has no session, and can be attached itself.
    relay.engine = engine
    # Not broadcast_buffers: copies, and the end of join(), are as in plain DDP.
    ddp.modules_buffers = []
    if not engine.on_device:
        return []
    return [
        parameter.register_post_accumulate_grad_hook(lambda _: engine.note_stream())
        for parameter in ddp.module.parameters()
        if parameter.requires_grad
    ]


class _InPlace:
    """A bucket of DDP's: the mean goes where the gradients are."""

    def __init__(self, bucket: GradBucket) -> None:
        self.index = bucket.index
        self.buffer = bucket.buffer
        self.parameters = bucket.parameters
        self.is_last = bucket.is_last

    def parts(self) -> list[torch.Tensor]:
        return [self.buffer()]


def exchange_hook(
    state: _Relay, bucket: GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Returns at once; the future gets the mean over all ranks at the commit."""
    # DDP would hide the text of an exception that is set on its own future.
    return state.engine.on_bucket(_InPlace(bucket)).then(state.engine.wait)
