"""Counters of one session."""

from __future__ import annotations

from dataclasses import dataclass, field

from .types import Mode, StepResult


@dataclass
class Counters:
    """What the committed steps of a session add up to. Written by one thread."""

    steps: int = 0
    first_compacted_step: int = 0  # From 1; 0: none was yet.
    first_ternary_step: int = 0
    failed_steps: int = 0
    retried_steps: int = 0
    dense_steps: int = 0
    buffer_syncs: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    wait_seconds: float = 0.0
    last: StepResult | None = None
    reported: dict[str, float] = field(default_factory=dict)

    def add(self, result: StepResult) -> None:
        self.steps += 1
        if result.mode == Mode.COMPACTED and not result.dense:
            self.first_compacted_step = self.first_compacted_step or self.steps
        if result.mode == Mode.TERNARY and not result.dense:
            self.first_ternary_step = self.first_ternary_step or self.steps
        self.retried_steps += result.attempts > 1
        self.dense_steps += result.dense
        self.sent_bytes += result.sent_bytes
        self.received_bytes += result.received_bytes
        self.wait_seconds += result.wait_seconds
        self.last = result

    def flat(self) -> dict[str, float]:
        """For any logger: names start with "pactrain/"."""
        values: dict[str, float] = {
            "steps": self.steps,
            "first_compacted_step": self.first_compacted_step,
            "first_ternary_step": self.first_ternary_step,
            "failed_steps": self.failed_steps,
            "retried_steps": self.retried_steps,
            "dense_steps": self.dense_steps,
            "buffer_syncs": self.buffer_syncs,
            "sent_bytes": self.sent_bytes,
            "received_bytes": self.received_bytes,
            "wait_seconds": self.wait_seconds,
            **self.reported,
        }
        if self.last is not None:
            last = self.last
            values |= {
                "step": last.step,
                "mode": last.mode,
                "codec": last.codec,
                "dense": last.dense,
                "attempts": last.attempts,
                "step_sent_bytes": last.sent_bytes,
                "step_received_bytes": last.received_bytes,
                "step_wait_seconds": last.wait_seconds,
                "elements": last.elements,
                "submitted_elements": last.submitted_elements,
                "ratio": last.elements / max(1, last.submitted_elements),
            }
        return {f"pactrain/{name}": float(value) for name, value in values.items()}
