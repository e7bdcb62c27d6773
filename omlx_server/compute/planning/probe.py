"""Probes: short forwards on caches of zeros, through `Prefiller` and `LiveBatch`, whose memory or
time is measured; and what caches hold. Mlx thread, at load."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.batch import LiveBatch
from omlx_server.compute.codecs.registry import codec_of, leaves
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.prefill import Prefilled, Prefiller
from omlx_server.core.memory.kv import Decode, Keeps, LayerKv, PrefillShape, grows
from omlx_server.core.request import RequestId, SamplingParams
from omlx_server.core.step import Chunk, Join, SequenceId

_GREEDY = SamplingParams(max_tokens=1, temperature=0)


@dataclass(frozen=True, slots=True)
class Peak:
    """Bytes of arrays before a run and after it, and the most in between."""

    before: int
    after: int
    peak: int

    @property
    def transient(self) -> int:
        """Bytes at the worst moment above the larger of before and after."""
        return self.peak - max(self.before, self.after)


def measure_peak(run: Callable[[], object]) -> Peak:
    """Measure the memory that `run` takes. Drains MLX's pool."""
    mx.synchronize()
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    result = run()
    mx.synchronize()
    after, peak = mx.get_active_memory(), mx.get_peak_memory()
    del result
    return Peak(before, after, peak)


class ForwardProbe:
    """Measures single forwards. Caches are as after prefills in chunks of `chunk`."""

    def __init__(self, loaded: LoadedModel, chunk: int = 256) -> None:
        self.model = loaded.model
        self._ranks = loaded.ranks
        self._ranks.probe("new")
        self._vocab = loaded.dims.vocab
        self._chunk = chunk
        self._short = one_token_caches(loaded.model)
        self._own_bytes = sum(leaf.nbytes for leaf in leaves(self._short))
        self.batchable = not cache_ops.why_alone(loaded.model)
        self._has_spare_place = all(
            layer.keeps is not Keeps.PADDED for layer in layers_held(self._short)
        )

    def prefill(self, prefill: PrefillShape) -> Peak:
        self._ranks.probe("prefill", prefill)
        return self.measure(self._forward(prefill))

    def prefill_seconds(self, prefill: PrefillShape) -> float:
        self._ranks.probe("prefill_seconds", prefill)
        run = self._forward(prefill)
        mx.synchronize()
        begun = time.perf_counter()
        run()
        mx.synchronize()
        return time.perf_counter() - begun

    def _forward(self, prefill: PrefillShape) -> Callable[[], object]:
        prefiller = Prefiller(self.model, batchable=self.batchable)
        chunks = []
        for number in range(prefill.rows):
            join = _join(number)
            caches = filled_caches(self.model, prefill.context, self._chunk, self._short)
            prefiller.restore(join.id, caches)
            chunks.append(Chunk(join.id, prefill.context, (0,) * prefill.tokens, (join,)))
        return partial(prefiller.run, chunks)

    def decode(self, decode: Decode) -> Peak:
        self._ranks.probe("decode", decode=decode)
        if not decode.grows:
            return self._decode_twice(decode)
        return self.measure(self._full_batch(decode.rows, decode.context).decode)

    def _decode_twice(self, decode: Decode) -> Peak:
        # The last scores may be alive or gone when the logits are computed.
        batch = self.batch(decode.rows, decode.context)
        peak = self.measure(batch.decode)
        if grows(decode.context, 1):
            return peak
        again = self.measure(batch.decode)
        return max(peak, again, key=lambda measured: measured.transient)

    def layers(self, decode: Decode) -> Peak:
        """Measure one decode without its logits, which would hide the layers."""
        self._ranks.probe("layers", decode=decode)
        batch = self.batch(decode.rows, decode.context)
        tokens = mx.zeros((decode.rows, 1), dtype=mx.int32)
        mx.eval(tokens)

        def forward() -> None:
            self.model(tokens, cache=batch.caches)
            cache_ops.evaluate(batch.caches, wait=True)

        return self.measure(forward)

    def measure(self, run: Callable[[], object]) -> Peak:
        """Measure `run` without this probe's own bytes, on the rank that takes the most."""
        here, own = measure_peak(run), self._own_bytes
        peak = max(here.before, here.after) + self._ranks.most(here.transient)
        return Peak(here.before - own, here.after - own, peak - own)

    def batch(self, rows: int, context: int) -> LiveBatch:
        """Return rows that have decoded once, whose next decode attends to `context` tokens."""
        batch = LiveBatch(self.model, self._vocab)
        if rows:
            batch.join(self.arrivals(0, rows, max(0, context - 2)))
            batch.decode()
        return batch

    def _full_batch(self, rows: int, context: int) -> LiveBatch:
        """Return rows whose next decode enlarges their buffers."""
        if self._has_spare_place:  # our caches are made with a spare place, which this decode fills
            return self.batch(rows, context + 1)
        batch = LiveBatch(self.model, self._vocab)
        batch.join(self.arrivals(0, rows, context))
        return batch

    def arrivals(self, first: int, stop: int, context: int) -> list[Prefilled]:
        """Return rows [first, stop) of `context` tokens, ready to join a batch."""
        make_caches = partial(filled_caches, self.model, context, self._chunk, self._short)
        rows = range(first, stop)
        return [Prefilled((_join(number),), make_caches(), solo=True) for number in rows]


def _join(number: int) -> Join:
    id = SequenceId(RequestId(f"probe-{number}"), 0)
    return Join(id, (0, 0), 2, _GREEDY)


def one_token_caches(model: nn.Module) -> cache_ops.Caches:
    """Return solo caches of one token. Runs the model and waits."""
    caches = cache_ops.new_caches(model)
    model(mx.zeros((1, 1), dtype=mx.int32), cache=caches)
    cache_ops.evaluate(caches, wait=True)
    return caches


def filled_caches(
    model: nn.Module, tokens: int, chunk: int, like: cache_ops.Caches
) -> cache_ops.Caches:
    """Return evaluated solo caches of zeros, as after a prefill in chunks. `like` are
    `one_token_caches`. Raises CannotFill."""
    caches = cache_ops.new_caches(model)
    if tokens:
        for leaf, short in zip(leaves(caches), leaves(like), strict=True):
            if short.nbytes:  # a layer without attention has a cache that stays empty
                codec_of(leaf).fill(leaf, short, tokens, chunk)
        cache_ops.evaluate(caches, wait=True)
    return caches


def layers_of(model: nn.Module) -> tuple[LayerKv, ...]:
    return layers_held(one_token_caches(model))


def layers_held(short: cache_ops.Caches) -> tuple[LayerKv, ...]:
    """Return what each cache holds, equal layers counted together. Raises CannotFill."""
    counts: dict[LayerKv, int] = {}
    for leaf in leaves(short):
        layer = codec_of(leaf).layer_kv(leaf) if leaf.nbytes else LayerKv(Keeps.CONSTANT, 0)
        counts[layer] = counts.get(layer, 0) + 1
    return tuple(replace(layer, count=count) for layer, count in counts.items())
