"""A prefix that is stored in blocks, and rows on it."""

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.caches import Caches
from omlx_server.compute.codecs.base import CacheRow
from omlx_server.compute.kv.spans import Runs
from omlx_server.compute.payload import BlockCodec, Payload
from omlx_server.compute.planning.probe import filled_caches, one_token_caches
from omlx_server.compute.prefill import Prefilled
from omlx_server.core.request import RequestId, SamplingParams
from omlx_server.core.step import Join, SequenceId

BLOCK, _CHUNK = 256, 512


def blocks_of(codec: BlockCodec, caches: Caches, count: int) -> list[Payload]:
    """Return the blocks of `count` tokens of one row, computed."""
    size, blocks = codec.layout.block_size, list[Payload]()
    for start in range(0, count, size):
        stop = min(start + size, count)
        payload = codec.cut_block(caches, CacheRow(0, count), start, stop)
        mx.eval(*payload.buffers)
        blocks.append(payload)
    return blocks


class StoredPrefix:
    """Blocks of `tokens` tokens of zeros. With `caches` of the sequence that brought them."""

    def __init__(self, model: nn.Module, tokens: int) -> None:
        codec = BlockCodec.of(model, BLOCK)
        assert codec is not None, "a model that is served without reuse"
        self._model, self._codec, self._tokens = model, codec, tokens
        self.caches: Caches = filled_caches(model, tokens, _CHUNK, one_token_caches(model))
        self._blocks = blocks_of(codec, self.caches, tokens)
        has_states = codec.layout.checkpointed
        self._state = codec.cut_checkpoint(self.caches, CacheRow(0, tokens)) if has_states else None

    @property
    def nbytes(self) -> int:
        """The bytes of the blocks."""
        return sum(block.nbytes for block in self._blocks)

    @property
    def runs(self) -> Runs:
        return self._codec.runs

    @property
    def block_size(self) -> int:
        return self._codec.layout.block_size

    def rest(self) -> None:
        """The sequence that brought the blocks has ended."""
        self.caches = []
        self.runs.tidy(wholly=True)

    def hit(self) -> Caches:
        """The caches of another sequence that begins with the prefix."""
        return self._codec.join(self._blocks, self._state, self._tokens)

    def row(self, number: int, own: int = 0) -> Prefilled:
        """A row of the prefix and `own` tokens behind it, ready to join a batch."""
        caches, tokens = self.hit(), self._tokens + own
        if own:
            self._model(mx.zeros((1, own), dtype=mx.int32), cache=caches)
            cache_ops.evaluate(caches, wait=True)
        id = SequenceId(RequestId(f"r{number}"), 0)
        join = Join(id, (1,) * (tokens + 1), tokens + 1, SamplingParams(max_tokens=1 << 20))
        return Prefilled((join,), caches, solo=True)
