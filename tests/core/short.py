"""A simulated run within a bound of memory that a test moves.

A token takes 10 bytes in a cache, and the planner keeps 256 more of them for each row; a decode
takes 100 bytes a row for itself, a chunk 10 a token.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from omlx_server.core.blocks.block import CacheLayout
from omlx_server.core.memory.guard import MemoryGuard
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.request import Request, RequestId, SamplingParams
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.step import Chunk, SequenceId, Step
from tests.core.simulator import KV, ROOMY, Device, Done, Made, Run, make_request, right_answer

LIMITS = SchedulerLimits(
    max_batch_size=4, max_queue=50, prefill_chunk_tokens=8, max_batched_tokens=32
)
WIDE = SchedulerLimits(max_batch_size=4, prefill_chunk_tokens=512, max_batched_tokens=512)
PLENTY = 1 << 30


class _Logged(Device):
    """Remembers its steps. Where memory is short, chunks may end on a smaller grid."""

    def __init__(self, limits: SchedulerLimits, layout: CacheLayout) -> None:
        super().__init__(limits, layout)
        self.steps: list[Step] = []
        self._widest = limits

    def execute(self, step: Step) -> Done:
        self.steps.append(step)
        return super().execute(step)

    def run_chunks(self, step: Step) -> list[Made]:
        widest = self._widest.prefill_chunk_tokens
        grids = [size for size in (512, 256, 128, 64) if size < widest]
        ends = [chunk.stop for chunk in step.chunks if not chunk.joins and not _marked(chunk)]
        grid = next(g for g in (widest, *grids) if not any(end % g for end in ends))
        self.limits = replace(self._widest, prefill_chunk_tokens=grid)
        return super().run_chunks(step)


def _marked(chunk: Chunk) -> bool:
    return any(cut.worth is not None and cut.stop == chunk.stop for cut in chunk.cuts)


class Short(Run):
    """A run whose memory a test bounds. Requests are not ended by stop tokens."""

    def __init__(
        self,
        memory: int = PLENTY,
        limits: SchedulerLimits = LIMITS,
        layout: CacheLayout | None = KV,
        budget: HotBudget = ROOMY,
    ) -> None:
        super().__init__(limits, layout, budget, memory)
        assert self.guard is not None
        self.watch: MemoryGuard = self.guard
        self.used = self.watch.used
        self._logged = self.device = _Logged(limits, layout or KV)
        self._sent: list[Request] = []

    def send(self, name: str, length: int = 10, max_tokens: int = 60, **changes: Any) -> Request:
        request = endless(name, length, max_tokens, **{"arrived": self.now, **changes})
        assert self.scheduler.add(request) is None
        self._sent.append(request)
        return request

    def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(2000):
            if condition():
                return
            self.step()
        raise AssertionError("it did not happen")

    def running(self, *names: str) -> None:
        """Until exactly these decode."""
        self.until(lambda: set(names) == self.rows)

    @property
    def rows(self) -> set[str]:
        return {id.request for id in self.device.rows}

    @property
    def steps(self) -> list[Step]:
        return self._logged.steps

    def finish_right(self) -> None:
        """Everybody gets a whole and right answer."""
        self.finish()
        for request in self._sent:
            for choice in range(request.n):
                output, finish = right_answer(request, choice)
                assert self.outputs[request.id, choice] == output
                assert self.finishes[request.id, choice] is finish


def endless(name: str, length: int, max_tokens: int, **changes: Any) -> Request:
    request = make_request(name, length, max_tokens, **changes)
    return replace(request, sampling=SamplingParams(max_tokens=max_tokens))


def three(**priorities: int) -> Short:
    """a, b and c decode; they came in this order."""
    run = Short()
    for name in "abc":
        run.send(name, priority=priorities.get(name, 0))
        run.step()
    run.running("a", "b", "c")
    for _ in range(5):
        run.step()
    return run


ROOM_FOR_ONE, ROOM_FOR_TWO = 4000, 7000
"""With rows of 20 to 80 tokens."""


def id_of(name: str, choice: int = 0) -> SequenceId:
    return SequenceId(RequestId(name), choice)
