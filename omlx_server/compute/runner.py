"""Executes steps on one model: the device side of the engine. Owned by the mlx thread.

execute(step)   launches drops, decode and chunks; returns at once
Launched.read() waits for the decode of that step and brings its tokens to the host
Launched.wait() waits for its chunks too
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.batch import LiveBatch, Prefilled
from omlx_server.compute.loader import LoadedModel
from omlx_server.compute.prefill import Prefiller
from omlx_server.compute.sampler import Sampled
from omlx_server.core.guard import Crash, guarded
from omlx_server.core.request import RequestId, SamplingParams
from omlx_server.core.step import Chunk, ChunkFailure, Join, SequenceId, Step, StepResult

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Launched:
    """A step under way on the device."""

    ids: tuple[SequenceId, ...]
    sampled: Sampled | None
    failures: tuple[ChunkFailure, ...]
    prefilling: bool

    def read(self) -> StepResult:
        """Wait for the decode and read it. The chunks may still be running."""
        rows = self.sampled.read() if self.sampled else []
        return StepResult(dict(zip(self.ids, rows, strict=True)), self.failures)

    def wait(self) -> None:
        """Wait for the chunks, then give their scratch memory back."""
        mx.synchronize()
        mx.clear_cache()


class ModelRunner:
    """One loaded model, its live batch and its unfinished prefills."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self.batchable = cache_ops.can_batch(cache_ops.new_caches(loaded.model))
        self._prefiller = Prefiller(loaded.model, batchable=self.batchable)
        self._batch = LiveBatch(loaded.model, loaded.dims.vocab)

    @property
    def idle(self) -> bool:
        return not self._batch.rows and not self._prefiller.count

    def execute(self, step: Step) -> Launched:
        """Launch a step.

        A chunk that raises is reported as a failure and costs only its own rows. An exception of
        the decode is raised: it can't be laid on one row, and the caches are unusable after it.
        """
        self._batch.drop(step.drops)
        self._prefiller.drop(step.drops)
        ids = self._batch.ids
        if set(ids) != set(step.decodes):
            raise RuntimeError("the live batch is not what the scheduler decodes")
        sampled = self._batch.decode() if step.decodes else None
        failures: list[ChunkFailure] = []
        groups = self._prefiller.group(step.chunks)
        self._batch.join([a for group in groups for a in self._prefill(group, failures)])
        return Launched(ids, sampled, tuple(failures), bool(step.chunks))

    def reset(self) -> None:
        """Forget every row and prefill."""
        self._batch.clear()
        self._prefiller.clear()
        mx.clear_cache()

    def probe(self, join: Join) -> None:
        """Compute one context alone, apart from all other work. Raises what it raises."""
        scratch = ModelRunner(self.loaded)
        chunk = Chunk(join.id, 0, join.context[:-1], (join,))
        for step in (Step(chunks=(chunk,)), Step(decodes=(join.id,))):
            launched = scratch.execute(step)
            launched.read()
            launched.wait()
            if launched.failures:
                raise RuntimeError(launched.failures[0].message)

    def warm_up(self) -> None:
        """Run every kind of step once, so that kernels are compiled before the first request."""
        scratch = ModelRunner(self.loaded)
        greedy = SamplingParams(max_tokens=4, temperature=0, top_logprobs=2)
        drawn = SamplingParams(
            max_tokens=4,
            top_p=0.9,
            top_k=5,
            min_p=0.01,
            presence_penalty=0.1,
            repetition_penalty=1.1,
        )
        joins = [
            Join(SequenceId(RequestId(f"warm-up-{i}"), 0), (1,) * (9 + 2 * i), 9 + 2 * i, params)
            for i, params in enumerate((greedy, drawn) if self.batchable else (drawn,))
        ]
        chunks = tuple(Chunk(j.id, 0, j.context[:-1], (j,)) for j in joins)
        ids = tuple(join.id for join in joins)
        for step in (Step(chunks=chunks), Step(decodes=ids), Step(drops=ids[1:], decodes=ids[:1])):
            launched = scratch.execute(step)
            launched.read()
            launched.wait()

    def _prefill(self, group: Sequence[Chunk], failures: list[ChunkFailure]) -> list[Prefilled]:
        """Run a group; if it raises, run its members one by one to find whose fault it was."""
        prefilled = guarded(lambda: self._prefiller.run(group))
        if isinstance(prefilled, Crash):
            if len(group) > 1:
                return [p for chunk in group for p in self._prefill((chunk,), failures)]
            _log.error("prefill of %s failed", group[0].prefill.request, exc_info=prefilled.error)
            self._prefiller.drop([group[0].prefill])
            failures.append(ChunkFailure(group[0], f"{prefilled.summary} while reading the prompt"))
            return []
        return [prefilled] if prefilled else []
