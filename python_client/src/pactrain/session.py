"""The handle of one attached model."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from os import PathLike
from typing import Any, NoReturn, Protocol

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from . import optimizer_hook, outsiders, storage
from .device_path import ON_CPU, DevicePath
from .engine import Parts, StepEngine
from .errors import CLOSED, InvalidArgument, PacTrainError, StepNotAppliedError
from .lone_gradients import Exchanged, LoneGradients
from .masks import Declared, named_masks, of_kind, registry
from .membership import Membership
from .null_session import as_number, no_copy, tracked_error
from .outsiders import Outsiders
from .parameters import ParameterTable
from .script_end import child_failed, is_child, watch_this_process
from .summary import Account, MaskAccount
from .types import NO_NODE, Decision
from .zeros import load_pruned

STATE_VERSION = 2
_READABLE_STATES = (1, 2)  # 1 has no kinds: all masks are of kind "zero".
_STATE_KEYS = {"version", "step", "masks", "masks_active"}
_CLOSE_MARGIN_SECONDS = 3.0

logger = logging.getLogger("pactrain")


class Removable(Protocol):
    def remove(self) -> None: ...


class Session:
    """One model attached to the agent on this node.

    Made by attach() and by DistributedDataParallel. Used by the thread that trains.
    Not fork-safe: DataLoader workers may be forked, but must not use it.
    """

    def __init__(
        self, parts: Parts, engine: StepEngine, membership: Membership
    ) -> None:
        self._model = parts.model
        self._table = parts.table
        self._native = parts.native
        self._config = parts.config
        self._keeper = parts.keeper
        self._source = parts.source
        self._copies = parts.copies
        self.model_index = parts.model_index
        self.engine = engine
        self.membership = membership
        self._closed = False
        self._account: Account | None = None  # Once closed.
        self._at_close: list[Callable[[], None]] = []
        self._next_step = 0  # Once closed.
        self._pid = os.getpid()
        self._last_decision = parts.native.decision  # Once closed.
        self._hooks: list[Removable] = []
        self._hooks += state_hooks({parts.model.outer, *parts.model.module.modules()})
        for _, parameter in parts.table:
            registry.of(parameter).owner = self
        self._watchers = (parts.keeper.weights, membership, parts.keeper)
        for watcher in self._watchers:
            optimizer_hook.watch(watcher)
        model = parts.model
        self._outsiders = Outsiders(model.module, parts.table, model.ignored)
        self._outsiders.watch()
        self._lone_gradients = LoneGradients(
            parts.table,
            lambda: Exchanged(membership.world.generation, engine.committed),
            lambda: membership.world.world_size,
        )
        self._lone_gradients.watch()
        sessions.add(self)
        watch_this_process()

    @property
    def ddp(self) -> nn.Module:
        """The DistributedDataParallel, torch's or ours."""
        return self._model.outer

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def decision(self) -> Decision:
        """In force for the next step."""
        return self._last_decision if self._closed else self._native.decision

    @property
    def mode(self) -> str:
        """With the codec, as in "COMPACTED fp32" or "TERNARY 7 levels"."""
        decision = self.decision
        return f"{decision.mode.name} {decision.codec.words}"

    @property
    def device_path(self) -> DevicePath:
        """Which way this rank's gradients go to the agent, and why."""
        return ON_CPU if self._copies is None else self._copies.packer.path

    @property
    def site(self) -> str:
        return self._native.site

    @property
    def agent(self) -> str:
        return self._native.agent_name

    @property
    def generation(self) -> int:
        return self._native.generation

    @property
    def next_step(self) -> int:
        return self._next_step if self._closed else self._native.next_step

    @property
    def parameters(self) -> ParameterTable:
        return self._table

    @property
    def last_error(self) -> PacTrainError | None:
        """The typed error of the last failed step, until guard() has raised it."""
        return self.engine.last_error

    def stats(self) -> dict[str, float]:
        """Counters with names that start with "pactrain/", for any logger.

        Bytes are bytes; sent and received ones are this node's agent's, to and from
        other sites, so trainers of one node see the same. process_group_bytes is what
        DDP itself sent or received here, computed from what it says it does.
        """
        course = self.engine.course
        values = course.flat()
        keeper = self._keeper
        active = keeper.active
        saving = course.first_saving
        values |= {
            "pactrain/first_saving_step": 0.0 if saving is None else saving.steps,
            "pactrain/first_saving_seconds": 0.0 if saving is None else saving.seconds,
            "pactrain/saved_seconds": course.saved_seconds or 0.0,
            "pactrain/dense_bytes": float(course.total.dense_bytes),
            "pactrain/saved_bytes": float(course.total.saved_bytes),
            **{
                f"pactrain/mode_seconds_{name.lower()}": seconds
                for name, seconds in course.mode_seconds.items()
            },
            "pactrain/link_rate": course.rate,
            "pactrain/keep": keeper.current.keep,
            "pactrain/active_keep": 1.0 if active is None else active.keep,
            "pactrain/masks_active": float(
                active is not None and keeper.weights.acts_on_all()
            ),
            "pactrain/mask_steps_unchanged": float(keeper.steps_unchanged),
            "pactrain/mask_settle_steps": float(keeper.settle_steps),
            "pactrain/mask_last_change": float(keeper.last_change),
            "pactrain/process_group_bytes": float(
                self._model.process_group_bytes(course.total.steps)
            ),
        }
        packer = None if self._copies is None else self._copies.packer
        fallbacks = 0 if packer is None else packer.fallbacks
        values["pactrain/device_path"] = float(self.device_path.number)
        values["pactrain/device_fallbacks"] = float(fallbacks)
        scratch = 0 if packer is None else packer.scratch_bytes
        values["pactrain/device_scratch_bytes"] = float(scratch)
        node = NO_NODE if packer is None else packer.node or NO_NODE
        unstaged = 0 if packer is None else packer.unstaged
        values["pactrain/nccl_buckets"] = float(node.taken)
        values["pactrain/nccl_fallbacks"] = float(node.by_host + unstaged)
        values["pactrain/nccl_seconds"] = node.nccl_seconds
        values["pactrain/nccl_staged_seconds"] = node.staged_seconds
        if not self._closed and not self._native.closed:
            values["pactrain/generation"] = float(self._native.generation)
        return values

    def summary(self, to: str | PathLike[str] | None = None) -> str:
        """What this session has come to, as lines for people; also after close().

        That is what travelled and why, bytes and seconds saved, sparsity counted in
        the weights, and what was asked for and not reached. close() logs it.

        Args:
          to: a file that gets the course of the run, for `pactrain plot`; a few hundred
            numbers, however long it was.

        Raises:
          InvalidArgument: `to` is no path, or the file cannot be written.
        """
        account = self._account or self._make_account()
        if to is not None:
            account.write(to)
        return account.text()

    def _make_account(self) -> Account:
        world, course = self.membership.world, self.engine.course
        return Account(
            job=self._config.job,
            place=f"rank {world.rank} of {world.world_size}, site {world.site}",
            world_size=world.world_size,
            gse=self._config.gse,
            table=self._table,
            masks=MaskAccount.of(self._keeper),
            course=course,
            reason=self.decision.reason,
            onset=self._config.onset,
            device_path=str(self.device_path),
            alone=self._lone_gradients.shortfalls(
                course.total.steps, course.failed_steps
            ),
        )

    def _log_summary(self) -> None:
        """At rank 0, and warnings of what was not reached."""
        self._account = account = self._make_account()
        if self.membership.world.rank != 0:
            return
        if self.engine.course.total.steps:
            logger.info("%s", account.text())
        for line in account.shortfalls():
            logger.warning("not reached: %s", line)

    def report(self, loss: float | None = None, lr: float | None = None) -> None:
        """Tells the loss and learning rate of the last step; they appear in stats().

        Raises:
          InvalidArgument: not a number.
        """
        for name, value in (("loss", loss), ("lr", lr)):
            if value is not None:
                self.engine.course.reported[name] = as_number(name, value)

    @property
    def masks_settled(self) -> bool:
        """True if the masks in force are the ones that this rank wants.

        Where all ranks want the same, it becomes true at the same step at all of them.
        """
        return self._keeper.settled

    def set_masks(self, masks: Mapping[str, Tensor], kind: str = "zero") -> None:
        """Replaces the model's masks by {name: mask}; missing names are kept whole.

        They act when all ranks have given the same ones, of the same kind: "zero" or
        "freeze", as in prune().

        Raises:
          InvalidArgument: an unknown name or kind, or a wrong shape or value; or masks
            are tracked.
          PacTrainError: the session is closed.
        """
        self._check_open()
        self.check_declares("set_masks()")
        self._source.write(of_kind(named_masks(self._table, masks), kind))
        self._source.mark_changed()

    def sync_masks(self, *, failed: bool = False) -> None:
        """Gives all ranks the masks of rank 0, now; they act when agreed, as always.

        All ranks must call it between the same two steps: where they have pruned by
        what differs between them, as their batches do. One bit per weight is sent.

        Args:
          failed: this rank could not prune, so that all raise.

        Raises:
          PacTrainError: a rank failed, or the exchange did; on all ranks. Masks are as
            before.
        """
        self.check_declares("sync_masks()")
        with self._between_steps("sync_masks()"):
            self._keeper.sync(failed)

    def check_declares(self, call: str) -> None:
        """Raises InvalidArgument, which names the call, if masks are tracked."""
        if self._source.tracks:
            raise tracked_error(call)
        if not self._closed:  # Masks that come now are newer.
            self._keeper.weights.notice_copies()

    def apply_masks(self) -> None:
        """Weights times the agreed masks; only for optimizers not made by torch."""
        self._keeper.weights.apply_masks(self._keeper.current)

    def sync_buffers(self) -> None:
        """Gives all ranks the buffers (BatchNorm statistics) of rank 0, now.

        All ranks must call it between the same two steps: before evaluating on all of
        them, say. A checkpoint that rank 0 writes needs none. Where masks are tracked
        those of torch.nn.utils.prune are sent, too: after pruning by what differs
        between ranks.

        Raises: the typed error of the exchange.
        """
        with self._between_steps("sync_buffers()"):
            self.engine.sync_buffers(also_masks=self._source.tracks)

    def load(self, weights: Mapping[str, Any]) -> None:
        """Loads the state_dict() of a pruned model, whose zeros become the masks.

        All ranks call it. With load_state_dict() of the model masks stay as they are
        where they fit, and are those zeros where as much was pruned elsewhere.

        Args:
          weights: with the names of the model, wrapped or not.

        Raises:
          InvalidArgument: not of this model, or no weight in it was pruned.
        """
        self._check_open()
        masks = load_pruned(self._model.module, self._table, weights)
        if not self._source.tracks:
            self.check_declares("load()")
            self._source.write_zeros(masks)
        self.weights_loaded()

    def state_dict(self) -> dict[str, Any]:
        """Plain values and bitmaps, for torch.save; give it to attach(state=).

        No other rank takes part, so rank 0 alone may call it.
        """
        return {
            "version": STATE_VERSION,
            "step": self.next_step,
            **self._keeper.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes the masks of a checkpoint over; all ranks call it.

        The step counter is taken over by attach(state=) only: within a session it
        never goes back.

        Raises:
          InvalidArgument: not made by state_dict(), or of another model.
        """
        self._check_open()
        self._source.write_state(unpack_state(self._table, state))
        self._source.mark_changed()
        in_force = bool(state["masks_active"])
        self._keeper.weights.masks_come_from_state(in_force)
        self._all_loaded()

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Raises the typed error of a step that DDP made a RuntimeError of."""
        self.engine.take_error()
        try:
            yield
        except PacTrainError:
            raise
        except RuntimeError:
            error = self.engine.take_error()
            if error is None:
                raise
            raise error from None

    def close(self) -> None:
        """Leaves the job. Idempotent; also done when the process exits with status 0:
        with another one it is lost, as if it were killed. Later backwards fail."""
        self._end(self._native.close)

    def _close_at_exit(self) -> None:
        """Ends the session now; whether this rank leaves, the exit status will say."""
        self._end(self._native.close_at_exit)

    def _end(self, close_native: Callable[[], None]) -> None:
        if self._closed or os.getpid() != self._pid:
            return
        patience = _CLOSE_MARGIN_SECONDS
        if not self._native.closed:  # Another generation may not have been reached.
            self._next_step = self._native.next_step
            self._last_decision = self._native.decision
            patience += self._native.step_deadline_seconds
        self._keeper.weights.close()
        try:
            for call in self._at_close:
                call()
            self._log_summary()
        except Exception as error:  # A job is left whatever its loggers do.
            logger.warning("the summary of the session failed: %r", error)
        self._closed = True
        sessions.discard(self)
        for watcher in self._watchers:
            optimizer_hook.unwatch(watcher)
        self._outsiders.close()
        self._lone_gradients.close()
        for hook in self._hooks:
            hook.remove()
        for _, parameter in self._table:
            registry.of(parameter).owner = None
        self.engine.end(PacTrainError(CLOSED))
        if self.engine.stop(patience):
            close_native()

    def at_close(self, call: Callable[[], None]) -> None:
        """Calls it when the session is closed, while it still is in the job."""
        self._at_close.append(call)

    def remove_at_close(self, hooks: Iterable[Removable]) -> None:
        self._hooks += hooks

    @contextlib.contextmanager
    def _between_steps(self, call: str) -> Iterator[None]:
        """Around an exchange that the script asked for.

        Ranks are at different places in their scripts when their members change, so it
        cannot be done again from here.
        """
        self._check_open()
        if self.engine.busy:
            raise PacTrainError(
                f"{call} was called while a step is under way.\n"
                "Call it between one backward() and the next, on all ranks."
            )
        if self.membership.newcomer:
            raise PacTrainError(
                f"{call} was called before this rank has the state of the job that it "
                "joins.\nCall model.start() first."
            )
        try:
            yield
        except PacTrainError as error:
            if not self.membership.may_go_on(error):
                raise
            raise StepNotAppliedError(
                f"{call} was not done at this rank: {str(error).splitlines()[0]}\n"
                "The next backward() goes on with the ranks that are there; call it "
                "again after that."
            ) from error

    def _check_open(self) -> None:
        if self._closed:
            raise PacTrainError(CLOSED)

    def owns(self, module: nn.Module) -> bool:
        """True for the attached model, wrapped or not."""
        return module is self._model.outer or module is self._model.module

    def _all_loaded(self) -> None:
        for _, parameter in self._table:
            registry.of(parameter).loaded = True
        self.weights_loaded()

    def weights_loaded(self) -> None:
        """Weights are new: they are checked before the next step."""
        self._keeper.weights_loaded()
        self.engine.check_parameters_next = True

    def before_save(self) -> None:
        """Of weights: masked, also where the script steps by hand."""
        if not self._closed and not self.engine.busy:
            self._keeper.weights.before_save()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise no_copy()

    def __repr__(self) -> str:
        state = "closed" if self._closed else self.mode
        return f"<pactrain.Session of job {self._config.job!r}, {state}>"


# Strong: DDP keeps the hook, so a session lives until it is closed.
sessions: set[Session] = set()


def state_hooks(modules: Iterable[nn.Module]) -> list[RemovableHandle]:
    """By which sessions hear of state_dict() and load_state_dict()."""
    handles: list[RemovableHandle] = []
    for module in modules:
        handles += (
            module.register_load_state_dict_pre_hook(_before_load),  # type: ignore[no-untyped-call]
            module.register_load_state_dict_post_hook(after_load),  # type: ignore[no-untyped-call]
            module.register_state_dict_pre_hook(_before_save),  # type: ignore[no-untyped-call]
        )
    return handles


def _before_save(module: nn.Module, prefix: str, keep_vars: bool) -> None:
    # A plain function, too.
    owners = (
        registry.of(p).owner for p in module._parameters.values() if p is not None
    )
    for owner in {owner for owner in owners if owner is not None}:
        owner.before_save()


def _before_load(module: nn.Module, *arguments: object) -> None:
    for parameter in module._parameters.values():
        if parameter is not None and registry.of(parameter).owner is not None:
            registry.note_before_load(parameter)


def after_load(module: nn.Module, keys: object) -> None:
    # A plain function, not a method: copies of the model copy their hooks.
    outsiders.check_load(module)
    for parameter in module._parameters.values():
        owner = None if parameter is None else registry.of(parameter).owner
        if parameter is not None and owner is not None:
            registry.of(parameter).loaded = True
            owner.weights_loaded()


def clear_all_gradients() -> None:
    """Of all attached models: a failed step of one leaves no gradient in any."""
    for session in list(sessions):
        for _, parameter in session.parameters:
            parameter.grad = None


def unpack_state(table: ParameterTable, state: Mapping[str, Any]) -> Declared:
    """The masks in a state_dict().

    Raises:
      InvalidArgument: not made by state_dict(), or of another model.
    """
    if not isinstance(state, Mapping) or not state.keys() >= _STATE_KEYS:
        what = (
            f"a dict with {sorted(map(str, state))[:5]}"
            if isinstance(state, Mapping)
            else f"of type {type(state).__name__}"
        )
        raise InvalidArgument(
            f"state is {what}; allowed is a dict with {sorted(_STATE_KEYS)}.\n"
            "Give what session.state_dict() returned."
        )
    if state["version"] not in _READABLE_STATES:
        raise InvalidArgument(
            f"state has version {state['version']!r}; allowed are "
            f"{_READABLE_STATES}.\nLoad it with the release of pactrain that wrote it."
        )
    masks: dict[str, Tensor] = {}
    frozen: set[str] = set()
    for name, bits in state["masks"].items():
        found = table.find(name)
        if found is None or -(-found[1].numel() // 8) != bits.numel():
            raise InvalidArgument(
                f"state has a mask of {bits.numel()} bytes for {name!r}; this model "
                f"has {_size_text(found)}.\nGive the state of a session of the same "
                "model."
            )
        flat = storage.unpack(bits.numpy(), found[1].numel())
        masks[found[0]] = flat.reshape(found[1].shape)
        if name in state.get("frozen", ()):
            frozen.add(found[0])
    return Declared(masks, frozenset(frozen))


def _size_text(found: tuple[str, nn.Parameter] | None) -> str:
    if found is None:
        return "no such parameter"
    return f"{found[1].numel()} elements there"


def _close_all() -> None:
    if child_failed():
        return  # It has not left, but is lost: its connection goes with the process.
    for session in list(sessions):
        try:
            # A child of multiprocessing may end by os._exit(), which tells nobody.
            session.close() if is_child() else session._close_at_exit()
        except Exception as error:  # At exit there is nobody to handle it.
            logger.debug("close at exit: %s", error)


atexit.register(_close_all)
