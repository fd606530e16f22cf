"""What ranks do in the end-to-end tests of when decisions come in force."""

from __future__ import annotations

import os
import random
import time
from typing import Any

from launcher import Talk
from scenarios import batch, digest, mlp, sgd
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import pactrain


def recorded(
    talk: Talk,
    *,
    own: bool,
    amount: float,
    steps: int = 16,
    change_at: int = 0,
    change_every: int = 0,
    seed_by_rank: bool = False,
    **onset: Any,
) -> dict[str, Any]:
    """Modes and parameters after each step, which take as long as they like.

    `change_at`: prunes more before that step, counted from 1; `change_every`: before each
    multiple of that.
    """
    model = mlp(seed=talk.rank if seed_by_rank else 0)
    if amount:
        pactrain.prune(model, amount)
    if own:
        os.environ |= {"RANK": str(talk.rank), "WORLD_SIZE": str(talk.world)}
        ddp = pactrain.DistributedDataParallel(model, **onset)
        session = ddp.session
    else:
        ddp = DistributedDataParallel(model)
        session = pactrain.attach(ddp, **onset)
    optimizer = sgd(model)
    delays = random.Random(time.time_ns())
    modes, keeps, digests = [], [], []
    for step in range(1, steps + 1):
        if step == change_at:
            pactrain.prune(model, (1 + amount) / 2)
        if change_every and step % change_every == 0:
            pactrain.prune(model, 1 - (1 - amount) * 0.8 ** (step // change_every))
        optimizer.zero_grad()
        # Nothing can be learnt of it, so that gradients are noise that n levels add little to.
        mse_loss(ddp(batch(talk, step)), batch(talk, -step, (8, 4))).backward()
        optimizer.step()
        last = session.stats()
        modes.append(
            f"{pactrain.Mode(int(last['pactrain/mode'])).name} {int(last['pactrain/codec'])}"
        )
        keeps.append(round(last["pactrain/ratio"], 3))
        digests.append(digest(model))
        time.sleep(delays.uniform(0, 0.02))  # No two runs keep time alike.
    stats = session.stats()
    session.close()
    return {
        "modes": modes,
        "ratios": keeps,
        "digests": digests,
        "compacted": int(stats["pactrain/first_compacted_step"]),
        "ternary": int(stats["pactrain/first_ternary_step"]),
        "failed": int(stats["pactrain/failed_steps"] + stats["pactrain/dense_steps"]),
    }
