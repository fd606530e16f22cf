"""The communication hook that DDP calls for every bucket.

DDP wants a plain function whose second parameter is named `bucket`, and reads its
annotations as objects: no `from __future__ import annotations` here.
"""

import torch
from torch._C._distributed_c10d import GradBucket

from .engine import StepEngine


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
    state: StepEngine, bucket: GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Returns at once; the future gets the mean over all ranks at the commit."""
    # DDP would hide the text of an exception that is set on its own future.
    return state.on_bucket(_InPlace(bucket)).then(_result)


def _result(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
    return future.wait()
