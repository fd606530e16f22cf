"""All scripts, and what is to come of each. The user guide has the same table."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from . import ends, loops, models, resumed
from .place import Place


@dataclass(frozen=True)
class Script:
    """`ways` are ours; each is compared with its judge, by what `same` says: bit for bit,
    within rounding (other orders of sums), or by where zeros are.

    `refused` are words of the error that the script ends with, some left out ("..."); `told`
    are those of a warning. The user guide says `note`, too.
    """

    what: str
    run: Callable[[Place], Any]
    ways: tuple[str, ...] = ("dense", "pruned")
    worlds: tuple[int, ...] = (2,)  # One launch after another.
    same: Literal["bits", "close", "zeros"] = "bits"
    refused: str = ""
    told: str = ""
    nightly: bool = False
    note: str = ""

    @property
    def name(self) -> str:
        own = "own_" if self.ways[0].startswith("own") else ""
        return own + self.run.__name__

    def refuses(self, text: str) -> bool:
        """Whether these are the words of this script's error."""
        parts = map(re.escape, self.refused.split(" ... "))
        return bool(self.refused) and bool(re.search(".*".join(parts), " ".join(text.split())))

    @property
    def line(self) -> str:
        """Of the user guide."""
        verdict = "works"
        if self.refused:
            verdict = f'refused: "{self.refused}"'
        elif self.same == "zeros":
            verdict += ": zeros stay zeros"
        if self.told:
            verdict += f', and says "{self.told}"'
        note = f"; {self.note}" if self.note else ""
        nightly = ", nightly" if self.nightly else ""
        return f"| {self.what} | {verdict}{note} | `{self.name}`{nightly} |"


_UNEVEN = (
    "rank 1 ... ended in order ... unequal numbers of batches? Give all ranks equally many "
    "batches, or train in DDP's join()."
)
_TORCHS = "Expected to have finished reduction in the prior iteration"
_TORCHS_OWN = "torch's own error, with plain DDP as well"
_ALONE = (
    "each rank would train it alone. Do that before the model is wrapped; or close the "
    "session, then wrap and attach the model anew."
)
_LOADED = "weights were loaded that had been pruned elsewhere: their zeros are the masks now"
_LONE = (
    "The gradient of 0.weight was not exchanged ... each rank would train alone. Call the "
    "wrapped model, as in ddp(x), not the model inside"
)
_SHARED = (
    "these parameters belong to another model that is attached already. Make one module of "
    "both models, wrap that once and attach it; or close the other session first."
)
_REORDERED = (
    "has its elements in another order (memory format) than when the model was attached: "
    "gradients would reach the wrong ones. Convert the model before it is wrapped; or close "
    "the session, then wrap and attach the model anew."
)
_RENORMED = (
    "embedding '0' has max_norm: each forward pass scales the rows that this rank looks up, "
    "and no other rank's. Make it without max_norm, and scale its rows after each optimizer "
    "step, at all ranks."
)
_ONLY_DENSE = ("dense",)
_OWN = ("own",)
_BOTH_OWN = ("own", "own pruned")

ATTACHED = (
    Script("the plain loop", loops.plain),
    Script("`torch.compile`, backend `aot_eager`", loops.compile_aot),
    Script("`torch.compile(ddp)` with inductor", loops.compile_inductor, nightly=True),
    Script(
        "`DistributedDataParallel(torch.compile(model))` with inductor",
        loops.compile_inductor_inside,
        nightly=True,
    ),
    Script("`torch.compile(optimizer.step)`", loops.compiled_step),
    Script("`torch.autocast` to bfloat16", loops.autocast),
    Script("`GradScaler`, with a gradient that overflows on one rank", loops.scaler),
    Script("DataLoader workers, forked anew in each epoch", loops.workers_fork, _ONLY_DENSE),
    Script("DataLoader workers, persistent", loops.workers_persistent, _ONLY_DENSE),
    Script("DataLoader workers, spawned", loops.workers_spawn, _ONLY_DENSE, nightly=True),
    Script("activation checkpointing, reentrant", models.checkpoint_reentrant),
    Script("activation checkpointing, not reentrant", models.checkpoint_not_reentrant),
    Script("gradient accumulation by `no_sync()`, short last round", loops.accumulation),
    Script("the same by `require_backward_grad_sync`, as nanoGPT does", loops.accumulation_flag),
    Script("the same with an exchange in each pass", loops.accumulation_all),
    Script(
        "a last round that is not exchanged, by mistake",
        loops.accumulation_not_exchanged,
        _ONLY_DENSE,
        refused=_LONE,
    ),
    Script("the model inside is called, by mistake", loops.called_inside, refused=_LONE),
    Script("a penalty with a backward pass of its own, first", loops.penalty_first),
    Script(
        "the same, last",
        loops.penalty_last,
        _ONLY_DENSE,
        refused=_LONE,
        note="the ranks' own gradients cannot be told from equal ones",
    ),
    Script(
        "weights that one rank moves alone, by hand",
        loops.drifted,
        _ONLY_DENSE,
        refused="parameters differ ... Load the last checkpoint at all ranks and start them again",
        note="at the latest after 100 steps. Where it is among the last ones, the summary says so",
    ),
    Script("clipping of norms and values", loops.clipping),
    Script("`ZeroRedundancyOptimizer`", loops.zero_redundancy),
    Script("`find_unused_parameters`", models.unused),
    Script("two attached models (a GAN)", loops.two_models),
    Script(
        "two models that share an encoder",
        models.shared_encoder,
        _ONLY_DENSE,
        refused=_SHARED,
    ),
    Script("gradient hooks of the user's", loops.hooks),
    Script("`p.grad = None` in mid-step (DINO)", loops.dropped_gradients),
    Script("PCGrad: lists of `p.grad` of several passes", loops.kept_gradients),
    Script("EMA: `AveragedModel`, and by hand", loops.ema),
    Script("LBFGS: several backward passes in a step", loops.lbfgs),
    Script("an optimizer that replaces `p.data`", loops.replaced_data),
    Script("weights updated by hand, without an optimizer", loops.by_hand),
    Script("tied weights", models.tied),
    Script("an embedding with `max_norm`", models.renormed, refused=_RENORMED),
    Script("LoRA by peft", models.lora, nightly=True),
    Script("layers frozen from the start", models.frozen),
    Script("a layer frozen later, with `find_unused_parameters`", models.frozen_later),
    Script(
        "the same without",
        models.frozen_later_unsaid,
        _ONLY_DENSE,
        refused=_LONE,
        note="before torch's own error, which comes a pass later",
    ),
    Script(
        "a layer that begins to train after wrapping",
        models.thawed_later,
        refused="0.weight was not there, or needed no gradient, when the model was wrapped: "
        + _ALONE,
    ),
    Script("the same, wrapped and attached anew", models.thawed_anew),
    Script("`weight_norm`", models.weight_norm),
    Script(
        "`orthogonal`",
        models.orthogonal,
        note="`prune` leaves such a layer alone: its parametrization does not keep zeros",
    ),
    Script(
        "a parametrization that goes after `attach`",
        models.unparametrized_later,
        _ONLY_DENSE,
        refused="is no parameter of the model any more: a module was replaced, or a "
        "parametrization came or went, after the model was wrapped. ... Do that before the "
        "model is wrapped; or close the session, then wrap and attach the model anew.",
    ),
    Script("bfloat16 parameters", models.bfloat16),
    Script("float32 and bfloat16 parameters in one model", models.mixed_types),
    Script(
        "a model made bfloat16 after `attach`",
        models.half_later,
        refused="0.weight is torch.bfloat16, but was torch.float32 when the model was attached: "
        + _ALONE,
    ),
    Script("channels_last", models.channels_last),
    Script("channels_last after `attach`", models.reordered_later, refused=_REORDERED),
    Script("BatchNorm", models.batch_norm),
    Script("small buckets, `gradient_as_bucket_view`", models.small_buckets),
    Script("`static_graph`", models.static_graph),
    Script("`torch.nn.utils.prune`", models.pruned_by_torch, ways=_ONLY_DENSE),
    Script('`masks="weights"`', resumed.from_weights, ways=("pruned",), same="zeros"),
    Script("resume: load before wrapping", resumed.load_before_wrap, worlds=(2, 2)),
    Script("resume: load after wrapping", resumed.load_after_wrap, _ONLY_DENSE, worlds=(2, 2)),
    Script(
        "the same with a pruned checkpoint",
        resumed.load_after_wrap_pruned,
        ("pruned",),
        worlds=(2, 2),
        same="zeros",
        told=_LOADED,
    ),
    Script(
        "resume at another world size: load before wrapping",
        resumed.other_world,
        worlds=(2, 3),
        same="close",
    ),
    Script(
        "the same: load after wrapping",
        resumed.other_world_after_wrap,
        _ONLY_DENSE,
        worlds=(2, 3),
        same="close",
    ),
    Script("resume with the session's state", resumed.session_state, worlds=(2, 2)),
    Script(
        "the same, and pruned more before the state is given",
        resumed.state_after_prune,
        ("pruned",),
        worlds=(2, 2),
        same="zeros",
        told="weights were pruned since the session's state was saved: their masks stay",
    ),
    Script("`load_state_dict(assign=True)` before wrapping", resumed.assign_before_wrap),
    Script(
        "the same after `attach`",
        resumed.assign_after_wrap,
        refused="load_state_dict(assign=True) has put another parameter in the place of "
        "0.weight of an attached model: neither masks nor other ranks would reach it. Load "
        "without assign=True, or before the model is wrapped and attached",
    ),
    Script(
        "`sync_masks=False` with masks older than the weights",
        resumed.stale_masks,
        _ONLY_DENSE,
        told=_LOADED,
    ),
    Script("evaluation on rank 0 alone", ends.evaluation),
    Script("the same through the wrapper", ends.evaluation_wrapped),
    Script("uneven data with `join()`", ends.joined),
    Script("the same where rank 1 ends first", ends.joined_first),
    Script("uneven data without", ends.uneven, _ONLY_DENSE, refused=_UNEVEN),
    Script("early stopping that all ranks hear of", ends.early_stop),
    Script(
        "early stopping on one rank",
        ends.early_stop_alone,
        _ONLY_DENSE,
        refused=_UNEVEN,
        nightly=True,
    ),
    Script("out of memory at all ranks, caught, batch left out", ends.out_of_memory),
    Script("out of memory at one rank, a small batch instead", ends.out_of_memory_dummy),
    Script(
        "out of memory at one rank, batch left out",
        ends.out_of_memory_alone,
        _ONLY_DENSE,
        refused=_UNEVEN,
        nightly=True,
    ),
    Script(
        "out of memory in mid-backward at all ranks",
        ends.out_of_memory_backward,
        _ONLY_DENSE,
        refused=_TORCHS,
        note=_TORCHS_OWN,
    ),
    Script("the same at one rank", ends.out_of_memory_backward_alone, _ONLY_DENSE, refused=_TORCHS),
)

# Those in which the wrapper matters. A world that shrinks is in test_membership.py.
OWN = (
    Script("the plain loop", loops.plain, _OWN),
    Script(
        "pruned before wrapping, from other weights at each rank",
        loops.pruned_apart,
        ("own pruned",),
        same="zeros",
        told="were replaced by rank 0's",
        note="masks come in force some steps later than with equal ones",
    ),
    Script("`torch.compile`, backend `aot_eager`", loops.compile_aot, _OWN),
    Script("`torch.autocast` to bfloat16", loops.autocast, _BOTH_OWN),
    Script("`GradScaler`, with a gradient that overflows on one rank", loops.scaler, _OWN),
    Script("activation checkpointing, reentrant", models.checkpoint_reentrant, _OWN),
    Script("activation checkpointing, not reentrant", models.checkpoint_not_reentrant, _OWN),
    Script("gradient accumulation by `no_sync()`, short last round", loops.accumulation, _BOTH_OWN),
    Script(
        "the same by `require_backward_grad_sync`, as nanoGPT does", loops.accumulation_flag, _OWN
    ),
    Script("the same with an exchange in each pass", loops.accumulation_all, _OWN),
    Script(
        "a last round that is not exchanged, by mistake",
        loops.accumulation_not_exchanged,
        _OWN,
        refused=_LONE,
    ),
    Script("the model inside is called, by mistake", loops.called_inside, _OWN, refused=_LONE),
    Script("clipping of norms and values", loops.clipping, _OWN),
    Script("`find_unused_parameters`", models.unused_at_times, _OWN),
    Script(
        "a layer that no rank ever reaches",
        models.never_reached,
        _OWN,
        same="zeros",
        told="got no gradient at any rank",
        note="its gradient is zeros, not None: weight decay moves it",
    ),
    Script("two models (a GAN)", loops.two_models, _OWN),
    Script("two models that share an encoder", models.shared_encoder, _OWN, refused=_SHARED),
    Script("gradient hooks of the user's", loops.hooks, _OWN),
    Script("`p.grad = None` in mid-step (DINO)", loops.dropped_gradients, _OWN),
    Script("PCGrad: lists of `p.grad` of several passes", loops.kept_gradients, _BOTH_OWN),
    Script("EMA: `AveragedModel`, and by hand", loops.ema, _BOTH_OWN),
    Script("LBFGS: several backward passes in a step", loops.lbfgs, _OWN),
    Script("weights updated by hand, without an optimizer", loops.by_hand, _BOTH_OWN),
    Script("tied weights", models.tied, _OWN),
    Script("an embedding with `max_norm`", models.renormed, _OWN, refused=_RENORMED),
    Script("layers frozen from the start", models.frozen, _OWN),
    Script("a layer frozen later", models.frozen_later, _OWN),
    Script(
        "a layer that begins to train after wrapping",
        models.thawed_later,
        _OWN,
        refused="0.weight was not there, or needed no gradient, when the model was wrapped: "
        + _ALONE,
    ),
    Script("float32 and bfloat16 parameters in one model", models.mixed_types, _OWN),
    Script("channels_last", models.channels_last, _BOTH_OWN),
    Script("channels_last after wrapping", models.reordered_later, _BOTH_OWN, refused=_REORDERED),
    Script("resume: load before wrapping", resumed.load_before_wrap, _BOTH_OWN, worlds=(2, 2)),
    Script("resume: load after wrapping", resumed.load_after_wrap, _OWN, worlds=(2, 2)),
    Script(
        "the same with a pruned checkpoint",
        resumed.load_after_wrap_pruned,
        ("own pruned",),
        worlds=(2, 2),
        same="zeros",
        told=_LOADED,
    ),
    Script("evaluation on rank 0 alone", ends.evaluation, _OWN),
    Script("the same through the wrapper", ends.evaluation_wrapped, _OWN),
    Script(
        "uneven data with `join()`",
        ends.joined,
        _OWN,
        refused="join() needs a process group, which pactrain.DistributedDataParallel has not. "
        "Give all ranks equally many batches",
    ),
    Script("early stopping that all ranks hear of", ends.early_stop, _OWN),
    Script("out of memory at all ranks, caught, batch left out", ends.out_of_memory, _OWN),
    Script("out of memory at one rank, a small batch instead", ends.out_of_memory_dummy, _OWN),
)

SCRIPTS = ATTACHED + OWN
