"""A step that a runner has launched, and what it gave."""

from collections.abc import Callable
from dataclasses import dataclass, field

import mlx.core as mx

from omlx_server.compute.batch import Decoded
from omlx_server.compute.drafting.base import Drafted
from omlx_server.compute.hardware import device
from omlx_server.compute.payload import Payload, size_of
from omlx_server.compute.verify import Verifying
from omlx_server.core.blocks.block import Size
from omlx_server.core.request import Restored
from omlx_server.core.step import Chunk, ChunkFailure, Cut, SequenceId, StepResult


@dataclass(frozen=True, slots=True, eq=False)
class CutPayload:
    """The payloads that a `cut` gave, launched and perhaps not computed yet; None for a block or
    checkpoint that it did not ask for."""

    cut: Cut
    block: Payload | None
    checkpoint: Payload | None

    @property
    def sizes(self) -> tuple[Size | None, Size | None]:
        """The sizes of the block and of the checkpoint."""
        block = size_of(self.block) if self.block else None
        return block, size_of(self.checkpoint) if self.checkpoint else None


@dataclass(slots=True, eq=False)
class ChunksLaunched:
    """What has become of a step's `chunks`, which ran in `groups`. `lost` chunks did not run,
    because their restore raised, or what they refer to was lost with another prompt; `starved`
    chunks found no memory. `restored` has the times of restores. The device has done all when it
    has computed `last`, if there is one."""

    chunks: tuple[Chunk, ...]
    groups: tuple[tuple[Chunk, ...], ...]
    failures: list[ChunkFailure] = field(default_factory=list)
    payloads: list[CutPayload] = field(default_factory=list)
    lost: list[Chunk] = field(default_factory=list)
    starved: list[Chunk] = field(default_factory=list)
    restored: list[Restored] = field(default_factory=list)
    last: mx.array | None = None

    @property
    def tokens(self) -> int:
        return sum(len(chunk.tokens) for chunk in self.chunks)

    def wait(self) -> None:
        """Wait until the device has done all of it."""
        if self.last is not None:
            device.wait_for(self.last)


@dataclass(frozen=True, slots=True, eq=False)
class Decoding:
    """A decode whose tokens are launched, and what was cut of its rows."""

    sampled: Decoded
    payloads: tuple[CutPayload, ...] = ()


@dataclass(slots=True, eq=False)
class Launched:
    """A step under way on the device. `ids` are the rows that decode. `tails` were cut from rows
    just dropped. With `at_once`, nothing else
    should be planned before the step's tokens are taken. The decode was `begun` at this
    time.perf_counter(), `behind_chunks` of the step before that may not have been done."""

    ids: tuple[SequenceId, ...]
    tails: tuple[CutPayload, ...]
    chunks: tuple[Chunk, ...]
    at_once: bool
    begun: float
    sample: Callable[[], Decoding] | None
    """Samples the decode's tokens and cuts its rows, when the tokens of the step before are
    taken."""
    launch_chunks: Callable[[], ChunksLaunched]
    """Launches the restores and chunks. To be called once."""
    cut: Callable[[], list[CutPayload]]
    """Cuts, once the step's tokens are taken, the rows that could not be cut before."""
    drafted: Drafted | None = None
    """What the drafter drafted for the decode, and in what time."""
    decoding: Decoding | None = None
    behind_chunks: bool = False

    def finish_launch(self) -> None:
        """Sample, unless that is done. Nothing refers to the logits then."""
        sample, self.sample = self.sample, None
        if sample is not None:
            self.decoding = sample()

    @property
    def places(self) -> int:
        """How many tokens the decode computes, padding counted."""
        sampled = self.decoding.sampled if self.decoding else None
        return len(self.ids) * (sampled.width if isinstance(sampled, Verifying) else 1)

    @property
    def is_verifying(self) -> bool:
        """Whether the decode verifies drafts."""
        return self.decoding is not None and isinstance(self.decoding.sampled, Verifying)

    @property
    def payloads(self) -> tuple[CutPayload, ...]:
        """What was cut of the rows that decode."""
        return self.decoding.payloads if self.decoding else ()

    @property
    def prefilling(self) -> bool:
        return bool(self.chunks)

    def tokens(self) -> StepResult:
        """Wait for the decode and bring its tokens to the host."""
        self.finish_launch()
        rows = self.decoding.sampled.to_host() if self.decoding else []
        return StepResult(dict(zip(self.ids, rows, strict=True)))
