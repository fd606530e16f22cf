"""The communication hook that DDP calls for every bucket.

DDP wants a plain function whose second parameter is named `bucket`, and reads its
annotations as objects: no `from __future__ import annotations` here.
"""

import torch
from torch._C._distributed_c10d import GradBucket

from .engine import StepEngine


def exchange_hook(
    state: StepEngine, bucket: GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Returns at once; the future gets the mean over all ranks at the commit."""
    # DDP would hide the text of an exception that is set on its own future.
    return state.on_bucket(bucket).then(_result)


def _result(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
    return future.wait()
