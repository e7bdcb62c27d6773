"""One model at work: its scheduler, its runner, its prefix cache and the payloads that are kept.

Lives on the mlx thread. This is where decisions (core), arrays (compute) and storage (store) meet:
what the runner has cut is kept under the ids that the cache gives, and dropped when it says so.
"""

import logging
from collections.abc import Callable, Sequence

from omlx_server.compute.payload import Payload
from omlx_server.compute.runner import CutPayload, Launched, ModelRunner
from omlx_server.core.prefix_cache import PrefixCache
from omlx_server.core.request import Admission, TokenEvent
from omlx_server.core.scheduler import Limits, Scheduler
from omlx_server.core.step import Step, StepResult
from omlx_server.store.hot import HotTier

_log = logging.getLogger(__name__)


class Lane:
    """`make_cache` gives an empty prefix cache; it is asked again when the lane starts over."""

    def __init__(
        self,
        runner: ModelRunner,
        limits: Limits,
        make_cache: Callable[[], PrefixCache],
        hot: HotTier[Payload],
    ) -> None:
        self.runner = runner
        self._limits = limits if runner.batchable else limits.one_at_a_time()
        self._make_cache = make_cache
        self._hot = hot
        self.start_over()

    def start_over(self) -> None:
        """Forget all that was computed and kept."""
        self.runner.reset()
        self._hot.clear()
        self.cache = self._make_cache()
        self.scheduler = Scheduler(self._limits, self.cache)

    def launch(self, step: Step) -> Launched:
        """Launch a step."""
        launched = self.runner.execute(step)
        for admission in step.admissions:
            _log_admission(admission)
        return launched

    def finish(self, launched: Launched) -> list[TokenEvent]:
        """Wait for all of a step; keep what it has cut."""
        return self.read(launched) + (self.run_chunks(launched) if launched.prefilling else [])

    def read(self, launched: Launched) -> list[TokenEvent]:
        """Wait for a step's tokens."""
        result = launched.read()
        self._keep(launched.payloads)
        return self.scheduler.update(result)

    def run_chunks(self, launched: Launched) -> list[TokenEvent]:
        """Run a step's chunks. The events are those of prompts that failed."""
        done = launched.wait()
        self._keep(done.payloads)
        result = StepResult(failures=done.failures, lost=done.lost, chunks_done=True)
        return self.scheduler.update(result)

    def reset_cache(self) -> None:
        """Drop every block that is not in use at this moment."""
        self.cache.reset()
        self._drop_evicted()

    def check_invariants(self) -> None:
        """Raise AssertionError when the books and what is there differ."""
        self.scheduler.check_invariants()
        self.cache.index.check_invariants()
        kept = len(self.cache.index) + self.cache.index.checkpoint_count
        assert len(self._hot) == kept, "payloads and index differ"

    def _keep(self, payloads: Sequence[CutPayload]) -> None:
        for made in payloads:
            block, state = self.scheduler.keep(made.stored)
            if block is not None and made.block is not None:
                self._hot.put(block, made.block)
            if state is not None and made.state is not None:
                self._hot.put(state, made.state)
        self._drop_evicted()

    def _drop_evicted(self) -> None:
        for id in self.cache.take_evicted():
            self._hot.drop(id)


def _log_admission(admission: Admission) -> None:
    _log.info(
        "%s: %d prompt tokens from the cache (%s, %d known)",
        admission.request_id,
        admission.cached,
        admission.miss.value,
        admission.known,
    )
