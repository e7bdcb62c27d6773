"""The place of each request and what it waits for. Pure; mlx thread."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.request import RequestId
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.scheduler.memory_admission import Admission, AtWork
from omlx_server.core.scheduler.queues import SequenceQueues
from omlx_server.core.scheduler.sequence import PrefillState, Sequence

_MOST_GLANCED = 500


class WaitReason(StrEnum):
    BLOCK = "a block that another prompt computes"
    COLD = "the cold tier"
    ROWS = "rows"
    MEMORY = "memory"
    TURN = "its turn"
    STEP = "a step"


@dataclass(frozen=True, slots=True)
class Standing:
    """The place (queue) of `choices` of one request, and its numbers of tokens."""

    request: RequestId
    place: str
    choices: int
    prompt: int  # to be computed
    computed: int
    output: int
    waits_for: WaitReason
    arrived: float
    restored: int = 0

    def line(self, now: float) -> str:
        """Return a log line without the prompt's text."""
        return (
            f"{self.request} is {self.place}, of {now - self.arrived:.1f} s: {self.prompt} tokens "
            f"to read, {self.computed} computed, {self.choices} choices, {self.output} tokens "
            f"written, waits for {self.waits_for}"
        )


class Standings:
    """Describes each sequence in the queues, with what it waits for."""

    def __init__(
        self,
        queues: SequenceQueues,
        cache: PrefixCache,
        admission: Admission,
        limits: SchedulerLimits,
    ) -> None:
        self._queues = queues
        self._cache = cache
        self._admission = admission
        self._limits = limits

    def all(self, now: float) -> Iterator[Standing]:
        """Yield all standings. Asks admission, which may evict."""
        return self._all_queues(
            self._queues.waiting, lambda prefill: self._wait_reason(prefill, now)
        )

    def glance(self) -> Iterator[Standing]:
        """Yield standings with at most 500 waiting prefills, without asking admission."""
        return self._all_queues(
            self._queues.waiting[:_MOST_GLANCED],
            lambda prefill: self._reason_before_admission(prefill) or WaitReason.TURN,
        )

    def _all_queues(
        self, waiting: Iterable[PrefillState], reason_of: Callable[[PrefillState], WaitReason]
    ) -> Iterator[Standing]:
        queues = self._queues
        for prefill in waiting:
            yield _standing_of_prefill(prefill, "waiting", reason_of(prefill))
        for prefill in queues.active:
            yield _standing_of_prefill(prefill, "active", WaitReason.STEP)
        for place, rows in (
            ("running", queues.running),
            ("finishing", queues.finishing),
            ("preempted", queues.preempted),
        ):
            for row in rows.values():
                yield _standing_of_row(row, place)

    def _reason_before_admission(self, prefill: PrefillState) -> WaitReason | None:
        if prefill.handle.awaits_cold:
            return WaitReason.COLD
        if self._cache.must_wait(prefill.handle):
            return WaitReason.BLOCK
        if not self._queues.has_rows_for(prefill, self._limits.max_batch_size):
            return WaitReason.ROWS
        return None

    def _wait_reason(self, prefill: PrefillState, now: float) -> WaitReason:
        reason = self._reason_before_admission(prefill)
        if reason is not None:
            return reason
        queues = self._queues
        others = [other.handle for other in queues.waiting if other is not prefill]
        work = AtWork(queues.running.values(), queues.active, others)
        admission = self._admission
        fits = admission.may_admit(prefill, work, now) and admission.admit(prefill, work, now)
        return WaitReason.TURN if fits else WaitReason.MEMORY


def _standing_of_prefill(prefill: PrefillState, place: str, reason: WaitReason) -> Standing:
    request = prefill.request
    return Standing(
        request.id,
        place,
        len(prefill.sequences),
        prefill.target,
        prefill.computed,
        len(prefill.sequences[0].output),
        reason,
        request.arrived,
        prefill.restored,
    )


def _standing_of_row(row: Sequence, place: str) -> Standing:
    request, prompt = row.request, len(row.request.tokens)
    return Standing(
        request.id, place, 1, prompt, row.fed, len(row.output), WaitReason.STEP, request.arrived
    )
