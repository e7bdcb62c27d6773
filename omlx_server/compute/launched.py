"""A launched step and its results."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from omlx_server.compute.batch import Decoded
from omlx_server.compute.drafting.base import Drafted
from omlx_server.compute.hardware import device
from omlx_server.compute.payload import Payload, size_of
from omlx_server.compute.verify import VerifyingDecode
from omlx_server.core.blocks.block import Size
from omlx_server.core.device_errors import DeviceFault
from omlx_server.core.request import Restored
from omlx_server.core.step import Chunk, ChunkFailure, Cut, SequenceId, Step


@dataclass(frozen=True, slots=True, eq=False)
class CutPayload:
    """The payloads of a `cut`, perhaps not computed yet. None: the cut asks for none."""

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
    found no memory. All are computed once `last` is."""

    chunks: tuple[Chunk, ...]
    groups: tuple[tuple[Chunk, ...], ...]
    failures: list[ChunkFailure] = field(default_factory=list)
    payloads: list[CutPayload] = field(default_factory=list)
    lost: list[Chunk] = field(default_factory=list)
    starved: list[Chunk] = field(default_factory=list)
    fault: DeviceFault = DeviceFault.MEMORY  # of starved chunks
    restored: list[Restored] = field(default_factory=list)
    last: mx.array | None = None

    @property
    def tokens(self) -> int:
        return sum(len(chunk.tokens) for chunk in self.chunks)

    def wait(self) -> None:
        if self.last is not None:
            device.wait_for(self.last)


@dataclass(slots=True, eq=False)
class Launched:
    """A step in progress. `logits` [B, V] are there until they are sampled. `at_once`: its tokens
    must be taken before more is planned. `tails` are cuts of rows that leave."""

    step: Step
    ids: tuple[SequenceId, ...]
    tails: Sequence[CutPayload]
    at_once: bool
    begun: float  # seconds of time.perf_counter
    logits: mx.array | None = None
    decoded: Decoded | None = None
    payloads: Sequence[CutPayload] = ()
    drafted: Drafted | None = None
    behind_chunks: bool = False  # launched while chunks were still computed

    @property
    def places(self) -> int:
        """The tokens that are fed, padding included."""
        width = self.decoded.width if isinstance(self.decoded, VerifyingDecode) else 1
        return len(self.ids) * width

    @property
    def is_verifying(self) -> bool:
        return isinstance(self.decoded, VerifyingDecode)

    @property
    def prefilling(self) -> bool:
        return bool(self.step.chunks)
