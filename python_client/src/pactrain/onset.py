"""With which steps masks and a pin come in force, so that equal runs are equal.

Steps are those of gradients, counted from 1. What all ranks declare alike when they
attach is in force from the first step on. Later decisions depend on how long votes and
the coordinator take, so other masks come in force with certain steps only, for which
ranks wait a little.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import InvalidArgument
from .types import Codec, Decision, Mode

ACTIVATE_EVERY = 4  # As C++ trainers.
_MOST = 1_000_000_000

_CODECS = {
    "fp32": Codec.FP32,
    "bf16": Codec.BF16,
    **{codec.name.removeprefix("LEVELS"): codec for codec in Codec if codec > 2},
}


@dataclass(frozen=True)
class Onset:
    """What attach(activate_at=, pin=, pin_from=) say. 0: not said."""

    activate_at: int = 0
    pin_from: int = 0
    pin_mode: Mode = Mode.FULL
    pin_codec: Codec = Codec.FP32

    @property
    def activate_every(self) -> int:
        """Other masks come in force with a multiple of this step."""
        return self.activate_at or ACTIVATE_EVERY

    @property
    def from_the_start(self) -> bool:
        """The masks of attach() need not wait for a later step."""
        return self.activate_at <= 1

    @property
    def pin(self) -> int:
        """For the comparison of all ranks' settings."""
        return self.pin_mode * 16 + self.pin_codec if self.pin_from else 0

    @property
    def pinned(self) -> str:
        """In words; empty: nothing."""
        return f"{self.pin_mode.name} {self.pin_codec.words}" if self.pin_from else ""

    def missed(self, step: int, decision: Decision, settled: bool) -> str:
        """What was to be in force for step `step` and is not; empty: nothing."""
        if step == self.pin_from and (decision.mode, decision.codec) != (
            self.pin_mode,
            self.pin_codec,
        ):
            return f"{self.pinned}, which is pinned,"
        if step == self.activate_at and not settled:
            return "the masks"
        return ""


DEFAULT_ONSET = Onset()


def onset_from(activate_at: int | None, pin: str | None, pin_from: int | None) -> Onset:
    """
    Raises:
      InvalidArgument: an argument is out of range, or two do not go together.
    """
    for name, step in (("activate_at", activate_at), ("pin_from", pin_from)):
        if step is None:
            continue
        if type(step) is not int or not 1 <= step <= _MOST:
            raise InvalidArgument(
                f"{name} is {step!r}; allowed are 1 to {_MOST}.\n"
                "Give the number of a step; the first one is 1."
            )
    if pin is None:
        if pin_from is None:
            return Onset(activate_at or 0)
        raise InvalidArgument(
            f"pin_from is {pin_from}, and pin says nothing; allowed is both or neither."
            "\nGive pin, too, as in pin='TERNARY 7'."
        )
    start = 1 if pin_from is None else pin_from
    if start < (activate_at or 1):
        raise InvalidArgument(
            f"pin_from is {start}, before activate_at, {activate_at}; allowed are "
            f"{activate_at} and more.\nPin what travels when the masks are in force."
        )
    mode, codec = _pin_from(pin)
    return Onset(activate_at or 0, start, mode, codec)


def _pin_from(text: str) -> tuple[Mode, Codec]:
    mode, _, codec = str(text).removesuffix(" levels").partition(" ")
    if mode in ("FULL", "COMPACTED") and codec in ("", "fp32", "bf16"):
        return Mode[mode], _CODECS[codec or "fp32"]
    if mode == "TERNARY" and codec in ("3", "5", "7", "15", "31"):
        return Mode.TERNARY, _CODECS[codec]
    raise InvalidArgument(
        f"pin is {text!r}; allowed are 'FULL' and 'COMPACTED', alone or with ' bf16', "
        "and 'TERNARY 3', 5, 7, 15 or 31.\nGive one of them, as in pin='TERNARY 7'."
    )
