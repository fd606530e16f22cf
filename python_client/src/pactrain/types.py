"""Plain values shared by all modules; the numbers are those of trainer/pactrain.h."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = "bytes | npt.NDArray[np.uint8]"


class Mode(enum.IntEnum):
    """What travels: everything, the kept elements, or those coarsely quantised."""

    FULL = 1
    COMPACTED = 2
    TERNARY = 3


class Codec(enum.IntEnum):
    """How an element is written between sites; LEVELS7: in one of seven levels."""

    FP32 = 1
    BF16 = 2
    LEVELS3 = 3
    LEVELS5 = 4
    LEVELS7 = 5
    LEVELS15 = 6
    LEVELS31 = 7

    @property
    def words(self) -> str:
        """For people: "fp32", "bf16", "7 levels"."""
        name = self.name.lower()
        count = name.removeprefix("levels")
        return name if count == name else f"{count} levels"


class DType(enum.IntEnum):
    FLOAT32 = 1
    BFLOAT16 = 2


class Op(enum.IntEnum):
    """SUM of gradients, or XOR: words of one rank, to which the others add zeros."""

    SUM = 1
    XOR = 2


class OnShrink(enum.IntEnum):
    """What a job does when its ranks become fewer: end, wait for as many as before, or
    go on with those that are left."""

    ABORT = 0
    PAUSE = 1
    CONTINUE = 2


class Digest(NamedTuple):
    """128 bits; all zero means none."""

    hi: int
    lo: int

    def __bool__(self) -> bool:
        return (self.hi, self.lo) != (0, 0)

    def __str__(self) -> str:
        return f"{self.hi:016x}{self.lo:016x}"

    @property
    def short(self) -> str:
        """For people: the first eight digits."""
        return str(self)[:8]

    def words(self) -> list[int]:
        """As four 32-bit words."""
        return [part >> shift & 0xFFFFFFFF for part in self for shift in (32, 0)]

    def to_bytes(self) -> bytes:
        return self.hi.to_bytes(8, "big") + self.lo.to_bytes(8, "big")


NO_DIGEST = Digest(0, 0)

Digester: TypeAlias = Callable[["bytes | npt.NDArray[np.uint8]"], Digest]


@dataclass(frozen=True)
class Decision:
    """What travels from some step on. `reason` is one sentence.

    Reads as "COMPACTED fp32, version 3, mask set 1a2b3c4d: all voted for it".
    """

    version: int
    mode: Mode
    codec: Codec
    mask_digest: Digest
    layout_digest: Digest
    reason: str

    def __str__(self) -> str:
        masks = f", mask set {self.mask_digest.short}" if self.mask_digest else ""
        return (
            f"{self.mode.name} {self.codec.words}, version {self.version}"
            f"{masks}: {self.reason}"
        )

    def __repr__(self) -> str:
        return f"<{self}>"


@dataclass(frozen=True)
class StepResult:
    """One committed step.

    The bytes are those of this node's agent, to and from other sites: `dense_bytes`
    are what FULL had sent in fp32, and `link_rate` is how many per second leave at the
    best rates that it has measured so far (0: none yet). `submitted_elements` counts
    this rank's elements after compaction.
    """

    step: int
    attempts: int
    dense: bool
    mode: Mode
    codec: Codec
    sent_bytes: int
    received_bytes: int
    dense_bytes: int
    link_rate: float
    elements: int
    submitted_elements: int
    wait_seconds: float
    next: Decision


@dataclass(frozen=True)
class HeldState:
    """The state with which a rank attaches again: so many gradient steps from one
    beginning, its lineage."""

    lineage: Digest  # NO_DIGEST: none of this job.
    committed: int  # Gradient steps.
    parameters: Digest  # Over their values.
    next_step: int  # After its last committed one.


@dataclass(frozen=True)
class AttachOptions:
    """The fields of pt_attach_options; `lineage` and `committed` are of the state that
    it holds, as in HeldState."""

    agent: str
    job: str
    site: str
    launch: str
    rank: int
    world_size: int
    model: int
    model_digest: Digest
    model_summary: str
    elements: int
    slot_bytes: int
    resume_step: int
    attach_timeout_ms: int
    gse: bool
    on_shrink: OnShrink = OnShrink.ABORT
    lineage: Digest = NO_DIGEST
    committed: int = 0
    parameters: Digest = NO_DIGEST
    replace: bool = False
    mask_digest: Digest = NO_DIGEST
    layout_digest: Digest = NO_DIGEST
    kept_elements: int = 0
    declared_elements: int = 0
    activate_every: int = 0
    pin_mode: int = 0
    pin_codec: int = 0
    pin_from: int = 0
    nccl: bool = False


class Part(NamedTuple):
    """A piece of a bucket: an address, and how many elements lie there."""

    data: int
    elements: int


@dataclass(frozen=True)
class Plan:
    """What of a bucket travels: see pt_plan in trainer/device_abi.h."""

    packed: bool
    count_outside: bool
    kept: int
    image_bytes: int
    mask_digest: Digest


class NodePath(enum.IntEnum):
    """How a packed bucket goes to the agent: pt_path in trainer/device_abi.h."""

    HOST = 0
    LEADER = 1
    FOLLOWER = 2


@dataclass(frozen=True)
class NodeReport:
    """What the node reduce has come to: pt_node in trainer/device_abi.h."""

    open: bool
    pending: bool  # It may open yet.
    taken: int  # Buckets.
    by_host: int
    nccl_seconds: float
    staged_seconds: float
    reason: str  # Why it is not open.


NO_NODE = NodeReport(False, False, 0, 0, 0.0, 0.0, "")


@dataclass(frozen=True)
class PackedBucket:
    """A bucket that was packed as `plan` says, in fp32.

    Its `memory` is an address with room for `elements` in fp32. `fill` puts all of them
    there in `dtype`; it is called by a thread that submits or waits.
    """

    index: int
    elements: int
    plan: Plan
    outside: int  # Elements outside the mask that are not zero.
    memory: int
    dtype: DType
    fill: Callable[[], None]
    squares: float = 0.0  # Of what is kept, summed; 0 where it goes by the host.
    path: NodePath = NodePath.HOST
