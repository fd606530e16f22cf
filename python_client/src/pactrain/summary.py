"""What a session has come to, in words and as a small file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from torch import nn

from . import storage
from .course import Course
from .enforcement import zeroed
from .errors import InvalidArgument
from .mask_keeper import MaskKeeper
from .masks import MaskSet, registry
from .onset import Onset
from .parameters import ParameterTable, some_of

RECORD_VERSION = 1
_SHOWN_CHANGES = 12


@dataclass(frozen=True)
class MaskAccount:
    """What is to be said of a keeper's masks, as it is when this is made."""

    wanted: MaskSet  # Also those that were declared since the last step.
    active: MaskSet | None
    settled: bool
    moving: bool
    words: str
    shortfalls: tuple[str, ...]
    why_outside: str  # Weights are.

    @staticmethod
    def of(keeper: MaskKeeper) -> MaskAccount:
        return MaskAccount(
            wanted=keeper.wanted_now(),
            active=keeper.active,
            settled=keeper.settled or _are_active(keeper),
            moving=keeper.moving,
            words=_mask_words(keeper),
            shortfalls=(
                *keeper.dense_steps.shortfalls(),
                *keeper.apart,
                *keeper.weights.shortfalls(),
                *resting_outside(keeper.module),
                *unfinished(keeper.table),
            ),
            why_outside=keeper.weights.why_outside(),
        )


def _are_active(keeper: MaskKeeper) -> bool:
    """What was declared since the last step is what is in force."""
    active = keeper.active
    return active is not None and active.digest == keeper.wanted_now().digest


def _mask_words(keeper: MaskKeeper) -> str:
    unchanged, needed = keeper.steps_unchanged, keeper.settle_steps
    if not keeper.tracks and not keeper.wanted_now():
        return "none"
    # Declared ones count once before the first step.
    unchanged = min(unchanged, keeper.steps)
    kind = "tracked in the weights" if keeper.tracks else "declared"
    seen = "last change seen in" if keeper.tracks else "last changed after"
    last = f"{seen} step {keeper.last_change:,}" if keeper.last_change else ""
    most = keeper.moved_most
    return "; ".join(
        part
        for part in (
            f"{kind}, the same for {unchanged:,} steps of {needed:,} needed",
            last,
            f"elements that moved: {most}" if most else "",
        )
        if part
    )


@dataclass(frozen=True)
class Account:
    """What the words are made from."""

    job: str
    place: str  # "rank 0 of 4, site a"
    world_size: int
    gse: bool
    table: ParameterTable
    masks: MaskAccount
    course: Course
    reason: str  # Of the decision in force.
    onset: Onset
    alone: Sequence[str]  # What is to be said of gradients that were not exchanged.
    device_path: str  # Which way they go to the agent, and why.

    def shortfalls(self) -> list[str]:
        """What was asked for and did not come about."""
        return [
            *self.alone,
            *self._masks_not_in_force(),
            *self._pin_not_in_force(),
            *self.masks.shortfalls,
            *self._weights_outside(),
            *self._failed_steps(),
        ]

    def _masks_not_in_force(self) -> list[str]:
        masks, steps = self.masks, self.course.total.steps
        if masks.settled or not steps:
            return []
        if masks.moving:
            return [f"masks had not settled at the end: {masks.words}"]
        state = f"{masks.active} are" if masks.active else "none were"
        return [
            f"masks {masks.wanted} never came into force in {steps:,} steps; {state} "
            f"in force at the end. {self._with_which_steps()}{self.reason}"
        ]

    def _with_which_steps(self) -> str:
        step = self.onset.activate_at
        return f"activate_at={step} has them wait for step {step:,}. " if step else ""

    def _pin_not_in_force(self) -> list[str]:
        steps, pinned = self.course.total.steps, self.onset.pinned
        if not pinned or not steps or self.course.travelled[pinned]:
            return []
        return [
            f"{pinned}, pinned from step {self.onset.pin_from:,} on, travelled in none "
            f"of {steps:,} steps. {self.reason}"
        ]

    def _weights_outside(self) -> list[str]:
        if not self.gse or not self.masks.wanted:
            return []
        return weights_outside(self.table, self.masks.wanted, self.masks.why_outside)

    def _failed_steps(self) -> list[str]:
        failed = self.course.failed_steps
        steps = "step" if failed == 1 else "steps"
        return [f"{failed:,} {steps} failed at this rank"] if failed else []

    def text(self) -> str:
        """One block, for people."""
        rows = [
            ("steps", self._steps()),
            ("travelled", self._travelled()),
            *self._changes(),
            ("sent less", self._first_saving()),
            ("bytes", self._bytes()),
            ("time", self._time()),
            ("gradients by", self.device_path),
            ("masks", self.masks.words),
            ("weights", self._weights()),
            *(("NOT REACHED", line) for line in self.shortfalls()),
        ]
        name = self.table.summary.partition(":")[0]
        head = f"PacTrain: job {self.job}, model {name}, {self.place}"
        return "\n".join([head, *(f"  {title:<13} {line}" for title, line in rows)])

    def _steps(self) -> str:
        return (
            f"{self.course.total.steps:,} in {self.course.total.seconds:,.1f} s; a "
            "step is a backward pass of this model that was exchanged"
        )

    def _travelled(self) -> str:
        steps = max(1, self.course.total.steps)
        shares = [
            f"{mode} {count:,} ({count / steps:.1%})"
            for mode, count in self.course.travelled.items()
        ]
        dense = self.course.dense_steps
        extra = f"; {dense:,} of these sent all elements (dense)" if dense else ""
        seconds = ", ".join(
            f"{mode} {seconds:,.1f} s"
            for mode, seconds in self.course.mode_seconds.items()
            if seconds
        )
        return "; ".join(
            part for part in ((", ".join(shares) or "nothing") + extra, seconds) if part
        )

    def _changes(self) -> list[tuple[str, str]]:
        changes = self.course.changes
        shown = changes[: _SHOWN_CHANGES // 2] + changes[-(_SHOWN_CHANGES // 2) :]
        if len(changes) <= _SHOWN_CHANGES:
            shown = changes
        rows = [
            ("", f"after {c.steps:,} steps, {c.seconds:.1f} s: {c.what}: {c.reason}")
            for c in shown
        ]
        left_out = len(changes) - len(shown) + self.course.forgotten_changes
        return [*rows, ("", f"and {left_out} changes more")] if left_out else rows

    def _first_saving(self) -> str:
        first = self.course.first_saving
        if first is None:
            return f"none did: every step sent all elements. {self.reason}"
        return (
            f"first in step {first.steps:,} of this session, {first.seconds:.1f} s "
            "after it began"
        )

    def _bytes(self) -> str:
        total = self.course.total
        if not total.sent_bytes and not total.received_bytes:
            return "none left this node's site"
        ranks = self.world_size
        ring = 2 * (ranks - 1) / ranks * 4 * total.elements
        return (
            f"{_size(total.sent_bytes)} sent and {_size(total.received_bytes)} "
            "received by this node's agent; FULL fp32 would have sent "
            f"{_size(total.dense_bytes)}, so {_size(total.saved_bytes)} are saved here "
            "(the coordinator's page adds all agents up); a ring of "
            f"{ranks} ranks (plain DDP) {_size(ring)} over each link"
        )

    def _time(self) -> str:
        total = self.course.total
        return (
            f"{total.exchange_seconds:,.1f} s from first buckets to commits, "
            f"{total.wait_seconds:,.1f} s of them waited{self._saved()}"
        )

    def _saved(self) -> str:
        saving, saved = self.course.saving, self.course.saved_seconds
        if not saving.steps or not self.course.total.sent_bytes:
            return ""
        if saved is None:
            return (
                "; seconds saved against FULL fp32 are not known: the agent has not "
                "measured a link's rate yet"
            )
        change = f"about {saved:,.1f} s saved" if saved > 0 else "no saving shows here"
        return (
            f"; {change} against FULL fp32: {_size(saving.dense_bytes)} at "
            f"{_size(self.course.rate)}/s, the best rate measured on this node's "
            f"links, less the {saving.exchange_seconds:,.1f} s that the "
            f"{saving.steps:,} steps took which sent less. This is one rank's view; "
            "what the whole job saved or lost, against FULL as it was measured, is "
            "pactrain_coordinator_saved_seconds, and on the coordinator's page"
        )

    def _weights(self) -> str:
        elements = self.table.elements
        wanted = self.masks.wanted
        zeros = masked = 0
        rewritten = self.table.rewritten()
        for name, parameter in self.table:
            plain = rewritten.get(name, parameter.detach())
            zeros += storage.count(plain == 0)
            if name in wanted.unenforced:
                masked += storage.count((plain != 0) & ~wanted.masks[name])
        others = " or masked in the forward pass" if masked else ""
        return (
            f"{(zeros + masked) / elements:.1%} of {elements:,} are zero{others} "
            f"(counted now); masks ask for {1 - wanted.keep:.1%} outside"
        )

    def write(self, path: str | PathLike[str]) -> None:
        """For `pactrain plot`.

        Raises:
          InvalidArgument: it cannot be written; says why.
        """
        target = path_of(path)
        record = {
            "version": RECORD_VERSION,
            "job": self.job,
            "place": self.place,
            **self.course.record(),
            "summary": self.text(),
        }
        try:
            target.write_text(json.dumps(record))
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise InvalidArgument(
                f"to is {str(path)!r}, which cannot be written: {why}.\n"
                "Give the path of a file in a folder that is there."
            ) from error


def path_of(to: object) -> Path:
    """
    Raises:
      InvalidArgument: summary(to=) is no path of a file.
    """
    if not isinstance(to, (str, PathLike)) or not str(to):
        raise InvalidArgument(
            f"to is {to!r}; allowed is the path of a file.\n"
            "Give one that pactrain plot will read, as in summary(to='run.json')."
        )
    return Path(to)


def weights_outside(table: ParameterTable, masks: MaskSet, why: str) -> list[str]:
    """What is to be said where weights that should be zero are not; empty `why`: it is
    not known."""
    count = nonzero_outside(table, masks)
    if not count:
        return []
    what, why = f"{count:,} weights outside the masks are not zero", why and f": {why}"
    if any(registry.of(parameter).loaded for _, parameter in table):
        why = why or ": weights were loaded"
        return [f"{what}{why}. prune(model, ...) begins anew with them"]
    return [f"{what}{why}. pactrain.apply_masks(model) sets them to zero"]


def resting_outside(module: nn.Module) -> list[str]:
    """The same of parameters that a session does not have since they need no gradient:
    LoRA was merged into them, say."""
    counts = {
        name: storage.count((parameter.detach() != 0) & ~mask)
        for name, parameter in module.named_parameters()
        if not parameter.requires_grad
        and registry.of(parameter).owner is None
        and (mask := registry.get(parameter)) is not None
        and not registry.of(parameter).frozen
    }
    names = [name for name, count in counts.items() if count]
    if not names:
        return []
    return [
        f"{sum(counts.values()):,} weights outside the masks are not zero where masks "
        f"do not act, since no gradient is needed: {some_of(names)}. "
        "pactrain.apply_masks(model) sets them to zero"
    ]


def unfinished(table: ParameterTable) -> list[str]:
    """Of schedules that have masks to come for some of these."""
    there = {id(parameter) for _, parameter in table}
    plans = [p for p in registry.plans if not there.isdisjoint(map(id, p.parameters))]
    return [line for plan in plans if (line := plan.shortfall())]


def nonzero_outside(table: ParameterTable, masks: MaskSet) -> int:
    """Weights that should be zero and are not."""
    return sum(
        storage.count((parameter.detach() != 0) & ~mask)
        for _, parameter, mask in zeroed(table, masks)
    )


def _size(count: float) -> str:
    if count < 0:
        return f"-{_size(-count)}"
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:,.1f} {unit}" if unit != "B" else f"{count:,.0f} B"
        count /= 1000
    raise AssertionError
