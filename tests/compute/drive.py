"""An instance driven by hand, one step ahead like the engine, with arrivals and cancels at will."""

import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from omlx_server.compute.architectures.pair import Headed, Pair
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.payload import BlockCodec, Payload
from omlx_server.compute.runner import ModelRunner
from omlx_server.core.blocks.block import NOTHING_KEPT, PayloadId
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.request import (
    Admitted,
    FinishReason,
    Request,
    RequestId,
    SamplingParams,
    TokenEvent,
)
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.speculation.methods import Method
from omlx_server.core.speculation.speculation import DraftController
from omlx_server.core.step import Step
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.engine.pipeline import Pipeline
from omlx_server.store.cold import ColdTier
from tests.core.eager import Eager

LIMITS = SchedulerLimits(max_batch_size=8, prefill_chunk_tokens=16, max_batched_tokens=128)
ROOMY = HotBudget(nbytes=1 << 40, checkpoint_bytes=1 << 40, lattice_start=32)


def sampling(max_tokens: int, **changes: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, **{"temperature": 0, **changes})


class Drive:
    """`block_size` None: without a prefix cache. `codec` may be a broken one. All that can be
    drafted is, unless `speculation` says otherwise."""

    def __init__(
        self,
        loaded: LoadedModel,
        limits: SchedulerLimits = LIMITS,
        block_size: int | None = None,
        budget: HotBudget = ROOMY,
        codec: type[BlockCodec] = BlockCodec,
        cold: ColdTier | None = None,
        *,
        write_through: bool = False,
        speculation: DraftController | None = None,
    ) -> None:
        self.loaded = loaded
        self.hot: dict[PayloadId, Payload] = {}
        self.cold = cold
        blocks = codec.of(loaded.model, block_size) if block_size else None
        drafter = {Pair: Method.DRAFT, Headed: Method.HEADS}.get(type(loaded.model))
        self.runner = ModelRunner(loaded, blocks, self.hot.__getitem__)
        self.instance = ModelInstance(
            self.runner,
            limits,
            lambda: (
                PrefixCache(blocks.layout, loaded.fingerprint, budget, cold.index if cold else None)
                if blocks
                else PrefixCache(NOTHING_KEPT, "none", budget)
            ),
            self.hot,
            cold,
            write_through=write_through,
            speculation=speculation or Eager(drafter),
        )
        if cold is not None:
            cold.start()
        self.answers: dict[str, list[int]] = {}
        self.ends: dict[str, FinishReason] = {}
        self.admitted: dict[str, Admitted] = {}
        self.computed: Counter[str] = Counter()
        self.pipeline = Pipeline(self.instance, self._report)
        self._now = 0.0

    def add(self, name: str, prompt: Sequence[int], params: SamplingParams, **changes: Any) -> None:
        self.instance.scheduler.add(Request(RequestId(name), tuple(prompt), params, **changes))

    def cancel(self, name: str) -> None:
        self.instance.scheduler.cancel(RequestId(name))

    def step(self) -> None:
        self._now += 1
        self.instance.recall()
        if self.pipeline.is_ahead and self.instance.scheduler.awaits_tokens(self._now):
            self.pipeline.take_ahead()
        step = self.instance.scheduler.schedule(self._now)
        self._note(step or Step())
        self.pipeline.run(step, is_only_model=True)
        if step is None and self.cold is not None and self.cold.reads.waiting:
            time.sleep(0.0002)  # the engine waits for a wake

    def finish(self) -> None:
        """Run until nothing is left to do."""
        while self.instance.scheduler.has_work or not self.pipeline.is_empty:
            self.step()
        self.instance.recall()
        self.instance.check_invariants()
        for block in self.instance.cache.index.blocks():
            assert not block.leases, "a lease was forgotten"
            assert not block.users, "a use was forgotten"

    def answer(
        self, name: str, prompt: Sequence[int], max_tokens: int, **changes: Any
    ) -> list[int]:
        """The greedy answer to one prompt, alone."""
        self.add(name, prompt, sampling(max_tokens), **changes)
        self.finish()
        return self.answers[f"{name}/0"]

    def lose(self) -> None:
        """A step fails, and all that the device has computed for live rows is lost."""
        self.pipeline.clear()
        self.instance.restart()

    def preempt(self, rng: random.Random) -> None:
        """One of the live rows, if there are any, goes back to the queue."""
        queues = self.instance.scheduler.queues
        if rows := list(queues.running):
            queues.preempt(rng.choice(rows))

    def evict(self) -> None:
        """Half of what the prefix cache has in memory goes."""
        cache = self.instance.cache
        cache.eviction.make_room(cache.index.nbytes // 2, 0)
        self.instance.drop_evicted()

    def seen(self, event: TokenEvent) -> None:
        """For tests that look at more than tokens and ends."""

    def _note(self, step: Step) -> None:
        for admitted in step.admitted:
            self.admitted[admitted.request_id] = admitted
        for chunk in step.chunks:
            self.computed[chunk.prefill.request] += len(chunk.tokens)

    def _report(self, events: Sequence[TokenEvent]) -> None:
        for event in events:
            self.seen(event)
            name = f"{event.request_id}/{event.index}"
            if event.token is not None:
                self.answers.setdefault(name, []).append(event.token)
            if event.finish:
                self.ends[name] = event.finish
