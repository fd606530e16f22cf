"""attach(): hands an ordinary DistributedDataParallel to the agent on this node."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
import warnings
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import Store
from torch.nn.parallel import DistributedDataParallel

from . import _abi, agreement, storage
from ._library import NativeSession, digest_of
from .alone import AloneSession, alone
from .broadcast import broadcast, said_if_long
from .buffers import bytes_of, mask_buffers, synced_buffers
from .checks import (
    attached_already,
    check_model,
    check_passes,
    check_shared,
    unwrap,
)
from .config import AttachConfig, attach_timeout_from, config_from_environment
from .declared import DeclaredModel, declare, refitted_where_possible
from .device_path import PathTeller
from .devices import aligned
from .differences import Differences
from .embedded import advice_on_a_dead_agent, embedded_agent
from .engine import Parts, StepEngine
from .errors import (
    CoordinatorUnavailableError,
    PacTrainError,
    RefusedError,
)
from .hook import connect
from .mask_choice import Masks, declare_masks, origin_of, uses_gse
from .mask_keeper import MaskKeeper
from .mask_source import MaskSource
from .masks import make_mask_set, registry
from .meeting import Answer, Meeting
from .membership import Membership, may_go_on
from .model_state import ModelState
from .onset import Onset, onset_from
from .parameters import ParameterTable, some_of
from .session import Session, clear_all_gradients, sessions
from .shared import Shared
from .tracking import TrackedSource, TrackingKeeper
from .types import AttachOptions, Mode, OnShrink
from .variables import warn_of_unknown
from .world import MAX_RANKS, init
from .wrapped import WrappedModel, finds_unused, wrapped_by_torch

logger = logging.getLogger("pactrain")


def attach(
    model: nn.Module,
    masks: Masks = None,
    *,
    gse: bool | None = None,
    settle: int | None = None,
    sync_masks: bool = True,
    buffer_sync_interval: int = 50,
    state: Mapping[str, Any] | None = None,
    activate_at: int | None = None,
    pin: str | None = None,
    pin_from: int | None = None,
    replace: bool | None = None,
) -> Session | AloneSession:
    """Exchanges the model's gradients through the agent from the next step on.

    All ranks call it; it returns when all are there. Agent, job and site come from
    PACTRAIN_* or the launcher's variables (a table in the user guide). Where
    PACTRAIN_AGENT is not set, an agent per node and a coordinator are started that end
    with the job's processes. In a world of one the model need not be wrapped: nothing
    is exchanged then, and masks act all the same; a warning says so.

    Args:
      model: a DistributedDataParallel on the CPU or on one GPU, also compiled or
        wrapped once more.
      masks: None takes those of prune(), set_masks() and torch.nn.utils.prune;
        {name: mask} declares them, in place of those, for weights that are zero
        outside; "weights" takes weight != 0 of all parameters with two or more
        dimensions, once, now; "track" the same, looked at anew in every step:
        for networks that another library or the script prunes, once or again and again.
      gse: drop gradients outside the masks and keep weights there at zero (gradient
        sparsity enforcement). False: a gradient there makes its step dense. Default:
        True, but False for "track". With "track" weights are left alone; True is for
        scripts that put masks on weights only, so that gradients outside mean nothing,
        and not for weights that grow by their gradients (RigL) or from zero.
      settle: steps for which masks have to be the same before they may act; default:
        1, for "weights" 3, for "track" 10.
      sync_masks: all ranks take rank 0's masks; False refuses different ones.
      buffer_sync_interval: steps between two synchronisations of the buffers from rank
        0, which replace DDP's own before every forward; 0: never.
      state: state_dict() of an earlier session to continue.
      activate_at: the step, counted from 1, with which the masks come in force; later
        ones do with a multiple of it. Ranks wait there up to 2 s for the decision, so
        that equal runs are equal. Default: masks that all ranks have alike now are in
        force from the first step on, others with a multiple of 4.
      pin: what travels from step `pin_from` on, whatever is measured: "FULL",
        "COMPACTED" or "TERNARY 7" (3, 5, 7, 15 or 31 levels). Before, all is exact.
      pin_from: a step, counted from 1; default: the first.
      replace: True: begins at once, although ranks of an earlier launch of this job may
        live on a node that is out of sight; see init(). Default: PACTRAIN_REPLACE.

    Raises:
      InvalidArgument: an argument or variable is out of range.
      RefusedError: a kind of model or set-up that cannot be taken; says which. So a
        model without a wrapper where there are several ranks.
      AgentUnresponsiveError: no agent answers at PACTRAIN_AGENT, or none can be
        started; says why.
      CoordinatorUnavailableError: not all ranks came in time; says who is missing.
      PacTrainError: weights were loaded after prune; PACTRAIN_AGENT is not set and
        PACTRAIN_EMBEDDED is 0.
    """
    ddp = unwrap(model)
    if ddp is None:
        onset = onset_from(activate_at, pin, pin_from)
        single = _alone(model, masks, state, gse, settle)
        if onset != Onset():
            logger.warning(
                "activate_at, pin and pin_from have no effect in one process without a "
                "wrapper: masks act from the first step on, and nothing is sent"
            )
        return single
    meeting = Meeting.of(ddp)
    with meeting.prepare(lambda: Answer(config.job, config.agent)):
        check_model(ddp, [session.ddp for session in sessions])
        config = _config(
            ddp,
            uses_gse(masks, gse),
            sync_masks,
            buffer_sync_interval,
            onset_from(activate_at, pin, pin_from),
            replace,
        )
        check_passes(ddp.module, config.world_size)
        declared = declare(wrapped_by_torch(ddp), masks, state, settle)
    config = _with_agent(ddp, config)
    session = open_session(declared, config, meeting)
    session.remove_at_close(connect(ddp, session.engine))
    if config.rank == 0:
        _log_process_group(ddp)
    return session


def _alone(
    model: nn.Module,
    masks: Masks,
    state: Mapping[str, Any] | None,
    gse: bool | None,
    settle: int | None,
) -> AloneSession:
    warn_of_unknown(os.environ)
    name = type(model).__name__
    ranks = dist.get_world_size() if dist.is_initialized() else init().world_size
    if any(s.owns(model) for s in sessions) or any(s.owns(model) for s in alone):
        raise attached_already()
    if ranks > 1:
        raise RefusedError(
            f"The model ({name}) is not wrapped in DistributedDataParallel, and there "
            f"are {ranks} ranks, each of which would train alone.\n"
            "Wrap it first, and attach that: ddp = DistributedDataParallel(model); "
            "pactrain.attach(ddp)."
        )
    check_shared(model)
    table = ParameterTable(model)
    source, _ = declare_masks(model, table, masks, state, settle)
    origin = origin_of(masks, state)
    tracks = source.tracks
    if tracks:  # Others do the pruning, and there is nobody to tell.
        source = MaskSource(model, table)
    uses = uses_gse(masks, gse)
    session = AloneSession(model, table, source, state, uses, origin, tracks)
    warnings.warn(
        f"pactrain.attach: {name} is not wrapped in DistributedDataParallel, so "
        "there is nothing to exchange; its masks act in this one process. To train on "
        "several ranks, wrap it first.",
        stacklevel=3,
    )
    return session


def _say_what_never_acts(
    model: WrappedModel, masks: Mapping[str, Tensor], onset: Onset
) -> None:
    ignored = [
        name
        for name, parameter in model.module.named_parameters()
        if name in model.ignored and registry.get(parameter) is not None
    ]
    if ignored:
        logger.warning(
            "%s: pruned, and left alone by DistributedDataParallel as it was told "
            "(parameters to ignore): their masks do not act",
            some_of(ignored),
        )
    if masks and onset.pin_from == 1 and onset.pin_mode == Mode.FULL:
        logger.warning(
            "pin='FULL' from the first step on: masks never come in force, and weights "
            "outside them train.\nGive pin_from=2 or more, or no pin."
        )


def open_session(
    declared: DeclaredModel, config: AttachConfig, meeting: Meeting | None
) -> Session:
    """Attaches a model whose buckets the caller hands to the session's engine.

    All ranks have equal weights, buffers and masks when it returns; a newcomer to a job
    that runs gets them later (Membership.start()). `meeting` is where they meet beside
    the agents, if they do.

    Raises: as attach().
    """
    model, table, state = declared.model, declared.table, declared.state
    source, settle_steps = declared.source, declared.settle_steps
    index = free_index()
    options = _options(model, table, config, index, state)
    # Before any rank hears of the masks: a generation may begin with them.
    wanted = make_mask_set(table, source.read(), digest_of)
    if state is None and config.sync_masks:  # Else the ranks' own are compared.
        wanted = refitted_where_possible(
            table, source, wanted, declared.origin, config.rank
        )
    if config.rank == 0:
        _say_what_never_acts(model, wanted.masks, config.onset)
    if config.onset.from_the_start and settle_steps == 1 and not source.tracks:
        options = replace(
            options,
            mask_digest=wanted.digest,
            layout_digest=options.model_digest,
            kept_elements=wanted.kept,
            declared_elements=wanted.elements,
        )
    copies = declared.copies
    if copies is not None:
        options = replace(options, nccl=copies.packer.reduces)
    native = NativeSession.attach(
        options,
        functools.partial(_log_waiting, config.rank == 0),
        advice_on_a_dead_agent(os.environ) if config.embedded else "",
        contextlib.nullcontext if copies is None else copies.on_device,
    )
    try:
        with contextlib.nullcontext() if meeting is None else meeting.begin(native):
            parts = _parts(declared, config, native, index)
            if native.donor is None:
                _agree(parts)
                _send_first_state(parts, options.slot_bytes)
                parts.keeper.start(declared.origin)
    except BaseException:
        native.close()
        raise
    storage.give_back_memory()
    differences = _differences(parts, meeting)
    engine = _engine(parts, options.slot_bytes, differences)
    if copies is not None:
        packer = copies.packer
        teller = PathTeller(native, lambda: packer.chosen)
        engine.reporters.append(teller.before_step)
    session = Session(parts, engine, _membership(parts, engine))
    session.at_close(differences.at_end)
    if native.rank == 0:
        _log_start(session, parts)
    return session


def _parts(
    declared: DeclaredModel, config: AttachConfig, native: NativeSession, index: int
) -> Parts:
    table, source, state = declared.table, declared.source, declared.state
    keeper = (
        TrackingKeeper(table, source, native, config.gse)
        if isinstance(source, TrackedSource)
        else MaskKeeper(table, source, native, config.gse)
    )
    keeper.settle_steps = declared.settle_steps
    if state is not None:
        keeper.weights.tolerate_outside = not state["masks_active"]
    return Parts(
        declared.model, table, native, config, keeper, source, index, declared.copies
    )


def _config(
    ddp: DistributedDataParallel,
    gse: bool,
    sync_masks: bool,
    buffer_sync_interval: int,
    onset: Onset,
    replace: bool | None,
) -> AttachConfig:
    group = ddp.process_group
    return config_from_environment(
        rank=dist.get_rank(group),
        world_size=dist.get_world_size(group),
        gse=gse,
        sync_masks=sync_masks,
        # Buffers that DDP was told to keep apart stay apart.
        buffer_sync_interval=buffer_sync_interval if ddp.broadcast_buffers else 0,
        onset=onset,
        replace=replace,
    )


def _with_agent(ddp: DistributedDataParallel, config: AttachConfig) -> AttachConfig:
    """All ranks call it."""
    group = ddp.process_group
    store = dist.distributed_c10d._get_default_store()
    token = launch_token(store, dist.get_global_rank(group, 0), config.rank)
    ranks = "-".join(map(str, dist.get_process_group_ranks(group)))
    launch = f"{token}/{ranks}"
    if not config.agent:
        agent = embedded_agent(store, config, launch)
        config = replace(config, agent=agent, embedded=True)
    return config.with_launch_token(os.environ, token)


def launch_token(store: Store, first_rank: int, rank: int) -> str:
    """A random text that rank 0 of the group chose when its process first attached.

    Raises:
      CoordinatorUnavailableError: rank 0 did not attach in time.
    """
    key = f"pactrain/launch/{first_rank}"
    if rank == 0:
        store.set(key, process_token())
    timeout = attach_timeout_from(os.environ)
    try:
        store.wait([key], timedelta(seconds=timeout))
    except RuntimeError as error:
        raise CoordinatorUnavailableError(
            f"Rank 0 did not attach its model within {timeout:g} s "
            "(PACTRAIN_ATTACH_TIMEOUT).\nAttach the model on all ranks."
        ) from error
    return bytes(store.get(key)).decode()


@functools.cache
def process_token() -> str:
    """A random text of this process."""
    return secrets.token_hex(16)


def free_index() -> int:
    """Of the next model of this process."""
    used = {session.model_index for session in sessions}
    return next(index for index in range(len(used) + 1) if index not in used)


def _options(
    model: WrappedModel,
    table: ParameterTable,
    config: AttachConfig,
    index: int,
    state: Mapping[str, Any] | None,
) -> AttachOptions:
    elastic = config.on_shrink != OnShrink.ABORT
    most_ranks = MAX_RANKS if elastic else config.world_size
    words = [
        agreement.record_words(config.world_size),
        agreement.mask_words(table, most_ranks),
    ]
    sizes = [
        _state_piece_bytes(table) if elastic else _parameter_bytes(table),
        *(aligned(4 * count) for count in words),
        aligned(bytes_of(synced_buffers(model.module, model.ignored))),
    ]
    return AttachOptions(
        agent=config.agent,
        job=config.job,
        site=config.site,
        launch=config.launch,
        rank=config.rank,
        world_size=config.world_size,
        model=index,
        model_digest=table.digest(digest_of),
        model_summary=table.summary,
        elements=table.elements,
        slot_bytes=max(sizes),
        resume_step=0 if state is None else int(state["step"]),
        attach_timeout_ms=round(config.attach_timeout_seconds * 1000),
        gse=config.gse,
        on_shrink=config.on_shrink,
        replace=config.replace,
        activate_every=config.onset.activate_every,
        pin_mode=config.onset.pin_mode,
        pin_codec=config.onset.pin_codec,
        pin_from=config.onset.pin_from,
    )


def _state_piece_bytes(table: ParameterTable) -> int:
    """Equal for equal models, however many ranks a launch has."""
    return max(_parameter_bytes(table), _abi.STATE_MESSAGE_BYTES)


def _parameter_bytes(table: ParameterTable) -> int:
    return sum(aligned(4 * parameter.numel()) for _, parameter in table)


def _log_waiting(is_first: bool, text: str) -> None:
    logger.log(logging.WARNING if is_first else logging.INFO, "%s", text)


def _settings(parts: Parts) -> agreement.Settings:
    config = parts.config
    buffers = synced_buffers(parts.model.module, parts.model.ignored)
    return agreement.Settings(
        gse=int(config.gse),
        sync_masks=int(config.sync_masks),
        buffer_sync_interval=config.buffer_sync_interval,
        parameter_check_interval=config.parameter_check_interval,
        buffer_bytes=bytes_of(buffers),
        settle_steps=parts.keeper.settle_steps,
        on_shrink=int(config.on_shrink),
        activate_at=config.onset.activate_at,
        pin=config.onset.pin,
        pin_from=config.onset.pin_from,
        track=int(parts.keeper.tracks),
    )


def _agree(parts: Parts) -> None:
    native, keeper = parts.native, parts.keeper
    masks, settle_steps = agreement.agree(
        native, parts.table, keeper.current, _settings(parts)
    )
    if masks is not None:
        before = keeper.current
        keeper.adopt(masks)
        if before.digest != keeper.current.digest:
            logger.warning(
                "rank %d: masks %s were replaced by rank 0's, %s",
                native.rank,
                before,
                keeper.current,
            )
    keeper.settle_steps = settle_steps


def _send_first_state(parts: Parts, slot_bytes: int) -> None:
    """Parameters, also those that need no gradient, and buffers; after a process group
    has done that, masks that were made since."""
    module = parts.model.module
    if not parts.model.starts_equal:
        tensors = [
            *((name, p.detach()) for name, p in module.named_parameters() if p.numel()),
            *synced_buffers(module, parts.model.ignored, parts.keeper.tracks),
        ]
    elif parts.keeper.tracks:
        tensors = [
            (name, mask) for name, mask, _ in mask_buffers(module.named_modules())
        ]
    else:
        return  # Declared ones are rank 0's by now.
    native = parts.native
    megabytes = bytes_of(tensors) / 1e6
    say = functools.partial(
        _log_waiting,
        native.rank == 0,
        f"all ranks take rank 0's first state, {megabytes:,.1f} MB: that takes as long "
        "as the slowest link and the last rank. Who is waited for says pactrain-admin "
        f"job {parts.config.job}, and the coordinator's page",
    )
    with said_if_long(say):
        broadcast(native, native.rank, "pactrain first state", tensors, slot_bytes)


def _differences(parts: Parts, meeting: Meeting | None) -> Differences:
    title = f"differences/{parts.model_index}"
    board = None if meeting is None else functools.partial(meeting.board, title)
    return Differences(parts.native, parts.table, parts.keeper, board)


def _engine(parts: Parts, slot_bytes: int, differences: Differences) -> StepEngine:
    def clear_gradients(error: PacTrainError) -> None:
        if not may_go_on(parts.native, parts.config, error):
            clear_all_gradients()

    return StepEngine(parts, slot_bytes, clear_gradients, differences.explain)


def _membership(parts: Parts, engine: StepEngine) -> Membership:
    table, config = parts.table, parts.config
    syncs_buffers = config.buffer_sync_interval > 0
    local = ModelState(
        parts.model.module, table, parts.keeper, Shared(table), syncs_buffers
    )
    settings, piece_bytes = _settings(parts).text, _state_piece_bytes(table)
    return Membership(parts.native, config, local, engine, settings, piece_bytes)


def _log_start(session: Session, parts: Parts) -> None:
    config, keeper = parts.config, parts.keeper
    if parts.copies is not None:
        logger.info("gradients go to the agent by %s", session.device_path)
    logger.info(
        "job %s: %d ranks, generation %d, masks %s; this is site %s, agent %s; it "
        "begins with %s",
        config.job,
        parts.native.world_size,
        session.generation,
        keeper.current if keeper.current else "none",
        session.site,
        session.agent,
        session.decision,
    )
    if config.job_is_default:
        logger.info(
            "no job id is set: set PACTRAIN_JOB_ID where other launches are to join"
        )
    if not config.site:
        logger.info("PACTRAIN_SITE is not set: the agent's own site is used")


def _log_process_group(ddp: DistributedDataParallel) -> None:
    traffic = "the first weights (once) and the order of buckets (once)"
    if finds_unused(ddp):
        traffic += ", and the search for unused parameters (every step)"
    logger.info("DDP's own process group still carries %s", traffic)
