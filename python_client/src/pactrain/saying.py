"""What a user hears once of a launch, with or without logging."""

from __future__ import annotations

import logging
import os
import sys

logger = logging.getLogger("pactrain")


def say(text: str) -> None:
    """Once for all ranks, also where the script has not set up logging."""
    rank = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))
    if rank != "0" or logger.isEnabledFor(logging.INFO):
        logger.info("%s", text)
    else:
        print(f"pactrain: {text}", file=sys.stderr)
