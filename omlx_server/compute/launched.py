"""A launched step and its results."""

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
    """The payloads of a `cut`, perhaps not computed yet; None where not asked for."""

    cut: Cut
    block: Payload | None
    checkpoint: Payload | None

    @property
    def sizes(self) -> tuple[Size | None, Size | None]:
        block = size_of(self.block) if self.block else None
        return block, size_of(self.checkpoint) if self.checkpoint else None


@dataclass(slots=True, eq=False)
class ChunksLaunched:
    """The outcome of a step's `chunks`: `lost` ones refer to what can't be read, `starved` ones
    found no memory. All is done when `last` is computed."""

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
        if self.last is not None:
            device.wait_for(self.last)


@dataclass(frozen=True, slots=True, eq=False)
class Decoding:
    sampled: Decoded
    payloads: tuple[CutPayload, ...] = ()


@dataclass(slots=True, eq=False)
class Launched:
    """A step in progress. `at_once`: its tokens must be taken before more is planned."""

    ids: tuple[SequenceId, ...]
    tails: tuple[CutPayload, ...]
    chunks: tuple[Chunk, ...]
    at_once: bool
    begun: float
    sample: Callable[[], Decoding] | None  # once the tokens of the step before are taken
    launch_chunks: Callable[[], ChunksLaunched]  # to be called once
    cut: Callable[[], list[CutPayload]]  # once the step's own tokens are taken
    drafted: Drafted | None = None
    decoding: Decoding | None = None
    behind_chunks: bool = False

    def finish_launch(self) -> None:
        """Sample, unless that is done, and free the logits."""
        sample, self.sample = self.sample, None
        if sample is not None:
            self.decoding = sample()

    @property
    def places(self) -> int:
        sampled = self.decoding.sampled if self.decoding else None
        return len(self.ids) * (sampled.width if isinstance(sampled, Verifying) else 1)

    @property
    def is_verifying(self) -> bool:
        return self.decoding is not None and isinstance(self.decoding.sampled, Verifying)

    @property
    def payloads(self) -> tuple[CutPayload, ...]:
        return self.decoding.payloads if self.decoding else ()

    @property
    def prefilling(self) -> bool:
        return bool(self.chunks)

    def tokens(self) -> StepResult:
        self.finish_launch()
        rows = self.decoding.sampled.to_host() if self.decoding else []
        return StepResult(dict(zip(self.ids, rows, strict=True)))
