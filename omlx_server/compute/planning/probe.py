"""How much memory a model's own forwards take: short ones, on zeros, at load. Mlx thread.

What runs is what serves: `Prefiller` and `LiveBatch`, so masks, quantised caches and attention of
our own are in what is measured. A prefill and a decode are measured as a whole; a decode's layers
also without its head, which would hide them wherever the vocabulary is large.
"""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.batch import LiveBatch, Prefilled
from omlx_server.compute.codecs.registry import leaves
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.planning.filled import filled, layers_held, one_token
from omlx_server.compute.prefill import Prefiller
from omlx_server.core.memory.kv import Keeps, grows
from omlx_server.core.memory.shape import Decode, Prefill
from omlx_server.core.request import RequestId, SamplingParams
from omlx_server.core.step import Chunk, Join, SequenceId

_GREEDY = SamplingParams(max_tokens=1, temperature=0)


@dataclass(frozen=True, slots=True)
class Peak:
    """Bytes in use before a step and after it, and the most there was between. Not counted is what
    the bench holds itself."""

    before: int
    after: int
    peak: int

    @property
    def transient(self) -> int:
        """What was alive at the worst moment and is not held by anything before or after."""
        return self.peak - max(self.before, self.after)


def measured(run: Callable[[], object]) -> Peak:
    """What something takes of a device at rest. What it returns is held until the end."""
    mx.synchronize()
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    held = run()
    mx.synchronize()
    after, peak = mx.get_active_memory(), mx.get_peak_memory()
    del held
    return Peak(before, after, peak)


class Bench:
    """Runs single forwards of one model and measures them. Leaves the memory as it was."""

    def __init__(self, loaded: LoadedModel, chunk: int = 256) -> None:
        self.model = loaded.model
        self._vocab = loaded.dims.vocab
        self._chunk = chunk
        self._short = one_token(loaded.model)
        self._own = sum(leaf.nbytes for leaf in leaves(self._short))
        self.batchable = not cache_ops.why_alone(loaded.model)
        self._spare = all(layer.keeps is not Keeps.PADDED for layer in layers_held(self._short))

    def prefill(self, prefill: Prefill) -> Peak:
        """Chunks of several prompts, run as one group."""
        prefiller = Prefiller(self.model, batchable=self.batchable)
        chunks = []
        for number in range(prefill.rows):
            join = _join(number)
            prefiller.restore(join.id, self._filled(prefill.context))
            chunks.append(Chunk(join.id, prefill.context, (0,) * prefill.tokens, (join,)))
        return self.measured(lambda: prefiller.run(chunks))

    def decode(self, decode: Decode) -> Peak:
        """One token for each row."""
        if not decode.grows:
            return self._steady(decode)
        batch = self._full(decode.rows, decode.context)
        return self.measured(lambda: batch.decode().to_host())

    def _steady(self, decode: Decode) -> Peak:
        """The most that two decodes of the same rows take: whether the last scores are gone when
        the logits are made is a matter of luck."""
        batch = self.batch(decode.rows, decode.context)
        peak = self.measured(lambda: batch.decode().to_host())
        if grows(decode.context, 1):
            return peak
        again = self.measured(lambda: batch.decode().to_host())
        return max(peak, again, key=lambda found: found.transient)

    def layers(self, decode: Decode) -> Peak:
        """Measure one decode of rows that stay, without the head: its logits are not evaluated."""
        batch = self.batch(decode.rows, decode.context)
        tokens = mx.zeros((decode.rows, 1), dtype=mx.int32)
        mx.eval(tokens)

        def forward() -> None:
            self.model(tokens, cache=batch.caches)
            cache_ops.evaluate(batch.caches, wait=True)

        return self.measured(forward)

    def measured(self, run: Callable[[], object]) -> Peak:
        """What something takes. What it returns is held until the end."""
        found, own = measured(run), self._own
        return Peak(found.before - own, found.after - own, found.peak - own)

    def batch(self, rows: int, context: int) -> LiveBatch:
        """Rows that have decoded together before; of none, an empty one."""
        batch = LiveBatch(self.model, self._vocab)
        if rows:
            batch.join(self.arrivals(0, rows, max(0, context - 2)))
            batch.decode().to_host()
        return batch

    def _full(self, rows: int, context: int) -> LiveBatch:
        """Rows without room for one more token, where `context` is a multiple of the growth. Our
        caches are made with some room, those that are padded with none."""
        if self._spare:
            return self.batch(rows, context + 1)
        batch = LiveBatch(self.model, self._vocab)
        batch.join(self.arrivals(0, rows, context))
        return batch

    def arrivals(self, first: int, stop: int, context: int) -> list[Prefilled]:
        """Rows with these numbers, ready to join a batch."""
        return [
            Prefilled((_join(number),), self._filled(context), solo=True)
            for number in range(first, stop)
        ]

    def _filled(self, tokens: int) -> cache_ops.Caches:
        return filled(self.model, tokens, self._chunk, self._short)


def _join(number: int) -> Join:
    id = SequenceId(RequestId(f"probe-{number}"), 0)
    return Join(id, (0, 0), 2, _GREEDY)
