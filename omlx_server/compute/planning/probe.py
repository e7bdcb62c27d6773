"""Probes: short forwards on caches of zeros that measure memory or time, through `Prefiller` and
`LiveBatch`; and what caches hold. Mlx thread, at load."""

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
from omlx_server.core.memory.kv import Keeps, LayerKv, grows
from omlx_server.core.memory.shape import Decode, PrefillShape
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


def measured(run: Callable[[], object]) -> Peak:
    """Measure what `run` takes. Drains MLX's pool."""
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
        self._short = one_token(loaded.model)
        self._own_bytes = sum(leaf.nbytes for leaf in leaves(self._short))
        self.batchable = not cache_ops.why_alone(loaded.model)
        self._spare = all(layer.keeps is not Keeps.PADDED for layer in layers_held(self._short))

    def prefill(self, prefill: PrefillShape) -> Peak:
        self._ranks.probe("prefill", prefill)
        return self.measured(self._forward(prefill))

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
            prefiller.restore(join.id, self._filled(prefill.context))
            chunks.append(Chunk(join.id, prefill.context, (0,) * prefill.tokens, (join,)))
        return partial(prefiller.run, chunks)

    def decode(self, decode: Decode) -> Peak:
        self._ranks.probe("decode", decode=decode)
        if not decode.grows:
            return self._steady(decode)
        batch = self._full(decode.rows, decode.context)
        return self.measured(batch.decode)

    def _steady(self, decode: Decode) -> Peak:
        """The larger of two decodes: the last scores may be alive or gone when the logits are
        computed."""
        batch = self.batch(decode.rows, decode.context)
        peak = self.measured(batch.decode)
        if grows(decode.context, 1):
            return peak
        again = self.measured(batch.decode)
        return max(peak, again, key=lambda one: one.transient)

    def layers(self, decode: Decode) -> Peak:
        """Measure one decode without its logits, which would hide the layers."""
        self._ranks.probe("layers", decode=decode)
        batch = self.batch(decode.rows, decode.context)
        tokens = mx.zeros((decode.rows, 1), dtype=mx.int32)
        mx.eval(tokens)

        def forward() -> None:
            self.model(tokens, cache=batch.caches)
            cache_ops.evaluate(batch.caches, wait=True)

        return self.measured(forward)

    def measured(self, run: Callable[[], object]) -> Peak:
        run_peak, own = measured(run), self._own_bytes
        # Plan for the rank that takes the most.
        peak = max(run_peak.before, run_peak.after) + self._ranks.most(run_peak.transient)
        return Peak(run_peak.before - own, run_peak.after - own, peak - own)

    def batch(self, rows: int, context: int) -> LiveBatch:
        """Return rows that have decoded once, whose next decode attends to `context` tokens."""
        batch = LiveBatch(self.model, self._vocab)
        if rows:
            batch.join(self.arrivals(0, rows, max(0, context - 2)))
            batch.decode()
        return batch

    def _full(self, rows: int, context: int) -> LiveBatch:
        if self._spare:  # our caches are made with a spare place, which this decode fills
            return self.batch(rows, context + 1)
        batch = LiveBatch(self.model, self._vocab)
        batch.join(self.arrivals(0, rows, context))
        return batch

    def arrivals(self, first: int, stop: int, context: int) -> list[Prefilled]:
        """Return rows [first, stop) of `context` tokens, ready to join a batch."""
        return [
            Prefilled((_join(number),), self._filled(context), solo=True)
            for number in range(first, stop)
        ]

    def _filled(self, tokens: int) -> cache_ops.Caches:
        return filled(self.model, tokens, self._chunk, self._short)


def _join(number: int) -> Join:
    id = SequenceId(RequestId(f"probe-{number}"), 0)
    return Join(id, (0, 0), 2, _GREEDY)


def one_token(model: nn.Module) -> cache_ops.Caches:
    """Return solo caches of one token. Runs the model and waits."""
    caches = cache_ops.new_caches(model)
    model(mx.zeros((1, 1), dtype=mx.int32), cache=caches)
    cache_ops.evaluate(caches, wait=True)
    return caches


def filled(model: nn.Module, tokens: int, chunk: int, like: cache_ops.Caches) -> cache_ops.Caches:
    """Return evaluated solo caches of zeros, as after a prefill in chunks. `like` are caches by
    `one_token`. Raises CannotFill."""
    caches = cache_ops.new_caches(model)
    if tokens:
        for leaf, short in zip(leaves(caches), leaves(like), strict=True):
            if short.nbytes:  # a layer without attention has a cache that stays empty
                codec_of(leaf).fill(leaf, short, tokens, chunk)
        cache_ops.evaluate(caches, wait=True)
    return caches


def layers_of(model: nn.Module) -> tuple[LayerKv, ...]:
    return layers_held(one_token(model))


def layers_held(short: cache_ops.Caches) -> tuple[LayerKv, ...]:
    """Return what each cache holds, equal layers counted together. Raises CannotFill."""
    counts: dict[LayerKv, int] = {}
    for leaf in leaves(short):
        layer = codec_of(leaf).layer_kv(leaf) if leaf.nbytes else LayerKv(Keeps.CONSTANT, 0)
        counts[layer] = counts.get(layer, 0) + 1
    return tuple(replace(layer, count=count) for layer, count in counts.items())
