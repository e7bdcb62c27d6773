"""One prefix that blocks and rows share: on our caches, where it is there once, and on those of
mlx-lm, of which blocks and rows have copies."""

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import mlx.core as mx

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.bare import mlx_lm_caches
from omlx_server.compute.batch import LiveBatch
from omlx_server.compute.codecs.base import CacheRow
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.payload import BlockCodec, Payload
from omlx_server.compute.planning.plan_file import planner_for
from omlx_server.compute.planning.probe import measured
from omlx_server.core.memory.shape import PrefillShape
from scripts.benchmarks.metrics import Better, Metric, Requirement, Sample, Spec, collect, find
from scripts.benchmarks.rows_measure import OURS, PADDED, at_rest
from scripts.benchmarks.rows_plan import RowsPlan
from scripts.benchmarks.stored_prefix import BLOCK, StoredPrefix

_CHUNK = 512
_MEGABYTE = 1e6


@dataclass(frozen=True, slots=True)
class Specs:
    """What is measured of a prefix of the plan's length."""

    distinct: Spec
    stored: Spec
    agents: Spec
    step: Spec
    hit: Spec
    short_hit: Spec
    hit_bytes: Spec
    peak: Spec
    planned: Spec

    @classmethod
    def of(cls, plan: RowsPlan) -> "Specs":
        long, shared, agents = f"{plan.long:,}", f"{plan.shared:,}", plan.agents
        fewer = Better.LOWER
        return cls(
            Spec("distinct", f"keys and values of {shared} tokens", "MB", fewer),
            Spec("held_stored", f"a row of {shared} and its blocks", "MB", fewer),
            Spec("held_agents", f"{agents} rows on a stored prefix of {shared}", "MB", fewer),
            Spec("step_agents", f"a step of {agents} rows on {shared}", "ms", fewer),
            Spec("hit_time", f"a hit of {long}, until its first step is launched", "ms", fewer),
            Spec("short_hit_time", f"a hit of {plan.long // 4:,}", "ms", fewer),
            Spec("hit_bytes", f"memory that a hit of {long} takes", "MB", fewer),
            Spec("peak", f"most that is held while {shared} tokens are read", "MB", fewer),
            Spec("planned", "what is planned for a chunk of them", "MB", fewer),
        )


class SharedBench:
    """One model, whose blocks are measured with each kind of caches."""

    def __init__(self, loaded: LoadedModel, plan: RowsPlan) -> None:
        self._loaded = loaded
        self._plan = plan
        self._specs = Specs.of(plan)

    def run(self) -> list[Metric]:
        rounds: list[list[Sample]] = []
        for _ in range(self._plan.repeats):
            samples = list[Sample]()
            for kind in (OURS, PADDED):
                with self._use(kind):
                    found = {**self._agents(), **self._hits()}
                samples += [Sample(spec, kind, value) for spec, value in found.items()]
            rounds.append(samples)
        rounds[0] += [Sample(spec, OURS, value) for spec, value in self._prefill().items()]
        return collect(rounds)

    def _prefill(self) -> Mapping[Spec, float]:
        """A prompt is read in chunks, and its blocks are cut as it goes."""
        specs, tokens, loaded = self._specs, self._plan.shared, self._loaded
        planned = planner_for(loaded).prefill(PrefillShape(1, _CHUNK, tokens - _CHUNK))
        codec = BlockCodec.of(loaded.model, BLOCK)
        assert codec is not None, "a model that is served without reuse"
        caches, blocks = cache_ops.new_caches(loaded.model), list[Payload]()

        def read() -> None:
            for start in range(0, tokens, _CHUNK):
                chunk = mx.zeros((1, _CHUNK), dtype=mx.int32)
                loaded.model(chunk, cache=caches)
                cache_ops.evaluate(caches, wait=False)
                row = CacheRow(0, start + _CHUNK)
                for first in range(start, start + _CHUNK, BLOCK):
                    blocks.append(codec.cut_block(caches, row, first, first + BLOCK))

        found = measured(read)
        return {
            specs.peak: (found.peak - found.before) / _MEGABYTE,
            specs.planned: planned / _MEGABYTE,
        }

    def _agents(self) -> Mapping[Spec, float]:
        """One conversation with its blocks, then several rows on these."""
        specs, plan = self._specs, self._plan
        before, prefix = at_rest(), StoredPrefix(self._loaded.model, plan.shared)
        found = {
            specs.distinct: prefix.nbytes / _MEGABYTE,
            specs.stored: (at_rest() - before) / _MEGABYTE,
        }
        prefix.rest()
        batch = self._batch(prefix)
        for number in range(plan.agents):
            batch.join([prefix.row(number)])
        self._decode(batch)
        found[specs.agents] = (at_rest() - before) / _MEGABYTE
        begun = time.perf_counter()
        for _ in range(plan.steps):
            self._decode(batch)
        found[specs.step] = 1000 * (time.perf_counter() - begun) / plan.steps
        return found

    def _hits(self) -> Mapping[Spec, float]:
        specs, long = self._specs, self._plan.long
        found = dict[Spec, float]()
        for tokens, spec in ((long // 4, specs.short_hit), (long, specs.hit)):
            prefix = StoredPrefix(self._loaded.model, tokens)
            prefix.rest()
            before, begun = at_rest(), time.perf_counter()
            batch = self._batch(prefix)
            batch.join([prefix.row(0)])
            mx.synchronize()
            found[spec] = 1000 * (time.perf_counter() - begun)
            found[specs.hit_bytes] = (at_rest() - before) / _MEGABYTE
            del batch, prefix
        return found

    def _batch(self, prefix: StoredPrefix) -> LiveBatch:
        loaded = self._loaded
        return LiveBatch(loaded.model, loaded.dims.vocab, prefix.runs, prefix.block_size)

    def _decode(self, batch: LiveBatch) -> None:
        batch.decode().to_host()

    def _use(self, kind: str) -> AbstractContextManager[None]:
        """Within the block, the model makes caches of this kind."""
        return mlx_lm_caches(self._loaded.model) if kind == PADDED else nullcontext()


def requirements(metrics: Sequence[Metric], plan: RowsPlan) -> list[Requirement]:
    """What sharing has to keep. Each row has room for 256 tokens of its own."""
    specs = Specs.of(plan)
    distinct, stored, agents, hit, short, taken, peak, planned = (
        _median(metrics, spec)
        for spec in (
            specs.distinct,
            specs.stored,
            specs.agents,
            specs.hit,
            specs.short_hit,
            specs.hit_bytes,
            specs.peak,
            specs.planned,
        )
    )
    token = distinct / plan.shared if distinct else 0.0
    old = find(metrics, specs.agents.name)
    return [
        Requirement(
            "a row and its blocks, of its keys and values and 256 tokens",
            _over(stored, distinct + 256 * token),
            1.15,
            Better.LOWER,
        ),
        Requirement(
            "rows on one prefix, of it and 256 tokens a row",
            _over(agents, distinct + 256 * token * plan.agents),
            1.15,
            Better.LOWER,
        ),
        Requirement(
            "rows on one prefix, of the copies of today's peers",
            old.ratio(OURS, PADDED) if old else None,
            0.2,
            Better.LOWER,
        ),
        Requirement(
            "peak of a prompt, of 1.3 times its keys and values and what is planned for a chunk",
            _over(peak, 1.3 * distinct + planned),
            1.0,
            Better.LOWER,
        ),
        Requirement("memory of a hit, of 256 tokens", _over(taken, 256 * token), 1.1, Better.LOWER),
        Requirement(
            "time of a hit, of one a quarter as long", _over(hit, short), 2.0, Better.LOWER
        ),
    ]


def _over(value: float, whole: float) -> float | None:
    return value / whole if whole else None


def _median(metrics: Sequence[Metric], spec: Spec) -> float:
    metric = find(metrics, spec.name)
    return (metric.median(OURS) if metric else None) or 0.0
