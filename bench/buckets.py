"""The buckets of torch's DDP, which plain DDP's figures go with."""

from __future__ import annotations

from torch.nn.parallel import DistributedDataParallel


def bucket_bytes(model: DistributedDataParallel) -> list[int]:
    """Of each bucket of a DDP that has made some steps, in the order of their use."""
    chosen = model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    sizes = chosen.get("rebuilt_bucket_sizes") or chosen["bucket_sizes"]
    return [int(size) for size in sizes.split(",")]
